"""Slim's two orders of operation while decoding: operations and bytes from formulas (arXiv 2503.05840, section 3).

Of one layer of width d with h heads, n cached tokens and one new token a sequence. Order 1 first makes V = K W_KV of
all cached keys; order 2 first weighs the keys, one row of width d a head, and multiplies with W_KV after that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from analysis.numbers import memory, operations, sig3, times
from analysis.palette import KEPT, LOST
from analysis.style import LOSES, QUIET, quiet

DENSE, FIRST, SECOND = "dense", "values first", "scores first"
ORDERS = {FIRST: "order 1: values first", SECOND: "order 2: scores first"}
COLOURS = {DENSE: QUIET, FIRST: LOST, SECOND: KEPT}
CARDS = {"H200, int8": 413.0, "B200, int8": 563.0, "M4 Max, int8": 93.0}
"""Operations a byte of memory traffic, as the paper gives them."""
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
MOST = 10.0
"""Times dense's time, beyond which a formula's line leaves the picture."""
LENGTHS = tuple(2**n for n in range(5, 18))


@dataclass(frozen=True)
class Work:
    """Of one decoded token of every sequence in a batch, one layer.

    Attributes:
        operations: multiplications and additions.
        bytes: read at least once: the cache of every sequence, the weights once for all.
    """

    operations: float
    bytes: float


def work(order: str, width: int, heads: int, cached: int, batch: int = 1, itemsize: float = 1.0) -> Work:
    """Count one decoded token.

    Args:
        order: ``dense``, ``values first`` or ``scores first``.
        width: d.
        heads: h.
        cached: n.
        batch: sequences that share the weights.
        itemsize: bytes of a number.
    """
    d, h, n = width, heads, cached
    ops = {
        DENSE: 8 * d * d + 4 * n * d,
        FIRST: (2 * n + 6) * d * d + 4 * n * d,
        SECOND: 8 * d * d + 2 * n * d * (h + 1),
    }[order]
    rows = 2 * n * d if order == DENSE else n * d
    return Work(float(ops * batch), float((4 * d * d + rows * batch) * itemsize))


def traffic(one: Work, intensity: float) -> float:
    """Time in bytes of traffic: what it reads, or what the card would read while it computes, whichever is more."""
    return max(one.bytes, one.operations / intensity)


def compute_bound(one: Work, intensity: float) -> bool:
    """Whether computing takes longer than reading."""
    return one.operations / intensity > one.bytes


def ratio(
    order: str, width: int, heads: int, cached: int, batch: int, intensity: float, itemsize: float = 1.0
) -> float:
    """Time over dense's by the roofline: below 1 is faster."""
    own, dense = (work(o, width, heads, cached, batch, itemsize) for o in (order, DENSE))
    return traffic(own, intensity) / traffic(dense, intensity)


def crossover(width: int, heads: int, batch: int, intensity: float, itemsize: float = 1.0) -> int | None:
    """The most cached tokens at which order 1 takes no longer than order 2; None where it always does."""

    def first_wins(n: int) -> bool:
        one, two = (ratio(o, width, heads, n, batch, intensity, itemsize) for o in (FIRST, SECOND))
        return one <= two * (1 + 1e-9)

    if not first_wins(1):
        return None
    low, high = 1, 1 << 24
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if first_wins(middle) else (low, middle)
    return low


def slower_from(order: str, width: int, heads: int, batch: int, intensity: float, itemsize: float = 1.0) -> int | None:
    """The fewest cached tokens from which an order is slower than dense; None where it never is up to 16 million."""
    for n in (2**e for e in range(25)):
        if ratio(order, width, heads, n, batch, intensity, itemsize) > 1 + 1e-9:
            low, high = n // 2, n
            while high - low > 1:
                middle = (low + high) // 2
                slow = ratio(order, width, heads, middle, batch, intensity, itemsize) > 1 + 1e-9
                low, high = (low, middle) if slow else (middle, high)
            return high
    return None


def slower_up_to(order: str, width: int, heads: int, batch: int, intensity: float, itemsize: float = 1.0) -> int | None:
    """The most cached tokens at which an order is slower than dense; None where it never or still is at 16 million."""

    def slow(n: int) -> bool:
        return ratio(order, width, heads, n, batch, intensity, itemsize) > 1 + 1e-9

    low = max(filter(slow, (2**e for e in range(25))), default=1 << 24)
    if low == 1 << 24:
        return None
    high = 2 * low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if slow(middle) else (low, middle)
    return low


def enough(heads: int, itemsize: float = 1.0) -> float:
    """Operations a byte above which order 2 stays bound by memory at any length: (2h + 2) a number read."""
    return (2 * heads + 2) / itemsize


