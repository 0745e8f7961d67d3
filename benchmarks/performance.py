"""``docs/performance.md``: what was aimed at on a GPU and what was measured, from the recorded results alone.

``python -m benchmarks.performance`` writes it anew; a test fails where it differs from what the results say.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from analysis import gpu_results as words
from analysis.gpu_results import Row, Run, rows_of
from analysis.gpu_targets import MISSED, Outcome, outcomes
from analysis.numbers import NONE, duration, percent, sig3, times, with_spread
from analysis.records import documents
from focus_core import assets

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
CHANGED = " (code changed since)"


class Runs:
    """Numbers the runs in the order in which the page names them."""

    def __init__(self) -> None:
        self.found: list[Run] = []

    def mark(self, row: Row | None) -> str:
        """The date and the number of a row's run."""
        if row is None:
            return NONE
        if row.run not in self.found:
            self.found.append(row.run)
        return f"{row.run.date} [{self.found.index(row.run) + 1}]{CHANGED if row.run.changed else ''}"

    def listed(self) -> list[str]:
        """One line a run."""
        return [
            f"{i}. `{run.command}`: {run.card}, {run.versions()}, {run.time}, `data/results/{run.file}`, sources "
            f"`{run.source_hash[:12]}`{CHANGED if run.changed else ''}{_checks(run)}"
            for i, run in enumerate(self.found, 1)
        ]


def _checks(run: Run) -> str:
    """How many checks of the same code hold, and what made them where another command did."""
    held, count, others = run.checks
    if not count:
        return ""
    by = f" (`{'`, `'.join(others)}`)" if others else ""
    return f"; {held} of {count} checks hold{by}"


def page(rows: Sequence[Row]) -> str:
    """The whole page."""
    runs, found = Runs(), outcomes(rows)
    kept = [row for row in rows if row.kept]
    parts = [
        "# What was measured on a GPU\n",
        "Made by `python -m benchmarks.performance` from `data/results`; every number is of a recorded run, listed at "
        "the end with its command. One card; dense is the fastest kernel of those that were timed in the same run, "
        "interleaved, medians; a ratio is the median of the ratios of neighbouring runs, so that it may differ from "
        "the quotient of the times beside it (XAttention's is of its layers' summed medians); planning, sorting, "
        "gathering, selection and merging are in the time; the error is against double precision in the same run.\n",
        "As called, the CPU starts one kernel after another; as a CUDA graph, one launch starts all of a call's "
        "kernels, and both sides of a ratio are run so. K=16 q4k1: 16 groups; a query looks into 4 of "
        "them, a key is in 1. Focus's groups are random and even, its queries, keys and values random too; with window "
        "256. XAttention as published lets a block's own queries choose what it sees; as served, those of the block "
        "before, so that no choice depends on later tokens.\n",
        _targets(found, runs),
        _missed(found),
        "## By length, and where the time goes\n",
        "The pair limit is what the kept pairs alone would give at the dense kernel's rate. Each stage is timed by "
        "itself as a CUDA graph, so that the stages leave out what starting kernels takes as called; where nothing was "
        "timed as a graph, they are as called.\n",
        _stages(kept, runs),
        *_kept(rows, runs),
        *_decode(kept, runs),
        *_needles(rows, runs),
        *_models(kept, runs),
        *_training(kept, runs),
        *_tried(rows, runs),
        "## The runs\n",
        "To repeat one, on a machine with such a card: `make setup`, `.venv/bin/pip install --pre -r "
        "requirements-gpu.txt`, then its command in this folder with `.venv/bin/python` for `python`. `--json` names "
        "the file that it writes. `python -m benchmarks.gpu_record A.json B.json --into FILE` joins parts of one "
        "version of the code, and `python -m benchmarks.performance` writes this page from `data/results`.\n",
        "\n".join(runs.listed()) + "\n",
    ]
    return "\n".join(filter(None, parts))


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines)]
    return "\n".join(rows) + "\n"


def _targets(found: list[Outcome], runs: Runs) -> str:
    head: tuple[str, ...] = ("what", "aimed at", "state", "measured", "fastest dense", "runs (8 of 10 between)")
    head += ("error", "extra memory", "run")
    lines = []
    for one in found:
        row = one.row
        # Whole models are rows of a table of their own.
        none = row is None or row.speedup() is None or row.method == "model"
        cells = [NONE] * 4 if none or row is None else _cells(row)
        lines.append((one.target.what, one.target.aim, one.state, one.measured, *cells, runs.mark(row)))
    return _table(head, lines)


