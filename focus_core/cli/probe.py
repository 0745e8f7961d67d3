"""``probe``: what a model can do with a variant or an adapter in it, beside its training text."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from focus_core.cli.options import add_model, add_variant, choose_variant, load, load_adapter_of
from focus_core.cli.output import bar, rows, settings_text, stop_request, write_json
from focus_core.errors import InvalidInput

_FLOPS_CORE, _FLOPS_CARD = 7e10, 2e13
SUMMARY = "probe what a model can still do: other texts, minimal pairs, needles, instructions, refusal"


def configure(parser: argparse.ArgumentParser) -> None:
    """See ``focus_core/evaluation/abilities``."""
    from focus_core.evaluation.abilities.tasks import TASKS, Sizes

    usual = Sizes()
    add_model(parser)
    add_variant(parser)
    parser.set_defaults(variant=None)
    parser.add_argument("--tasks", default=",".join(TASKS), metavar="T,T", help=f"some of {', '.join(TASKS)}")
    for name, text in (
        ("pairs", "pairs of each phenomenon"),
        ("passage", "tokens of the passage before a pair or a prompt"),
        ("haystacks", "texts with needles of each length"),
        ("reply", "longest reply in tokens"),
        ("context", "tokens a window of other texts"),
        ("windows", "windows of each other text"),
        ("seed", "of pairs and needles"),
    ):
        usually = getattr(usual, name)
        parser.add_argument(f"--{name}", type=int, default=usually, metavar="N", help=f"{text} (default {usually})")
    parser.add_argument(
        "--lengths",
        default=",".join(map(str, usual.lengths)),
        metavar="N,N",
        help=f"tokens of the texts with needles (default {','.join(map(str, usual.lengths))})",
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Probe; with ``--json FILE`` finished parts are kept in FILE.partial until the end, and taken up again."""
    from focus_core.evaluation.abilities.tasks import Sizes, items_hash, units
    from focus_core.jobs.files import read_json

    tasks = [name.strip() for name in args.tasks.split(",") if name.strip()]
    names = ("pairs", "passage", "haystacks", "reply", "context", "windows", "seed")
    sizes = Sizes(lengths=_numbers(args.lengths), **{name: getattr(args, name) for name in names})
    todo = units(tasks, sizes)
    if not todo:
        raise InvalidInput("No task is named.", "Name some, such as --tasks pairs,needle.")
    # Draws all that is asked: what there is not enough of is said before a model is loaded.
    items_hash(sizes)
    args.variant = args.variant or _variant_of(args.adapter)
    variant, folder = choose_variant(args)
    progress = bar()
    loaded = load(args, progress)
    adapter = load_adapter_of(folder, loaded.model)

    from focus_core.evaluation.abilities.run import check, probe

    check(loaded, variant, tasks, sizes)
    _say_cost(args, todo, variant)
    kept = Path(f"{args.json}.partial") if args.json and args.json != "-" else None
    with stop_request() as cancel:
        found = probe(
            loaded,
            variant,
            adapter,
            tasks,
            sizes,
            progress=progress,
            cancel=cancel,
            partial=None if kept is None else lambda document: write_json(document, str(kept)),
            resume=None if kept is None else read_json(kept),
        )
    if kept is not None:
        kept.unlink(missing_ok=True)
    return {**found, "adapter_name": args.adapter}


def table(document: dict[str, Any]) -> str:
    """One row a part, then the weights' hashes."""
    d, body = document, []
    for row in d["rows"]:
        note = "dense by definition" if row["dense_by_definition"] else ""
        if row["task"] == "texts":
            said = f"perplexity {row['ppl']:.3f}, dense {row['dense_ppl']:.3f}"
            body.append([row["task"], row["part"], row["where"], said, note])
        else:
            said = f"{row['share']:.1%} of {row['of']} ({row['low']:.1%} to {row['high']:.1%})"
            body.append([row["task"], row["part"], row["where"], said, note])
    weights = d["weights"]
    same = "the same" if weights["same"] else "NOT THE SAME"
    end = [
        f"{d['model']}, {d['variant']} ({settings_text(d['config'])}), adapter {d['adapter_name'] or 'none'}",
        f"weights before, inside and after: {same} ({weights['before'][:16]}); "
        f"logits changed by {weights['logits_change']:g} afterwards",
        *d["notes"],
    ]
    return "\n".join([rows(["task", "part", "where", "result", ""], body), *end])


def _variant_of(adapter: str | None) -> str:
    """The variant that an adapter is for, where none is named: what it was trained through, or who reads its kind."""
    from focus_core.adapter import read_config
    from focus_core.cli.options import shipped_adapters
    from focus_core.variants import CHANGES_MODEL, VARIANTS

    if not adapter:
        return "dense"
    document = read_config(shipped_adapters().get(adapter, Path(adapter)))
    if document["kind"] in CHANGES_MODEL:
        return str(document["config"].get("through", "dense"))
    readers = sorted(name for name, cls in VARIANTS.items() if cls.adapter_kind == document["kind"])
    if not readers:
        raise InvalidInput(f"Nothing reads an adapter of kind {document['kind']}.", "Name a --variant.")
    return "focus" if "focus" in readers else readers[0]


def _say_cost(args: argparse.Namespace, todo: list[Any], variant: Any) -> None:
    """What the run will take, before it begins; nothing where the model's size is not known."""
    import os

    from focus_core.jobs.costs import say_count, say_seconds
    from focus_core.models.shapes import shape_of

    shape = shape_of(args.model)
    if shape is None:
        return
    cores = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    card = str(args.device or "").startswith("cuda")
    # Beside a variant dense reads the other texts too.
    alone = variant.name == "dense" and not args.adapter
    tokens = sum(unit.tokens * (2 if unit.task == "texts" and not alone else 1) for unit in todo)
    seconds = 2.0 * (shape.inner + shape.vocab * shape.hidden) * tokens / (_FLOPS_CARD if card else _FLOPS_CORE * cores)
    where = "a GPU" if card else say_count(cores, "cores")
    print(f"{len(todo)} parts, about {say_seconds(seconds)} on {where}.", file=sys.stderr, flush=True)


def _numbers(given: str) -> tuple[int, ...]:
    try:
        return tuple(int(one) for one in given.split(",") if one.strip())
    except ValueError:
        raise InvalidInput(f"{given!r} are no lengths.", "Write whole numbers, such as 512,1024.") from None
