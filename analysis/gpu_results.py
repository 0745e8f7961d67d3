"""What was measured on a GPU, whichever benchmark wrote it: rows that know where they come from.

A document is what ``benchmarks.gpu_record`` writes; its rows are read by the names of their fields, so that a new one
shows by being there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from analysis.numbers import NONE, duration, percent, sig3, times
from focus_core.evaluation.sources import code_changed

_KERNELS = {
    "cudnn": "cuDNN",
    "fa2": "FlashAttention-2",
    "fa4": "flash-attn-4",
    "math": "torch's plain operations",
    "torch": "torch's own choice",
    "sdpa": "torch's own choice",
}
_FORMED = {"packed": "query heads as queries", "padded": "padded values"}
SUFFIXES = ("", "_graph")
"""As the library is called, and the same calls replayed as one CUDA graph."""
_FORMS = {"own": "as published", "before": "as served"}
_METHODS = {"focus": "Focus", "xattention": "XAttention", "sfa": "SFA", "slim": "Slim", "mla": "MLA"}
_DESIGNS = {
    "absorbed_torch": "absorbed, by torch's products",
    "triton": "Triton's kernels",
    "groups by flash": "group pass by flash-attn-4",
    "groups by triton": "group pass by Triton",
}
STAGES = {
    "plan": "plan",
    "gather": "gather",
    "group_pass": "group pass",
    "near_pass": "window pass and merge",
    "merge": "merge",
    "select": "selection",
    "attend": "attention",
}


@dataclass(frozen=True, eq=False)
class Run:
    """One command: its file, when it ran, on what, of which code, and whether that code has changed since.

    ``checks`` are those of its file: how many hold, of how many, and the commands that made them where others did.
    """

    file: str
    command: str
    time: str
    environment: dict[str, Any]
    source_hash: str
    changed: bool | None
    why: dict[str, str]
    checks: tuple[int, int, tuple[str, ...]] = (0, 0, ())

    @property
    def date(self) -> str:
        """The day."""
        return self.time[:10]

    @property
    def card(self) -> str:
        """The GPU as people call it."""
        return str(self.environment.get("device", ""))

    def versions(self) -> str:
        """Driver and packages, in one line."""
        named = {"driver": "driver", "torch": "torch", "triton": "Triton", "flash_attn_4": "flash-attn-4"}
        found = {shown: self.environment.get(key) for key, shown in named.items()}
        return ", ".join(f"{shown} {value}" for shown, value in found.items() if value)


@dataclass(frozen=True, eq=False)
class Row:
    """One measured row: its ``values`` by name, and the run that it came from."""

    values: dict[str, Any]
    run: Run

    def __getitem__(self, name: str) -> Any:
        """A value; None where the row has none of that name."""
        return self.values.get(name)

    @property
    def method(self) -> str:
        """What was measured: ``focus`` unless the row says otherwise."""
        return str(self.values.get("method", "focus"))

    @property
    def kept(self) -> bool:
        """Whether this is how the library computes, and no design that was tried beside it."""
        return bool(self.values.get("kept", True))

    def median(self, name: str) -> float | None:
        """The median of a spread, or the number itself."""
        value = self.values.get(name)
        return value["median"] if isinstance(value, dict) else value

    def has(self, **wanted: Any) -> bool:
        """Whether the row has all these values; a batch and looks that are not named are 1."""
        usual = {"batch": 1, "looks": 1}
        return all(self.values.get(name, usual.get(name)) == value for name, value in wanted.items())

    def speedup(self) -> tuple[float, str] | None:
        """Times faster than the fastest dense kernel, by the better way to call both, and that way's suffix."""
        found = [(self.values[f"speedup{s}"], s) for s in SUFFIXES if self.values.get(f"speedup{s}") is not None]
        return max(found, default=None)

    def limit(self) -> float | None:
        """Times faster that the kept pairs alone would give: the inverse of their share."""
        density = self.values.get("density")
        return self.values.get("pair_limit") or (1 / density if density else None)

    def against(self, kernel: str, suffix: str = "") -> float | None:
        """Times faster than one dense kernel."""
        return self.values.get(f"against_{kernel}{suffix}")

    def baseline(self, suffix: str = "") -> str:
        """The fastest dense kernel's name."""
        name = str(self.values.get(f"baseline{suffix}") or self.values.get("baseline") or "")
        return kernel_name(name)

    def baseline_ms(self, suffix: str = "") -> float | None:
        """Milliseconds of the fastest dense kernel."""
        name = self.values.get(f"baseline{suffix}") or self.values.get("baseline")
        return self.median(f"{name}{suffix}_ms") or self.median(f"baseline_ms{suffix}") or self.median("dense_ms")