def _cells(row: Row) -> list[str]:
    return [words.baseline(row), words.repeats(row), words.error(row), words.extra_memory(row)]


def _missed(found: list[Outcome]) -> str:
    """Each missed target with the reason that its result gives, and with where the time goes."""
    lines = []
    for one in found:
        if one.state == MISSED:
            reason = one.row.run.why.get(one.target.key, "") if one.row else ""
            parts = [part[:1].upper() + part[1:] for part in (reason, one.profile) if part]
            said = " ".join(part if part.endswith(".") else f"{part}." for part in parts)
            lines.append(f"- **{one.target.what}** ({one.target.aim}): {one.measured}. {said}".rstrip())
    return "\n".join(["Missed:\n", *lines, ""]) if lines else ""


def _stages(rows: list[Row], runs: Runs) -> str:
    found = [row for row in rows if row.method in ("focus", "xattention") and row["phase"] == "prefill"]
    found.sort(key=lambda row: (row.method, row["heads"], row["dim"], words.setting_of(row), row["tokens"]))
    head: tuple[str, ...] = ("what", "tokens", "ms as called", "fastest dense", "faster as called")
    head += ("faster as CUDA graphs", "pair limit", "of it as called", "as CUDA graphs", "stages", "error", "run")
    lines = []
    for row in found:
        stages = ", ".join(f"{name} {duration(ms)}" for name, ms in words.stages_of(row).items())
        stages += " as called" if stages and words.with_kernel_starts(row) else ""
        dense = f"{row.baseline()} {duration(row.baseline_ms())}"
        numbers = (f"{row['tokens']:,}", sig3(row.median("ms")), dense, times(row["speedup"]))
        limit, graph = row.limit(), row["speedup_graph"]
        shares = [percent(faster / limit) if faster and limit else NONE for faster in (row["speedup"], graph)]
        last = (stages or NONE, words.error(row), runs.mark(row))
        lines.append((words.named(row), *numbers, times(graph), times(limit), *shares, *last))
    return _table(head, lines)


def _kept(rows: Sequence[Row], runs: Runs) -> list[str]:
    """What XAttention's choice holds of dense attention, layer by layer: speed alone does not say it."""
    found = [row for row in rows if row["recall"] is not None and row["densities"]]
    if not found:
        return []
    head: tuple[str, ...] = ("tokens", "layer", "pairs kept", "attention kept", "of it in the worst head")
    head += ("output off by", "pairs kept as served", "attention kept as served", "run")
    lines = []
    for row in found:
        pairs, recall = row["densities"], row["recall_before"]
        where = (f"{row['tokens']:,}", str(row["layer"]), percent(pairs.get("own")))
        held = (percent(row["recall"]), percent(row["recall_of_worst_head"]), percent(row["change_from_dense"]))
        lines.append((*where, *held, percent(pairs.get("before")), percent(recall), runs.mark(row)))
    said = (
        "What XAttention's choice holds, on the activations that were timed: the share of dense attention's weights on "
        "the kept pairs, the mean of sampled queries of all heads, and how far the output is from dense attention's. "
        "The threshold is of the scores by which blocks are chosen, and promises no share of the weights.\n"
    )
    return [said, _table(head, lines), *filter(None, (_reads(found), *map(_ways, found)))]


def _reads(rows: Sequence[Row]) -> str:
    """How well the model whose activations these are still reads so long a text."""
    found = {row["tokens"]: row for row in rows if row["ppl_of_last_tokens"] is not None}
    if not found:
        return ""
    told = ", ".join(
        f"{sig3(row['ppl_of_last_tokens'])} at {tokens:,} tokens (positions {row['rope'].removesuffix(' positions')})"
        for tokens, row in sorted(found.items())
    )
    count = max(row["scored_tokens"] for row in found.values())
    return (
        f"The model's perplexity of the last {count:,} tokens: {told}. They are of another text at each length, so "
        "that a small rise says nothing; a large one says that the model, its positions scaled, no longer reads well.\n"
    )


