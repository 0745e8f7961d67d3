"""What the GPU path is held to, and what was measured: one outcome a target, a missed one with where its time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from analysis.gpu_results import Row, activations_of, form_of, named, profile, shape_of
from analysis.numbers import NONE, duration, percent, times

MET, MISSED, UNMEASURED = "met", "missed", "not measured"
_MHA64 = {"heads": 12, "dim": 64}
_MHA128 = {"heads": 8, "kv": 8, "dim": 128}
_GQA = {"heads": 32, "kv": 8, "dim": 128}
_HELD_TO_MEMORY = {"focus": "Focus", "xattention": "XAttention"}
_SLIM = {"method": "slim", "phase": "decode", "tokens": 32768, "heads": 32, "dim": 128, "batch": 16}


@dataclass(frozen=True)
class Target:
    """One thing that was aimed at.

    Attributes:
        key: its short name.
        what: what is measured.
        aim: what was aimed at, in words.
        least: the number that meets it.
        wanted: values that a row must have.
        value: the number that a row has.
        most: whether ``least`` is instead the most that meets it.
        show: how its number is read.
        of: the target whose row is judged by this number too; empty for a row of its own.
    """

    key: str
    what: str
    aim: str
    least: float
    wanted: dict[str, Any]
    value: Callable[[Row], float | None] = lambda row: (row.speedup() or (None,))[0]
    most: bool = False
    show: Callable[[float | None], str] = times
    of: str = ""

    def meets(self, value: float) -> bool:
        """Whether a number is enough."""
        return value <= self.least if self.most else value >= self.least


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of a target: its state, what was measured in words, and the row behind it (None without one)."""

    target: Target
    state: str
    measured: str
    row: Row | None = None
    profile: str = field(default="")


def _focus(tokens: int, groups: int = 16, looks: int = 1, **shape: Any) -> dict[str, Any]:
    return {"method": "focus", "phase": "prefill", "tokens": tokens, "groups": groups, "looks": looks, **shape}


def _share_of_limit(row: Row) -> float | None:
    faster, limit = row.speedup(), row.limit()
    return None if faster is None or limit is None else faster[0] / limit


def _cache_ratio(row: Row) -> float | None:
    """Bytes of a cache over those of keys and values of every head in the same 16-bit type."""
    if row["cache_ratio"] is not None or row["bytes"] is None:
        return row["cache_ratio"]
    return row["bytes"] / (4 * row["batch"] * row["tokens"] * row["kv"] * row["dim"])


TARGETS = (
    Target(
        "focus-1m",
        "Focus forward, K=16 q1k1, 12 heads x 64, 1,048,576 tokens",
        "13x",
        13,
        _focus(1 << 20, **_MHA64),
    ),
    Target(
        "focus-131k-64", "Focus forward, K=16 q1k1, 12 heads x 64, 131,072 tokens", "10x", 10, _focus(131072, **_MHA64)
    ),
    Target(
        "focus-131k-128",
        "Focus forward, K=16 q1k1, 8 heads x 128, 131,072 tokens",
        "11x",
        11,
        _focus(131072, **_MHA128),
    ),
    Target("focus-32k", "Focus forward, K=16 q1k1, 12 heads x 64, 32,768 tokens", "4x", 4, _focus(32768, **_MHA64)),
    Target(
        "focus-1m-k8",
        "Focus forward, K=8 q1k1, 12 heads x 64, 1,048,576 tokens",
        "7.2x",
        7.2,
        _focus(1 << 20, 8, **_MHA64),
    ),
    Target(
        "directed",
        "Focus forward, directed, a router a KV head, 32 heads on 8 x 128, K=16 q4k1, 131,072 tokens",
        "65 % of its pair limit",
        0.65,
        _focus(131072, looks=4, **_GQA),
        _share_of_limit,
        show=percent,
    ),
    Target(
        "crossover",
        "Focus's crossover with the strongest dense, K=16 q1k1, 12 heads x 64",
        "at or below 8,192 tokens",
        8192,
        {},
        most=True,
    ),
    Target(
        "decode-16",
        "Focus decode, 32 heads on 8 x 128, 131,072 cached tokens, K=16 q1k1, batch 16",
        "8x",
        8,
        {"method": "focus", "phase": "decode", "tokens": 131072, "groups": 16, "batch": 16, **_GQA},
    ),
    Target(
        "decode-1",
        "Focus decode, 32 heads on 8 x 128, 131,072 cached tokens, K=16 q1k1, batch 1",
        "3x",
        3,
        {"method": "focus", "phase": "decode", "tokens": 131072, "groups": 16, "batch": 1, **_GQA},
    ),
    Target(
        "xattention",
        "XAttention, stride 16, threshold 0.9, 131,072 tokens, real activations, selection included",
        "70 % of 1/density",
        0.7,
        {"method": "xattention", "phase": "prefill", "tokens": 131072, "stride": 16},
        _share_of_limit,
        show=percent,
    ),
    Target(
        "xattention-select",
        "XAttention's selection, at that setting",
        "under 8 % of dense",
        0.08,
        {},
        lambda row: row.median("select_share"),
        most=True,
        show=percent,
        of="xattention",
    ),
    Target(
        "sfa-decode",
        "SFA decode, head dim 128, 16 features, 131,072 cached tokens",
        "1.4x",
        1.4,
        {"method": "sfa", "phase": "decode", "tokens": 131072, "features": 16, "dim": 128},
    ),
    Target(
        "slim-decode",
        "Slim decode, 32 heads x 128, bf16, 32,768 cached tokens, batch 16, keys without rotation",
        "1.5x",
        1.5,
        {**_SLIM, "turned": False},
    ),
    Target(
        "slim-decode-rotated",
        "Slim decode, the same with keys that are rotated when they are read",
        "1.5x",
        1.5,
        {**_SLIM, "turned": True},
    ),
    Target(
        "slim-cache",
        "Slim's cache against that of dense attention",
        "half",
        0.51,
        {},
        _cache_ratio,
        most=True,
        show=percent,
        of="slim-decode",
    ),
    Target(
        "memory",
        "Peak extra memory of Focus's and XAttention's forward",
        "2x of q, k, v and out together",
        2,
        {},
        most=True,
    ),
    Target(
        "models", "Whole models, prefill and decode at 32,768 and 131,072 tokens", "recorded", 8, {"method": "model"}
    ),
)


