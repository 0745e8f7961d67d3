"""Models trained from nothing: their results in one record, and the table of docs/results.md that is made from it.

    python -m focus_core run experiments/scratch.toml --workers 3 --results build/scratch      trains and measures
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
from focus_core.experiments.plan import RECORD as TRAINED
from focus_core.jobs.files import read_json, write_json

PLAN, RECORD, PAGE = Path("experiments/scratch.toml"), Path("data/results/scratch.json"), Path("docs/results.md")
WORK = Path("build/experiments")
BEGIN, END = "<!-- made by python -m data.build.scratch table -->", "<!-- end -->"
_RUN = "step tokens seconds parameters adapter_parameters precision log losses"
_MEASURED = "text context windows tokens served ppl ppl_se dense_ppl nll_diff nll_se kept_pairs leak flips dtype"


def pack(results: Path, plan: Path = PLAN, work: Path = WORK) -> dict[str, Any]:
    """Everything that was trained and measured, run by run in the plan's order, and the names of what was not.

    Args:
        results: folder of the measurements.
        plan: the experiment file.
        work: folder of the models, whose training records tell of those that nobody measured.
    """
    document = tomllib.loads(plan.read_text(encoding="utf-8"))
    tasks = read_plan([plan], WORK, results)
    found = {task.name: read_json(task.place) for task in tasks if task.asked is None}
    models = [task for task in tasks if task.asked is not None]
    runs, environment = [], None
    for line in document["line"]:
        for seed in line.get("seeds", [0]):
            name = line["name"] + (f"-s{seed}" if seed else "")
            model = next(task for task in models if task.name == f"{PRETRAIN}-{name}")
            own = [t for t in tasks if t.needs is model and found[t.name] is not None]
            training = _training(model, [found[t.name] for t in own], work)
            if training is None:
                continue
            environment = environment or training["environment"]
            runs.append(_run(document["prefix"], line, seed, name, own, found))
            runs[-1]["training"] = {"command": training["command"]}
            runs[-1]["training"] |= {key: training[key] for key in _RUN.split() if key in training}
            runs[-1].setdefault("config", training.get("settings", {}).get("config"))
    trained = {(run["line"], run["seed"]) for run in runs}
    about = {
        "about": " ".join(document["about"].split()),
        "command": f"python -m focus_core run {plan} --results build/scratch",
        "recipe": document[PRETRAIN],
        "environment": {key: value for key, value in (environment or {}).items() if key != "time"},
        "time": (environment or {}).get("time"),
        "planned": {"models": len(models), "measurements": len(found)},
        "made": {"models": len(trained), "measurements": sum(one is not None for one in found.values())},
        "not_trained": [
            line["name"] + (f"-s{seed}" if seed else "")
            for line in document["line"]
            for seed in line.get("seeds", [0])
            if (line["name"], seed) not in trained
        ],
        "not_made": [name for name, one in found.items() if one is None],
    }
    return about | {"lines": lines(runs), "runs": runs}


def _training(model: Task, measured: list[dict[str, Any]], work: Path) -> dict[str, Any] | None:
    """What is known of a model's training: its own record, or what its measurements keep of it; None: not trained."""
    record = read_json(work / model.place.name / TRAINED)
    if record is not None and record["step"] == record["settings"]["steps"]:
        return record | {"command": model.command}
    # The curve stands in one measurement of a model.
    known = sorted(measured, key=lambda one: "log" in one["training"])
    return known[-1]["training"] | {"environment": known[-1]["environment"]} if known else None


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
        else:
            told |= {key: _short(one[key]) for key in _MEASURED.split()}
        run[RECALL if task.arguments[0] == RECALL else "measured"].append(told)
        run["config"] = run.get("config", one["config"])
    return run


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def lines(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means of every line and set of settings, each ``{"mean": m, "sd": s, "seeds": n}``, s None for one seed.

    ``validation`` is the training's own last measurement, as served. Copies are told of the longest distance, hidden
    pairs as means over depths; ``saved`` is in nats a token, against the control.
    """
    far = max((where for run in runs for one in run[RECALL] for where in one["text"]), key=int, default="")
    found = []
    for name in dict.fromkeys(run["line"] for run in runs):
        own = [run for run in runs if run["line"] == name]
        for label in dict.fromkeys(one["set"] for run in own for one in run["measured"]) or ("served",):
            found.append(_line(name, label, own, far))
    return found


def _line(name: str, label: str, runs: list[dict[str, Any]], far: str) -> dict[str, Any]:
    measured = [one for run in runs for one in run["measured"] if one["set"] == label]
    asked = [one for run in runs for one in run[RECALL] if one["set"] == label]

    served = all(one["served"] for one in measured)
    logs = [run["training"]["log"] for run in runs if served and run["training"].get("log")]

    def of(text: str, field: str) -> dict[str, Any]:
        return _spread([one[field] for one in measured if one["text"] == text])

    return {
        "line": name,
        "set": label,
        "seeds": len(runs),
        "served": served,
        "kept_pairs": of("persuasion", "kept_pairs"),
        "validation": _spread([log[-1]["served_ppl"] for log in logs]),
        "persuasion": of("persuasion", "ppl"),
        "brown_fiction": of("brown fiction", "ppl"),
        "dense_persuasion": of("persuasion", "dense_ppl"),
        "distance": int(far) if far else None,
        "copied": _spread([one["random"][far]["right"] for one in asked]),
        "copied_control": _spread([one["random"][far]["right_control"] for one in asked]),
        "text_saved": _spread([one["text"][far]["control"] - one["text"][far]["nll"] for one in asked]),
        "pair_saved": _spread(
            [statistics.fmean(p["control"] - p["nll"] for p in one["pairs"].values()) for one in asked]
        ),
    }


def _spread(values: list[float]) -> dict[str, Any]:
    sd = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": _short(statistics.fmean(values)) if values else None, "sd": _short(sd), "seeds": len(values)}


def table(record: dict[str, Any]) -> str:
    """A row for every line, in Markdown: means over seeds, with the standard deviation where there are several.

    A mean of fewer seeds than were trained says of how many.
    """
    rows = record["lines"]
    far = max((row["distance"] or 0 for row in rows), default=0)
    head = (
        "attention",
        "seeds",
        "pairs kept",
        "validation slice",
        "*Persuasion*",
        "Brown's fiction",
        "the same weights, dense",
        f"random copy, {far} back: right (control)",
        f"text copy, {far} back: nats saved a token",
        "hidden pair: nats saved",
    )
    told = [head, tuple("---" for _ in head), *(_cells(row, rows) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in told)


def _cells(row: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[str, ...]:
    several = sum(other["line"] == row["line"] for other in rows) > 1
    seeds = row["seeds"]
    control = _shown(row["copied_control"] | {"sd": None, "seeds": seeds}, seeds, 1, share=True)
    return (
        row["line"] + (f", {row['set']}" if several else ""),
        str(seeds),
        _shown(row["kept_pairs"] | {"sd": None, "seeds": seeds}, seeds, 1, share=True),
        _shown(row["validation"], seeds) if row["served"] else "not as served",
        _shown(row["persuasion"], seeds),
        _shown(row["brown_fiction"], seeds),
        _shown(row["dense_persuasion"], seeds),
        _shown(row["copied"], seeds, 1, share=True) + (f" ({control})" if row["copied"]["seeds"] else ""),
        _shown(row["text_saved"], seeds, 3),
        _shown(row["pair_saved"], seeds, 3),
    )


def _shown(value: dict[str, Any], seeds: int, digits: int = 2, share: bool = False) -> str:
    if value["mean"] is None:
        return "not measured"
    scale, unit = (100, " %") if share else (1, "")
    numbers = [f"{scale * part:.{digits}f}" for part in (value["mean"], value["sd"]) if part is not None]
    few = f" ({value['seeds']} of {seeds})" if value["seeds"] < seeds else ""
    return " ± ".join(numbers) + unit + few


def partial(record: dict[str, Any]) -> str:
    """One paragraph on how much of the plan the record holds; empty where it holds all."""
    if not record["not_made"]:
        return ""
    planned, made = record["planned"], record["made"]
    bare = [run["line"] + (f"-s{run['seed']}" if run["seed"] else "") for run in record["runs"]]
    bare = [name for name, run in zip(bare, record["runs"], strict=True) if not run["measured"] and not run[RECALL]]
    told = [
        f"Partial: {made['models']} of {planned['models']} models were trained, and {made['measurements']} of "
        f"{planned['measurements']} measurements made."
    ]
    told += [f"Not trained: {', '.join(record['not_trained'])}."] if record["not_trained"] else []
    told += [f"Trained, but measured on the validation slice alone: {', '.join(bare)}."] if bare else []
    told.append("`not_made` in the record names every measurement that is missing; (1 of 3): of one seed of three.")
    return " ".join(told)


def section(record: dict[str, Any]) -> str:
    """The table with what a reader must know of it."""
    recipe = record["recipe"]
    tokens = recipe["steps"] * recipe["batch"] * recipe["context"]
    missing = partial(record)
    return "\n".join(
        [
            BEGIN,
            "",
            f"Models of the shape of `data/models/gpt2-novels` (3.7 M weights) trained from nothing through each "
            f"attention: {recipe['steps']} steps of {recipe['batch']} windows of {recipe['context']:,} tokens "
            f"({tokens / 1e6:.1f} M), the same texts, windows and recipe; perplexity on all whole windows of "
            f"{recipe['context']:,} tokens, fp32; means and standard deviations over seeds "
            f"({record['environment']['device']}, bf16 autocast in training). The validation slice is the end of "
            f"*Mansfield Park*, held back from training; it chose nothing.",
            "",
            *([missing, ""] if missing else []),
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
    parser.add_argument("--work", type=Path, default=WORK, help=f"folder of the models (default {WORK})")
    args = parser.parse_args()
    if args.what == "pack":
        record = pack(args.results, work=args.work)
        write_json(RECORD, record)
        print(
            f"{len(record['runs'])} runs, {len(record['not_made'])} measurements missing, {RECORD.stat().st_size:,} B"
        )
    else:
        write_section(read_json(RECORD), PAGE)


if __name__ == "__main__":
    main()