def _ways(row: Row) -> str:
    """The ways of attention over the same blocks, choosing left out, where all of them were timed."""
    ways = {
        "flash": "flash-attn-4's block sparsity",
        "triton": "Triton",
        "flex": "FlexAttention",
        "flex_flash": "FlexAttention with its FLASH backend",
    }
    if not all(way in row["ms"] for way in ways):
        return ""
    told = ", ".join(f"{name} {with_spread(row['ms'][way], duration)}" for way, name in ways.items())
    return (
        f"Attention alone over the blocks of layer {row['layer']} at {row['tokens']:,} tokens, as called and without "
        f"choosing them (8 of 10 runs between): {told}. The first is what is kept.\n"
    )


def _decode(rows: list[Row], runs: Runs) -> list[str]:
    found = [row for row in rows if row["phase"] == "decode" and row.method != "model"]
    if not found:
        return []
    found.sort(key=lambda row: (words.named(row), row["tokens"], row["batch"] or 1))
    head: tuple[str, ...] = ("what", "cached tokens", "batch", "ms as called", "fastest dense", "faster as called")
    head += ("ms as a CUDA graph", "fastest dense as one", "faster as CUDA graphs", "runs", "error", "run")
    lines = [
        (
            words.named(row),
            f"{row['tokens']:,}",
            str(row["batch"] or 1),
            sig3(row.median("ms")),
            _dense(row, ""),
            times(row["speedup"]),
            sig3(row.median("ms_graph")),
            _dense(row, "_graph"),
            times(row["speedup_graph"]),
            str(row["repeats"] or NONE),
            words.error(row),
            runs.mark(row),
        )
        for row in found
    ]
    said = "One new token a sequence, against the fastest dense kernel; a dash where dense attention was not timed.\n"
    refused = {
        f"{words.kernel_name(name)} for {words.method_of(row)} ({reason})"
        for row in found
        for name, reason in (row["refused"] or {}).items()
    }
    left = f"Dense kernels that did not run: {'; '.join(sorted(refused))}.\n" if refused else ""
    return ["## Decode\n", said, _table(head, lines), left]


def _dense(row: Row, suffix: str) -> str:
    """The fastest dense kernel with its time; a dash where none was timed."""
    return f"{row.baseline(suffix)} {duration(row.baseline_ms(suffix))}" if row[f"speedup{suffix}"] else NONE


def _needles(rows: Sequence[Row], runs: Runs) -> list[str]:
    found = [row for row in rows if row["what"] == "needles"]
    if not found:
        return []
    forms = ("own", "before")
    head: tuple[str, ...] = ("tokens", "layer", "queries in a row", "needles", "kept as published")
    head += ("pairs kept as published", "kept as served", "pairs kept as served", "run")
    lines = []
    for row in found:
        where = (f"{row['tokens']:,}", str(row["layer"]), str(row["queries_in_a_row"]), str(row["needles"]))
        kept = [percent(row[f"{name}_{form}"]) for form in forms for name in ("kept", "density")]
        lines.append((*where, *kept, runs.mark(row)))
    said = (
        "One key deep in the text that holds 95 % of the weight of a query late in it, and so many queries in a row "
        "look for it: whether XAttention's choice keeps its block. A stride of S scores a lone key with 1/S of its "
        "score, so that most of it is not seen; what is not kept is lost to that query.\n"
    )
    return ["## Needles\n", said, _table(head, lines)]


def _models(rows: list[Row], runs: Runs) -> list[str]:
    found = [row for row in rows if row.method == "model" and row["phase"] is not None]
    if not found:
        return []
    head: tuple[str, ...] = ("model", "positions", "phase", "tokens", "attention by", "runs", "ms", "attention's share")
    head += ("whole model faster", "attention alone faster", "peak memory", "run")
    lines = []
    for row in found:
        by = f"{row['line']}, {words.kernel_name(row['kernel'])}" if row["kernel"] else row["line"]
        peak = f"{sig3(row['peak_gb'])} GB" if row["peak_gb"] is not None else NONE
        ratios = (times(row["speedup"]), times(row["attention_speedup"]))
        where = (f"{row['model']}, {row['weights']} weights", row["positions"], row["phase"], f"{row['tokens']:,}", by)
        own = (str(row["repeats"] or NONE), sig3(row.median("ms")), percent(row["attention_share"]))
        lines.append((*where, *own, *ratios, peak, runs.mark(row)))
    said = (
        "Batch 1, bf16, eager, one forward a token as `generate` does; no CUDA graph unless said. Attention's time is "
        "by events around it in the same runs, routing included; of a graph, what leaving attention out saves. Kernel "
        "ratios are not serving ratios: both stand here. Of decoding, every run is several tokens.\n"
    )
    said += _untried(rows, found)
    left = sorted(
        {f"- {row['model']}, {row['line']}: {row['left_out']}" for row in rows if row["left_out"] is not None}
    )
    return ["## Whole models\n", said, _table(head, lines), *(["\n".join(left) + "\n"] if left else [])]