def outcomes(rows: Iterable[Row]) -> list[Outcome]:
    """What came of every target, by the rows of how the library computes."""
    rows = [row for row in rows if row.kept]
    special = {"crossover": _crossover, "memory": _memory, "models": _models}
    found: dict[str, Outcome] = {}
    for target in TARGETS:
        judged = rows
        if target.of:
            row = found[target.of].row
            judged = [] if row is None else [row]
        found[target.key] = special.get(target.key, _best)(target, judged)
    return list(found.values())


def _best(target: Target, rows: list[Row]) -> Outcome:
    """Of each shape and setting the row of its latest run, in whichever file, and of those the best."""
    found = [row for row in rows if _is_method(row, target.wanted) and target.value(row) is not None]
    if not found:
        return Outcome(target, UNMEASURED, NONE)
    latest: dict[tuple[str, int], str] = {}
    for row in found:
        kind = named(row), row["batch"] or 1
        latest[kind] = max(latest.get(kind, ""), row.run.time)
    pick = min if target.most else max
    last = [row for row in found if row.run.time == latest[named(row), row["batch"] or 1]]
    row = pick(last, key=lambda row: target.value(row) or 0.0)
    value = target.value(row)
    assert value is not None, "rows without it were left out"
    said = [target.show(value)]
    shown = row.speedup()
    if target.of:
        said += _of_another(row, target.key)
    elif shown is not None:
        said += [f"{times(shown[0])} against dense"] if target.show is not times else []
        if shown[1]:
            said.append("both as CUDA graphs")
            if row["speedup"] is not None:
                said.append(f"{_as_called(row, target)} as called")
        if (paper := row.against("fa2", shown[1])) is not None and row["baseline" + shown[1]] != "fa2":
            said.append(f"{times(paper)} against FlashAttention-2{_few(row, 'fa2')}")
    said += filter(None, (form_of(row), "" if target.of else activations_of(row)))
    if row.limit() is not None and not target.of:
        said.append(f"limit {times(row.limit())}")
    if row["ceiling"] is not None and target.show is times:
        said.append(f"limit by bytes {times(row['ceiling'])}")
    shapes = {(shape_of(one), one["batch"] or 1): target.value(one) or 0.0 for one in last}
    if len(shapes) > 1:
        best, worst = f"{shape_of(row)}, batch {row['batch'] or 1}", (max if target.most else min)(shapes.values())
        said.append(f"the best of {len(shapes)} shapes: {best}; the least is {target.show(worst)}")
    state = MET if target.meets(value) else MISSED
    return Outcome(target, state, "; ".join(said), row, "" if state == MET else profile(row))


def _as_called(row: Row, target: Target) -> str:
    """A target's number of the same calls without CUDA graphs."""
    limit = row.limit()
    return times(row["speedup"]) if target.show is times or not limit else percent(row["speedup"] / limit)


def _of_another(row: Row, key: str) -> list[str]:
    """What a number that is judged beside another one is a part of."""
    if key != "xattention-select":
        return []
    said = [f"{duration(row['select_ms'])} of {duration(row.baseline_ms())}, as called"] if row["select_ms"] else []
    whole = row.baseline_ms("_graph")
    if row["select_graph_ms"] is not None and whole:
        said.append(f"as CUDA graphs {percent(row['select_graph_ms'] / whole)}")
    return said


