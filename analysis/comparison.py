"""What a comparison result says: its rows as a table, where a variant loses, and the answer in one sentence.

A result is what ``focus_core.benchmark.comparison.compare`` returns, or what of it has arrived so far.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from analysis.numbers import duration, memory, operations, percent, sig3, times, with_spread
from analysis.timing import SLOWER, UNCLEAR, line_verdict, too_close, verdict

if TYPE_CHECKING:
    import pandas as pd

ENOUGH_TOKENS = 200
BADGES = {
    "live": "Measured now, on this machine and text.",
    "recorded": "Measured before and shipped with the app; the caption says when, on what and by which command.",
    "partial": "The run was stopped or is still going: some repeats or lines are missing.",
    "leaks": "An output can depend on later tokens, so its perplexity is not one that generation could reach.",
    "not served": "Decoding never runs this function: its quality is shown, its speed would mean nothing.",
    "masked dense": "Every pair is computed and some are then hidden: nothing is saved.",
    "dense by definition": "The text is no longer than window + sinks, so every pair is kept.",
    "too short to judge": f"Fewer than {ENOUGH_TOKENS} tokens were scored.",
    "slower than dense": "It took longer than dense in the same run, by more than its repeats differ.",
}


def recorded_row(document: dict[str, Any]) -> dict[str, Any] | None:
    """A row from a shipped evaluation (what ``eval`` writes); None when the document is something else."""
    if not {"variant", "ppl", "nll_diff", "kept_pairs"} <= document.keys():
        return None
    if document["variant"] == "dense" and not document.get("adapter_name"):
        return None
    return {
        "key": str(document.get("file", document["variant"])),
        "label": document["variant"],
        "variant": document["variant"],
        "config": document.get("config") or {},
        "adapter": document.get("adapter_name"),
        "served": document.get("served", True),
        "leaks": False,
        "length": document.get("context", 0),
        "scored": document.get("tokens", 0),
        "ppl": document["ppl"],
        "nll_change": document["nll_diff"],
        "nll_change_se": document.get("nll_se"),
        "ppl_change": math.expm1(document["nll_diff"]),
        "kept_pairs": document["kept_pairs"],
        "complete": True,
    }


def median(row: dict[str, Any], name: str) -> float | None:
    """The median of a measured spread; None when it was not measured."""
    return row[name]["median"] if row.get(name) else None


def scored(result: dict[str, Any], length: int | None = None) -> list[dict[str, Any]]:
    """The rows that have a perplexity, at one length or at all."""
    return [r for r in result.get("rows", []) if r.get("ppl") is not None and length in (None, r["length"])]


def lengths(result: dict[str, Any]) -> list[int]:
    """Lengths with at least one scored row."""
    return sorted({r["length"] for r in scored(result)})


def is_baseline(row: dict[str, Any]) -> bool:
    """Whether the row is dense, which the others are held against."""
    return row["variant"] == "dense" and not row.get("adapter")


def cache_a_token(row: dict[str, Any]) -> float:
    """Bytes of cache a token over all layers: measured where it was, else counted from the settings."""
    return row["cache_bytes"] / row["length"] if row.get("cache_bytes") else row["kv_bytes_per_token"]


def pairs_kept(row: dict[str, Any]) -> str:
    """Share of the causal pairs that a row keeps, or that it computes none."""
    return percent(row["kept_pairs"]) if row.get("computes_pairs", True) else "computes none"


def change_interval(row: dict[str, Any]) -> tuple[float, float] | None:
    """Perplexity change at two standard errors below and above; None when there is no error to tell."""
    error = row.get("nll_change_se")
    if error is None or not math.isfinite(error):
        return None
    return math.expm1(row["nll_change"] - 2 * error), math.expm1(row["nll_change"] + 2 * error)


def badges(row: dict[str, Any], *, recorded: bool) -> list[str]:
    """What a reader must know beside the row's numbers; each is explained in ``BADGES``."""
    found = ["recorded" if recorded else "live"]
    if not row.get("complete"):
        found.append("partial")
    if row.get("leaks"):
        found.append("leaks")
    if not row.get("served", True):
        found.append("not served")
    if row.get("masked_dense"):
        found.append("masked dense")
    if row.get("dense_by_definition"):
        found.append("dense by definition")
    if row.get("scored", ENOUGH_TOKENS) < ENOUGH_TOKENS:
        found.append("too short to judge")
    if not is_baseline(row) and verdict(row.get("ratio")) == SLOWER:
        found.append("slower than dense")
    return found


