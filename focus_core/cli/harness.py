"""``harness``: a model with a variant on tasks of EleutherAI's lm-evaluation-harness."""

from __future__ import annotations

import argparse
from typing import Any

from focus_core.cli.options import add_model, add_variant, choose_variant, load, load_adapter_of
from focus_core.cli.output import bar, pairs, rows, settings_text
from focus_core.errors import InvalidInput

SUMMARY = "run a model with a variant under lm-evaluation-harness (requirements-eval.txt), on its tasks or a local file"


def configure(parser: argparse.ArgumentParser) -> None:
    """The harness's own options have its names where there are such."""
    add_model(parser)
    add_variant(parser)
    parser.add_argument(
        "--tasks",
        nargs="+",
        required=True,
        metavar="NAME_OR_YAML",
        help="tasks of the harness (hellaswag, arc_easy, ...; their data comes over the network), or YAML files",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="the first N questions of each task (default: all)")
    parser.add_argument("--num-fewshot", type=int, metavar="N", help="examples shown first (default: the task's own)")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="requests that run together (default 1)")
    parser.add_argument("--context", type=int, metavar="N", help="tokens read at most (default: the model's limit)")
    parser.add_argument("--dense", action="store_true", help="measure the unchanged model on the same questions too")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure.

    Raises:
        InvalidInput: a number that cannot be, or no such task.
        NotAvailable: the harness or a task's data is not here.
    """
    for name, least in (("limit", 1), ("batch", 1), ("context", 2), ("num_fewshot", 0)):
        if (given := getattr(args, name)) is not None and given < least:
            raise InvalidInput(f"--{name.replace('_', '-')} is {given}.", f"It can be {least} or more.")
    variant, folder = choose_variant(args)
    from focus_core.evaluation.harness import check_installed, run_harness

    check_installed()
    loaded = load(args, bar())
    adapter = load_adapter_of(folder, loaded.model)
    options = {"limit": args.limit, "shots": args.num_fewshot, "batch": args.batch, "context": args.context}
    found = run_harness(loaded, variant, adapter, args.tasks, **options, beside_dense=args.dense)
    return {**found, "adapter": args.adapter}


def table(document: dict[str, Any]) -> str:
    """Every metric of every task, beside its standard error and dense."""
    d = document
    body = []
    for name, task in d["tasks"].items():
        for metric, value in task["metrics"].items():
            if not metric.endswith("_stderr"):
                error = task["metrics"].get(f"{metric}_stderr")
                body.append([name, task["questions"], metric, value, error, (task["dense"] or {}).get(metric)])
    about = [
        ("model", f"{d['model']} (up to {d['context']:,} tokens)"),
        ("variant", f"{d['variant']} ({settings_text(d['config'])}), adapter {d['adapter'] or 'none'}"),
        ("harness", f"lm-evaluation-harness {d['harness']}, {d['seconds']} s"),
    ]
    return rows(["task", "questions", "metric", "value", "se", "dense"], body) + "\n" + pairs(about)