def _untried(rows: list[Row], models: list[Row]) -> str:
    """That cuDNN is missing among the dense kernels of whole models' decoding, and how much faster it decodes alone."""
    tried = {str(row["kernel"]) for row in models if row["phase"] == "decode as a graph" and row["kernel"]}
    alone = [row for row in rows if row.method == "focus" and row["phase"] == "decode" and row.has(batch=1)]
    saved = [
        1 - cudnn / other
        for row in alone
        if (cudnn := row.median("cudnn_graph_ms")) and (other := row.median("fa2_graph_ms"))
    ]
    if not saved or any("cuDNN" in name for name in tried):
        return ""
    return (
        f"\ncuDNN, whose decoding alone takes up to {percent(max(saved))} less time than FlashAttention-2's (table "
        "above, batch 1, as graphs), is not among the dense kernels of whole models' decoding: dense may be faster "
        "there than it stands here.\n"
    )


def _training(rows: list[Row], runs: Runs) -> list[str]:
    found = [row for row in rows if row["phase"] == "training"]
    if not found:
        return []
    head: tuple[str, ...] = ("what", "gate", "tokens", "ms", "extra memory", "in chunks", "faster than chunks")
    head += ("fastest dense", "faster than dense", "error", "runs", "run")
    lines = []
    for row in found:
        gate = str(row["gate"] or NONE).replace("_", "-")
        where = (words.training_of(row), gate, f"{row['tokens']:,}")
        own = (sig3(row.median("ms")), words.extra_memory(row))
        chunks = (words.chunks_of(row), times(row["against_chunked"]))
        dense = f"{row.baseline()} {duration(row.baseline_ms())}" if row["baseline"] else NONE
        count = str((row["ms"] or {}).get("n") or NONE)
        lines.append((*where, *own, *chunks, dense, times(row["speedup"]), words.error(row), count, runs.mark(row)))
    said = (
        "What trains Focus's router, beside the chunks of plain torch that trained it before: the soft gates compute "
        "every causal pair, forward and backward, as dense attention does, and the pairs that the served mask drops "
        "too. A layer's time is attention's forward and backward, dense without a router's gradients; a step is an "
        "optimizer step of the router inside the whole model.\n"
    )
    return ["## Training\n", said, _table(head, lines)]


def _tried(rows: Sequence[Row], runs: Runs) -> list[str]:
    found = [row for row in rows if not row.kept]
    if not found:
        return []
    graph = " as a CUDA graph"
    lines = [
        (
            ", ".join(filter(None, (words.named(row), f"batch {row['batch']}" if row["batch"] else ""))),
            words.design_of(row),
            f"{row['tokens']:,}" if row["tokens"] else NONE,
            duration(row.median("ms")) if row["ms"] is not None else duration(row.median("ms_graph")) + graph,
            times((row.speedup() or (None,))[0]),
            runs.mark(row),
        )
        for row in found
    ]
    head = ("what", "design", "tokens", "time", "faster than dense", "run")
    said = (
        "What runs beside the kept designs, in the same runs; where one is faster than the kept design, what is "
        "chosen by itself is not the best one there. Slim's sizes and left-out stages are the kernel that reads the "
        "states alone, where a whole step also multiplies the query and the sum by matrices; a line that begins with "
        "“without” leaves a stage out: its result is wrong, and its time shows what that stage costs.\n"
    )
    return ["## Tried and not kept\n", said, _table(head, lines)]


def recorded(folder: Path | None = None) -> list[Row]:
    """The rows of every GPU result in a folder; the shipped ones by default."""
    return rows_of(documents(folder or assets.DATA / "results", "bench-"))


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PAGE)
    chosen = parser.parse_args()
    try:
        chosen.out.write_text(page(recorded()), encoding="utf-8")
    except OSError as problem:
        parser.exit(2, f"{chosen.out} cannot be written ({problem.strerror}).\n")


if __name__ == "__main__":
    main()