def _few(row: Row, kernel: str) -> str:
    """How often a dense kernel ran that was run less often than the rest."""
    few = (row["slow_repeats"] or {}).get(kernel)
    return "" if few is None else f" ({few} run{'s' if few > 1 else ''}, not warmed up)"


def _is_method(row: Row, wanted: dict[str, Any]) -> bool:
    rest = {key: value for key, value in wanted.items() if key != "method"}
    return row.method == wanted.get("method", row.method) and row.has(**rest)


def _crossover(target: Target, rows: list[Row]) -> Outcome:
    """The shortest measured length from which on every longer one is faster than dense, by the better way to call."""
    wanted = {"method": "focus", "phase": "prefill", "groups": 16, "looks": 1, **_MHA64}
    found = [row for row in rows if _is_method(row, wanted) and row.speedup() is not None]
    by_length: dict[int, Row] = {}
    for row in sorted(found, key=lambda row: row.run.time):
        by_length[row["tokens"]] = row
    first: Row | None = None
    for tokens in sorted(by_length, reverse=True):
        if _faster(by_length[tokens]) < 1:
            break
        first = by_length[tokens]
    if not by_length:
        return Outcome(target, UNMEASURED, NONE)
    if first is None:
        return Outcome(target, MISSED, "slower at every length measured")
    lost = [f"{n:,}" for n in sorted(by_length) if n < first["tokens"]]
    said = f"{times(_faster(first))} at {first['tokens']:,} tokens" + (f", slower at {', '.join(lost)}" if lost else "")
    eager = [n for n in sorted(by_length) if (by_length[n]["speedup"] or 0) >= 1]
    if (first.speedup() or (0, ""))[1]:
        said += f"; both as CUDA graphs. As called it is faster from {eager[0]:,} on" if eager else "; as CUDA graphs"
    state = MET if target.meets(first["tokens"]) else MISSED
    return Outcome(target, state, said, first, "" if state == MET else profile(first))


def _faster(row: Row) -> float:
    return (row.speedup() or (0.0,))[0]


def _memory(target: Target, rows: list[Row]) -> Outcome:
    found = [
        row
        for row in rows
        if row.method in _HELD_TO_MEMORY and row["phase"] == "prefill" and row["extra_over_qkvo"] is not None
    ]
    if not found:
        return Outcome(target, UNMEASURED, NONE)
    worst = max(found, key=lambda row: row["extra_over_qkvo"])
    ratio = worst["extra_over_qkvo"]
    said = f"at most {times(ratio)}: {named(worst)}, {worst['tokens']:,} tokens"
    left = [shown for method, shown in _HELD_TO_MEMORY.items() if all(row.method != method for row in found)]
    if left and target.meets(ratio):
        return Outcome(target, UNMEASURED, f"{said}; {' and '.join(left)} not measured", worst)
    return Outcome(target, MET if target.meets(ratio) else MISSED, said, worst)


def _models(target: Target, rows: list[Row]) -> Outcome:
    found = [row for row in rows if row.method == "model" and row["phase"] in ("prefill", "decode")]
    asked = {(row["model"], row["phase"], row["tokens"]) for row in found}
    if not found:
        return Outcome(target, UNMEASURED, NONE)
    state = MET if len(asked) >= target.least else MISSED
    return Outcome(target, state, f"{len(asked)} of {target.least:g} cases, in the table below", found[0])


def answer(rows: Iterable[Row]) -> str:
    """The answer in one sentence: the most that was gained and where, what its pairs allow, and where it loses."""
    wanted, rows = {"method": "focus", "phase": "prefill", "groups": 16, "looks": 1, **_MHA64}, list(rows)
    found = [row for row in rows if row.kept and _is_method(row, wanted) and row["speedup"] is not None]
    if rows and not found:
        return "Focus's forward is not recorded on a GPU here: python -m benchmarks.gpu_focus --json FILE measures it."
    if not found:
        return "Nothing is recorded of a GPU here: python -m benchmarks.gpu_focus --json FILE measures it."
    best = max(found, key=lambda row: row["speedup"])
    slow = [row["tokens"] for row in found if row["speedup"] < 1]
    said = (
        f"On an {best.run.card}, Focus with 16 groups computes {times(best.limit())} fewer pairs at {best['tokens']:,} "
        f"tokens, and is {times(best['speedup'])} as fast as the fastest dense kernel ({best.baseline()})"
    )
    if not slow:
        return f"{said}."
    kept = [row["tokens"] for row in found if row["speedup_graph"] is not None and row["speedup_graph"] < 1]
    graphs = {row["tokens"] for row in found if row["speedup_graph"] is not None}
    if max(slow) in kept or max(slow) not in graphs:
        rest = ""
    else:
        rest = f", as a CUDA graph up to {max(kept):,}" if kept else ", except as a CUDA graph"
    return f"{said}; up to {max(slow):,} tokens it is slower{rest}."