def kernel_name(name: str) -> str:
    """A dense kernel as people call it: ``cuDNN``, ``FlashAttention-2 (query heads as queries)``."""
    if name in _KERNELS:
        return _KERNELS[name]
    own, _, form = name.rpartition("_")
    if own not in _KERNELS:
        return name
    return f"{_KERNELS[own]} ({f'{form} splits' if form.isdigit() else _FORMED.get(form, form)})"


def is_of_a_gpu(document: dict[str, Any]) -> bool:
    """Whether a document has rows that one of the benchmarks measured on a GPU; what ``bench`` writes has no about."""
    where, rows = document.get("environment"), document.get("rows")
    on_a_card = isinstance(where, dict) and bool(where.get("driver"))
    return on_a_card and isinstance(rows, list) and isinstance(document.get("about"), str)


def rows_of(documents: Iterable[dict[str, Any]]) -> list[Row]:
    """Every row of the documents that are of a GPU, with its run: rows that name a command are that run's.

    A command that ran twice has two runs, told apart by their time. Rows of no length that were timed are left out.
    """
    found: list[Row] = []
    for document in filter(is_of_a_gpu, documents):
        rows = [values for values in document["rows"] if _has_a_length(values)]
        ran = [(run["command"], run["environment"]) for run in document.get("runs") or []]
        runs, exact = dict(ran), {(command, where.get("time")): where for command, where in ran}
        changed, made = code_changed(document), {}
        timed = {str(values.get("command") or document.get("command") or "") for values in rows}
        others = tuple(command for command in runs if command not in timed)
        good = [bool(check.get("good")) for check in document.get("checks") or []]
        for values in rows:
            command = str(values.get("command") or document.get("command") or "")
            key = command, values.get("time")
            if key not in made:
                where = exact.get(key) or runs.get(command, document["environment"])
                made[key] = Run(
                    str(document.get("file", "")),
                    command,
                    str(where.get("time") or ""),
                    where,
                    str(document.get("source_hash") or ""),
                    changed,
                    dict(document.get("why") or {}),
                    (sum(good), len(good), others),
                )
            found.append(Row(values, made[key]))
    return found


def _has_a_length(values: Any) -> bool:
    return isinstance(values, dict) and (values.get("phase") is None or isinstance(values.get("tokens"), int))


def shape_of(row: Row) -> str:
    """Heads and their size as people read them: ``12 heads x 64``, ``32 heads on 8 x 128``."""
    heads, kv, dim = row["heads"], row["kv"], row["dim"]
    if heads is None or dim is None:
        return ""
    return f"{heads} heads x {dim}" if kv in (None, heads) else f"{heads} heads on {kv} x {dim}"


def setting_of(row: Row) -> str:
    """What a method's settings are: ``K=16 q1k1``, ``stride 16, threshold 0.9``, ``16 features``, ``rotated``."""
    if row["groups"] is not None:
        return f"K={row['groups']} q{row['looks'] or 1}k1"
    if row["stride"] is not None:
        said = [f"{name} {row[name]:g}" for name in ("stride", "threshold") if row[name] is not None]
        return ", ".join([*said, *filter(None, [form_of(row)])])
    if row["rank"] is not None:
        return f"{row['heads']} heads, rank {row['rank']}"
    if row["turned"]:
        return "rotated"
    return f"{row['features']} features" if row["features"] is not None else ""


def form_of(row: Row) -> str:
    """Whose queries choose XAttention's blocks: ``as published`` or ``as served``; empty of other methods."""
    return _FORMS.get(str(row["form"] or ""), "")


def named(row: Row) -> str:
    """Method, heads and settings in one line."""
    return ", ".join(filter(None, (method_of(row), shape_of(row), setting_of(row))))


def method_of(row: Row) -> str:
    """The method as people call it."""
    return _METHODS.get(row.method, row.method)


def design_of(row: Row) -> str:
    """A design that was tried, in words: ``tile 32, stages 4, teams 1``."""
    name = str(row["design"] or NONE)
    sizes = re.fullmatch(r"\w+Plan\((.*)\)", name)
    return sizes[1].replace("=", " ") if sizes else _DESIGNS.get(name, name)