def table(result: dict[str, Any], *, recorded: bool = False) -> pd.DataFrame:
    """One line a variant and length, as people read it; spreads are the 10th to the 90th percentile."""
    # Pandas takes 0.3 s to import, and the app's first page has no table.
    import pandas as pd

    lines = []
    for row in sorted(scored(result), key=lambda r: (r["length"], not is_baseline(r))):
        interval = None if is_baseline(row) else change_interval(row)
        span = "" if interval is None else " ({} to {})".format(*(percent(v, signed=True) for v in interval))
        lines.append(
            {
                "Variant": row["label"],
                "Tokens": row["length"],
                "Badges": badges(row, recorded=recorded),
                "Pairs kept": pairs_kept(row),
                "Perplexity": sig3(row["ppl"]),
                "Against dense": NO_CHANGE if is_baseline(row) else percent(row["ppl_change"], signed=True) + span,
                "Time / dense": NO_CHANGE if is_baseline(row) else with_spread(row.get("ratio"), times),
                "Prefill": with_spread(row.get("ms"), duration),
                "Attention / dense": with_spread(row.get("attention_ratio"), times),
                "Counted attention / dense": times(row["operations"] / row["operations_dense"]),
                "Counted attention": operations(row["operations"]),
                "Peak memory": memory(row.get("peak_bytes")),
                "Cache a token": memory(cache_a_token(row)),
                "Trained": f"{row['trained']:,}" if row.get("trained") is not None else "",
                "Scored tokens": row["scored"],
                "Repeats": row["ms"]["n"] if row.get("ms") else 0,
                "Backend": row.get("backend") or "",
            }
        )
    return pd.DataFrame(lines)


NO_CHANGE = "baseline"


def speed_verdicts(result: dict[str, Any], measure: str = "ratio") -> list[str]:
    """For every timed variant, one sentence on where it is slower than dense, where faster, and where neither."""
    lines = [[r for r in line if r.get(measure)] for line in by_line(result)]
    lines = [line for line in lines if line and not is_baseline(line[0])]
    return [line_verdict(line[0]["label"], {r["length"]: r[measure] for r in line}) for line in lines]