def sentence(width: int, heads: int, batch: int, intensity: float) -> str:
    """Which order wins where, in words."""
    cross, slow = crossover(width, heads, batch, intensity), slower_from(SECOND, width, heads, batch, intensity)
    parts = []
    if cross is None:
        parts.append("Order 2 is faster at every length.")
    elif cross >= 1 << 20:
        parts.append("Both orders take the same time at every length.")
    else:
        parts.append(f"Up to {_tokens(cross)} order 1 is no slower; beyond that order 2 is faster.")
    need = enough(heads)
    if slow is None:
        gain = 1 / ratio(SECOND, width, heads, LENGTHS[-1], batch, intensity)
        parts.append(f"Order 2 never loses to dense here: {times(gain)} as fast at {LENGTHS[-1]:,} tokens.")
    elif (last := slower_up_to(SECOND, width, heads, batch, intensity)) is not None:
        parts.append(f"Order 2 loses to dense up to {_tokens(last)}, while so large a batch keeps the card computing.")
    else:
        parts.append(
            f"Order 2 loses to dense from {_tokens(slow)} on: it needs {sig3(need)} operations a byte and "
            f"the card has {sig3(intensity)}."
        )
    return " ".join(parts)


def _tokens(count: int) -> str:
    return f"{count:,} cached token{'' if count == 1 else 's'}"


def figure(
    width: int, heads: int, batch: int, intensity: float, measured: list[dict[str, Any]] | None = None
) -> go.Figure:
    """Time over dense's by cached length for both orders, with the losing region and what was measured.

    Args:
        width: d.
        heads: h.
        batch: sequences.
        intensity: operations a byte.
        measured: ``{order, cached, ratio: spread}`` on a CPU; drawn as points.
    """
    drawn = go.Figure()
    tops, lows = [1.2], [0.5]
    cross = crossover(width, heads, batch, intensity)
    # The lines part at the crossover, and not at the length before it.
    parts = [cross] if cross is not None and LENGTHS[0] < cross < LENGTHS[-1] else []
    lengths = sorted({*LENGTHS, *parts})
    for order, label in ORDERS.items():
        values = [ratio(order, width, heads, n, batch, intensity) for n in lengths]
        counts = [work(order, width, heads, n, batch) for n in lengths]
        tops.append(min(MOST, max(values)))
        lows.append(min(values))
        drawn.add_scatter(
            x=lengths,
            y=values,
            mode="lines",
            name=f"{label} (formula)",
            line={"color": COLOURS[order], "width": 2.5, "dash": "solid" if order == SECOND else "dash"},
            customdata=[
                [
                    times(v),
                    operations(c.operations),
                    memory(c.bytes),
                    "computing" if compute_bound(c, intensity) else "reading",
                ]
                for v, c in zip(values, counts, strict=True)
            ],
            hovertemplate=f"<b>{label}</b>, %{{x:,}} cached<br>%{{customdata[0]}} dense's time, bound by "
            "%{customdata[3]}<br>%{customdata[1]}, %{customdata[2]} read a layer<extra></extra>",
        )
        points = [m for m in measured or [] if m["order"] == order]
        if points:
            middles = [p["ratio"]["median"] for p in points]
            tops += [p["ratio"]["p90"] for p in points]
            lows += [p["ratio"]["p10"] for p in points]
            drawn.add_scatter(
                x=[p["cached"] for p in points],
                y=middles,
                mode="markers",
                name=f"{label} (measured on a CPU)",
                marker={"color": COLOURS[order], "size": 11, "symbol": "diamond" if order == SECOND else "square"},
                error_y={
                    "type": "data",
                    "array": [p["ratio"]["p90"] - m for p, m in zip(points, middles, strict=True)],
                    "arrayminus": [m - p["ratio"]["p10"] for p, m in zip(points, middles, strict=True)],
                    "thickness": 1.5,
                    "width": 5,
                },
                customdata=[[times(m), p["ratio"]["n"]] for m, p in zip(middles, points, strict=True)],
                hovertemplate=f"<b>{label}</b>, measured<br>%{{x:,}} cached: %{{customdata[0]}} dense's time "
                "(n=%{customdata[1]})<extra></extra>",
            )
    top, bottom = max(tops) * 1.15, min(lows) / 1.15
    drawn.add_hrect(y0=1, y1=top, fillcolor=LOSES, line_width=0, layer="below")
    drawn.add_hline(y=1, line={"dash": "dot", "width": 1, "color": QUIET})
    quiet_text = {"showarrow": False, "font": {"color": QUIET, "size": 12}}
    drawn.add_annotation(x=1, y=1, xref="paper", yref="paper", xanchor="right", text="slower than dense", **quiet_text)
    for cross in parts:
        drawn.add_vline(x=cross, line={"dash": "dash", "width": 1, "color": QUIET})
        at = {"x": math.log10(cross), "y": 0, "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
        drawn.add_annotation(**at, text=f" order 1 falls behind from {cross:,}", **quiet_text)
    drawn.update_xaxes(
        type="log", title="Cached tokens", tickvals=LENGTHS[::2], ticktext=[f"{n:,}" for n in LENGTHS[::2]]
    )
    ticks = [n for n in TICKS if bottom <= n <= top]
    drawn.update_yaxes(
        type="log",
        title="Time of a decoded token over dense's",
        range=[math.log10(bottom), math.log10(top)],
        tickvals=ticks,
        ticktext=[f"{n:g}" for n in ticks],
    )
    return quiet(drawn, height=400)