def activations_of(row: Row) -> str:
    """Which layers' own activations a row is of, and how positions past the model's are read; empty of random ones."""
    if row["layers"] is None or row["rope"] is None:
        return ""
    return (
        f"mean of {row['layers']} layers of {row['activations']}, positions: {row['rope'].removesuffix(' positions')}"
    )


def training_of(row: Row) -> str:
    """What was trained: ``a layer, 9 heads on 3 x 64, K=16 q4k1``."""
    steps = f"a step of {row['layers']} layers" if row["layers"] is not None else "a step"
    return ", ".join(filter(None, (steps if row["what"] == "step" else "a layer", shape_of(row), setting_of(row))))


def chunks_of(row: Row) -> str:
    """Time and memory of the chunks that trained before: why they could not run, where they could not."""
    time, extra = row.median("chunked_ms"), row["chunked_extra_mb"]
    if time is None:
        return str((row["not_run"] or {}).get("chunked", NONE))
    return ", ".join([duration(time), *([f"{sig3(extra)} MiB"] if extra is not None else [])])


def stages_of(row: Row) -> dict[str, float]:
    """Milliseconds of each stage, as people call it, in the order that they run: as CUDA graphs where timed so."""
    found = row["stages_ms"] or {}
    if row["select_graph_ms"] is not None and (whole := row.median("ms_graph")) is not None:
        found = {"select": row["select_graph_ms"], "attend": whole - row["select_graph_ms"]}
    named = {STAGES[key]: found[key] for key in STAGES if key in found}
    rest = {key.replace("_", " "): value for key, value in found.items() if key not in STAGES}
    medians = {name: v["median"] if isinstance(v, dict) else v for name, v in (named | rest).items()}
    return {name: ms for name, ms in medians.items() if ms is not None}


def with_kernel_starts(row: Row) -> bool:
    """Whether a row's stages were timed as they are called, starting kernels included: XAttention's without graphs."""
    return row.method == "xattention" and row["select_graph_ms"] is None


def profile(row: Row) -> str:
    """Where a row's time goes, in one sentence; empty where nothing says."""
    stages = stages_of(row)
    whole = sum(stages.values())
    said = []
    if whole and len(stages) > 1:
        said.append(", ".join(f"{name} {percent(ms / whole)}" for name, ms in stages.items()) + " of the stages' time")
    if row["tflops"] is not None:
        said.append(f"{sig3(row['tflops'])} TFLOP/s on the kept pairs")
    if row["kept_gb_per_s"] is not None:
        said.append(f"{sig3(row['kept_gb_per_s'])} GB/s of kept keys and values")
    if row.limit() is not None:
        said.append(f"the pairs alone would give {times(row.limit())}")
    return "; ".join(said)


def dense_kernels(rows: Iterable[Row]) -> list[str]:
    """The dense kernels that were timed beside the forwards of one attention layer."""
    found = {name for row in rows if row["phase"] == "prefill" and row.method != "model" for name in row.values}
    return [shown for name, shown in _KERNELS.items() if f"{name}_ms" in found]


def baseline(row: Row) -> str:
    """The fastest dense kernel with its time, and the row's own."""
    suffix = (row.speedup() or (0.0, ""))[1]
    own, dense = row.median(f"ms{suffix}") or row.median("ms"), row.baseline_ms(suffix)
    return f"{row.baseline(suffix)} {duration(dense)}, own {duration(own)}"


def repeats(row: Row) -> str:
    """How often a row ran, and between which times eight of ten runs were: ``7 (4.25 ms to 4.46 ms)``."""
    found = row.values.get(f"ms{(row.speedup() or (0.0, ''))[1]}")
    count = found.get("n", row["repeats"]) if isinstance(found, dict) else row["repeats"]
    if count is None or not isinstance(found, dict) or "p10" not in found:
        return NONE if count is None else str(count)
    return f"{count} ({duration(found['p10'])} to {duration(found['p90'])})"


def error(row: Row) -> str:
    """The relative error against double precision."""
    found = row.median("error")
    return NONE if found is None else f"{found:.1e}"


def extra_memory(row: Row) -> str:
    """Peak memory beyond the inputs and the output."""
    size, ratio = row["extra_mb"], row["extra_over_qkvo"]
    shown = f"{times(ratio)} of q, k, v, out" if ratio is not None else ""
    if size is None:
        return shown or NONE
    return f"{sig3(size)} MiB" + (f" ({shown})" if shown else "")