def by_line(result: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Scored rows of each line (by key), ascending in length."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(scored(result), key=lambda r: r["length"]):
        lines.setdefault(row["key"], []).append(row)
    return list(lines.values())


def losses(result: dict[str, Any], length: int, measure: str) -> list[str]:
    """For each variant that dense beats on cost, on quality or on both at this length, one sentence.

    Args:
        result: the comparison.
        length: tokens.
        measure: ``time``, ``pairs`` or ``memory``.
    """
    said = []
    rows = scored(result, length)
    dense = next((r for r in rows if is_baseline(r)), None)
    for row in rows:
        if is_baseline(row) or not row["served"] or dense is None:
            continue
        interval = change_interval(row)
        worse = interval is not None and interval[0] > 0
        costlier = _costs_more(row, dense, measure)
        if costlier and worse:
            said.append(f"{row['label']} loses on both: {_says_cost(row, dense, measure)} and {_says_quality(row)}.")
        elif costlier:
            said.append(f"{row['label']} saves nothing here: {_says_cost(row, dense, measure)}.")
        elif worse:
            said.append(f"{row['label']} pays with quality: {_says_quality(row)}.")
    return said


def undecided(result: dict[str, Any], length: int) -> list[str]:
    """For each variant whose time cannot be told from dense's at this length, one sentence."""
    rows = [r for r in scored(result, length) if r["served"] and not is_baseline(r)]
    return [f"{r['label']}: {too_close(r['ratio'])}." for r in rows if verdict(r.get("ratio")) == UNCLEAR]


def _costs_more(row: dict[str, Any], dense: dict[str, Any], measure: str) -> bool:
    if measure == "time":
        return verdict(row.get("ratio")) == SLOWER
    own, base = cost_of(row, measure), cost_of(dense, measure)
    return own is not None and base is not None and own >= base


def _says_cost(row: dict[str, Any], dense: dict[str, Any], measure: str) -> str:
    own = cost_of(row, measure)
    if measure == "time":
        return f"{times(own)} dense's time ({times(row['ratio']['p10'])} to {times(row['ratio']['p90'])})"
    if measure == "memory":
        return f"{times(own / cost_of(dense, measure))} dense's peak memory"
    return f"{pairs_kept(row)} of the pairs"


def _says_quality(row: dict[str, Any]) -> str:
    low, high = (percent(end, signed=True) for end in change_interval(row))
    return f"{percent(row['ppl_change'], signed=True)} perplexity ({low} to {high})"


def cost_of(row: dict[str, Any], measure: str) -> float | None:
    """What a row costs: ``time`` as a share of dense's, ``pairs`` as a share, ``memory`` in bytes; None unmeasured."""
    if measure == "time":
        return median(row, "ratio")
    if measure == "memory":
        return row.get("peak_bytes")
    return row["kept_pairs"]


def counts(given: int | dict[str, int] | None) -> str:
    """A number that holds for all lengths, or one a length, as people read it."""
    if not isinstance(given, dict):
        return str(given)
    return ", ".join(f"{count} at {int(n):,} tokens" for n, count in given.items())


def was_busy(about: dict[str, Any]) -> bool:
    """Whether other work took more than half of the machine's cores when the run began."""
    cores = about.get("environment", {}).get("cores")
    return bool(cores) and about.get("load_before", 0.0) > cores / 2


def answer(result: dict[str, Any], length: int | None = None, *, recorded: bool = False) -> str:
    """The page's sentence: what the most telling variant keeps, takes and changes.

    Args:
        result: a comparison, complete or not.
        length: tokens; None for the longest length.
        recorded: whether it was measured before and shipped.
    """
    sizes = lengths(result)
    rows = [
        r
        for n in ([length] if length in sizes else sizes[-1:])
        for r in scored(result, n)
        if r["served"] and not is_baseline(r)
    ]
    if not rows:
        return "Run a comparison to see what each variant keeps, how long it takes and what it does to perplexity."
    row = next((r for r in rows if r["variant"] == "focus"), rows[0])
    where = "On the recorded text" if recorded else "On this text"
    time = median(row, "ratio")
    takes = f"takes {times(time)} dense's time" if time is not None else "has not been timed yet"
    if verdict(row.get("ratio")) == UNCLEAR:
        takes += f", {too_close(row['ratio'])},"
    interval = change_interval(row)
    spread, judged = f"{row['scored']:,} tokens scored", ""
    if interval is not None:
        spread = f"{percent(interval[0], signed=True)} to {percent(interval[1], signed=True)}; {spread}"
        judged = ", which is within its own error" if interval[0] <= 0 <= interval[1] else ""
    sentence = (
        f"{where} at {row['length']:,} tokens, {row['label']} keeps {percent(row['kept_pairs'])} of the pairs, {takes} "
        f"and changes perplexity by {percent(row['ppl_change'], signed=True)}{judged} ({spread})."
    )
    if row["scored"] < ENOUGH_TOKENS:
        sentence += " That is too short to judge quality."
    return sentence
