"""Models trained from nothing: their results in one record, and the table of docs/results.md that is made from it.

    python -m focus_core run experiments/scratch.toml --workers 6 --results build/scratch      trains and measures
    python -m data.build.scratch pack --results build/scratch     what is there, in data/results/scratch.json
    python -m data.build.scratch table                            the table in docs/results.md, from that record

Run from the root of the project.
"""

from __future__ import annotations

import argparse
import statistics
import tomllib
from pathlib import Path
from typing import Any

from focus_core.experiments.plan import PRETRAIN, RECALL, Task, read_plan
from focus_core.jobs.files import read_json, write_json

PLAN, RECORD, PAGE = Path("experiments/scratch.toml"), Path("data/results/scratch.json"), Path("docs/results.md")
BEGIN, END = "<!-- made by python -m data.build.scratch table -->", "<!-- end -->"
_RUN = "step tokens seconds parameters adapter_parameters precision log losses"
_MEASURED = "text context windows tokens served ppl ppl_se dense_ppl nll_diff nll_se kept_pairs leak flips dtype"


def pack(results: Path, plan: Path = PLAN, work: Path = Path("build/experiments")) -> dict[str, Any]:
    """Everything that was measured, run by run in the plan's order, and the names of what was not."""
    document = tomllib.loads(plan.read_text(encoding="utf-8"))
    tasks = read_plan([plan], work, results)
    found = {task.name: read_json(task.place) for task in tasks if task.asked is None}
    missing = [name for name, value in found.items() if value is None]
    runs, environment = [], None
    for line in document["line"]:
        for seed in line.get("seeds", [0]):
            name = line["name"] + (f"-s{seed}" if seed else "")
            own = [t for t in tasks if t.needs is not None and t.needs.name == f"{PRETRAIN}-{name}"]
            own = [t for t in own if found[t.name] is not None]
            if not own:
                continue
            environment = environment or found[own[0].name]["environment"]
            runs.append(_run(document["prefix"], line, seed, name, own, found))
    about = {
        "about": " ".join(document["about"].split()),
        "command": f"python -m focus_core run {plan} --results build/scratch",
        "recipe": document[PRETRAIN],
        "environment": {key: value for key, value in (environment or {}).items() if key != "time"},
        "time": (environment or {}).get("time"),
        "not_made": missing,
    }
    return about | {"runs": runs}


def _run(
    prefix: str, line: dict[str, Any], seed: int, name: str, own: list[Task], found: dict[str, Any]
) -> dict[str, Any]:
    run: dict[str, Any] = {"line": line["name"], "seed": seed, "variant": line["variant"], "measured": [], RECALL: []}
    for task in own:
        one = found[task.name]
        rest = task.name.removeprefix(f"{prefix}-{name}-")
        label = next((label for label in line.get("sets", {}) if rest.startswith(f"{label}-")), "served")
        told: dict[str, Any] = {"set": label}
        if task.arguments[0] == RECALL:
            told |= {key: one[key] for key in ("random", "text", "pairs", "count", "context")}
            training = one["training"]
            run["training"] = {"command": training["command"]} | {key: training[key] for key in _RUN.split()}
        else:
            told |= {key: _short(one[key]) for key in _MEASURED.split()}
        run[RECALL if task.arguments[0] == RECALL else "measured"].append(told)
        run["config"] = run.get("config", one["config"])
    return run


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def table(record: dict[str, Any]) -> str:
    """A row for every line, in Markdown: means over seeds, with the standard deviation where there are several."""
    far = max((where for run in record["runs"] for one in run[RECALL] for where in one["text"]), key=int)
    head = (
        "attention",
        "seeds",
        "pairs kept",
        "*Persuasion*",
        "Brown's fiction",
        "the same weights, dense",
        f"random copy, {far} back: right (control)",
        f"text copy, {far} back: nats saved a token",
        "hidden pair: nats saved",
    )
    rows = []
    for name in dict.fromkeys(run["line"] for run in record["runs"]):
        runs = [run for run in record["runs"] if run["line"] == name]
        labels = dict.fromkeys(one["set"] for run in runs for one in run["measured"])
        for label in labels:
            rows.append(_row(name, label, len(labels) > 1, runs, far))
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _row(name: str, label: str, several: bool, runs: list[dict[str, Any]], far: str) -> tuple[str, ...]:
    measured = [one for run in runs for one in run["measured"] if one["set"] == label]

    def of(text: str, field: str) -> list[float]:
        return [one[field] for one in measured if one["text"] == text]

    asked = [one for run in runs for one in run[RECALL] if one["set"] == label]
    kept = of("persuasion", "kept_pairs")
    copies = [100 * one["random"][far]["right"] for one in asked]
    control = [100 * one["random"][far]["right_control"] for one in asked]
    return (
        name + (f", {label}" if several else ""),
        str(len(runs)),
        f"{100 * statistics.fmean(kept):.1f} %" if kept else "",
        _spread(of("persuasion", "ppl")),
        _spread(of("brown fiction", "ppl")),
        _spread(of("persuasion", "dense_ppl")),
        f"{_spread(copies, 1)} % ({statistics.fmean(control):.1f} %)" if copies else "",
        _spread([one["text"][far]["control"] - one["text"][far]["nll"] for one in asked], 3),
        _spread([statistics.fmean(p["control"] - p["nll"] for p in one["pairs"].values()) for one in asked], 3),
    )


def _spread(values: list[float], digits: int = 2) -> str:
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def section(record: dict[str, Any]) -> str:
    """The table with what a reader must know of it."""
    recipe = record["recipe"]
    tokens = recipe["steps"] * recipe["batch"] * recipe["context"]
    missing = f" Not made: {', '.join(record['not_made'])}." if record["not_made"] else ""
    return "\n".join(
        [
            BEGIN,
            "",
            f"Models of the shape of `data/models/gpt2-novels` (3.7 M weights) trained from nothing through each "
            f"attention: {recipe['steps']} steps of {recipe['batch']} windows of {recipe['context']:,} tokens "
            f"({tokens / 1e6:.1f} M), the same texts, windows and recipe; perplexity on all whole windows of "
            f"{recipe['context']:,} tokens, fp32; means and standard deviations over seeds "
            f"({record['environment']['device']}, bf16 autocast in training).{missing}",
            "",
            table(record),
            "",
            f"`{record['command']}`, then `python -m data.build.scratch pack --results build/scratch` (`{RECORD}`).",
            "",
            END,
        ]
    )


def write_section(record: dict[str, Any], page: Path) -> None:
    """Put the section in place of the one that is there, or before the times."""
    text = page.read_text(encoding="utf-8")
    if BEGIN in text:
        before, rest = text.split(BEGIN, 1)
        after = rest.split(END, 1)[1]
    else:
        before, after = text.split("## Times on a CPU", 1)
        before, after = before + "## From scratch\n\n", "\n\n## Times on a CPU" + after
    page.write_text(before + section(record) + after, encoding="utf-8")


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["pack", "table"])
    parser.add_argument("--results", type=Path, default=Path("build/scratch"), help="folder of the run's results")
    args = parser.parse_args()
    if args.what == "pack":
        record = pack(args.results)
        write_json(RECORD, record)
        print(
            f"{len(record['runs'])} runs, {len(record['not_made'])} measurements missing, {RECORD.stat().st_size:,} B"
        )
    else:
        write_section(read_json(RECORD), PAGE)


if __name__ == "__main__":
    main()
