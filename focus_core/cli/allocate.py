"""``allocate``: how many groups the queries of each layer and KV head look into, for a budget of pairs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from focus_core.cli.options import add_model, load, shipped_adapters
from focus_core.cli.output import adapter_folder, bar, pairs, rows, stop_request, write_json
from focus_core.errors import InvalidInput
from focus_core.jobs.files import read_json

SUMMARY = "give each layer and KV head of a router its own number of groups to look into, within a budget of pairs"
NOVELS = "novels"
_LEVELS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_ALL = "K"


def configure(parser: argparse.ArgumentParser) -> None:
    """The adapter, the budget, the text, and how costs are taken."""
    add_model(parser)
    parser.add_argument("--adapter", required=True, metavar="DIR", help="a router: a folder, or a shipped one's name")
    parser.add_argument("--pairs", type=float, default=0.2, metavar="X", help="share of the pairs kept (default 0.2)")
    parser.add_argument(
        "--text",
        default=NOVELS,
        help=f"a shipped text's name or a file, whose last tenth compares the tables; {NOVELS} (default): the five "
        "training novels, compared on their held-back slice. Evaluate on neither",
    )
    parser.add_argument("--context", type=int, default=4096, metavar="N", help="tokens a window (default 4096)")
    parser.add_argument("--windows", type=int, default=8, metavar="W", help="windows that costs are of (default 8)")
    parser.add_argument(
        "--held-windows", type=int, default=8, metavar="W", help="windows that compare the tables (default 8)"
    )
    parser.add_argument(
        "--levels",
        nargs="+",
        metavar="L",
        help=f"numbers of groups that a head may look into, {_ALL} for all of them (default 0 1 2 3 4 6 8 12 16 ... "
        f"{_ALL}); 0 {_ALL} alone: heads are streaming (window and sinks) or dense, without groups",
    )
    parser.add_argument(
        "--by",
        choices=("gradient", "change"),
        default="gradient",
        help="costs are estimated by one forward and backward pass a window (gradient, default), or measured with one "
        "head changed at a time (change: W times layers runs a round, each of as many rows as heads and levels)",
    )
    parser.add_argument(
        "--start",
        choices=("uniform", "dense", "adapter"),
        default="uniform",
        help="what the first round changes: all heads alike at the budget (default), dense, or the adapter's own table",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="costs are taken anew around each table (default 3 times)"
    )
    parser.add_argument(
        "--window", type=int, metavar="N", help="nearest tokens that are always seen (default: the adapter's)"
    )
    parser.add_argument("--batch", type=int, default=8, metavar="B", help="change: rows that run together (default 8)")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the adapter with the table")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Search; with ``--json FILE`` what is done is kept in FILE.partial until the end, and taken up again."""
    from focus_core.adapter import CONFIG_FILE, load_adapter, read_config
    from focus_core.evaluation.environment import environment
    from focus_core.routing.look_table import Search, TableSearch, check_search
    from focus_core.routing.router import RouterConfig
    from focus_core.variants import make

    folder = shipped_adapters().get(args.adapter, Path(args.adapter))
    held = read_config(folder)
    if held["kind"] != "router":
        raise InvalidInput(
            f"{args.adapter} is of kind {held['kind']}, and routers alone have groups.", "Give a router."
        )
    out = adapter_folder(args.out)
    if (out / CONFIG_FILE).exists() or (out / "config.json").exists():
        raise InvalidInput(f"{out} holds another adapter or a model.", "Use another folder, or delete it.")
    config = RouterConfig(**held["config"])
    search = Search(args.pairs, _levels(args.levels, config.groups), args.by, args.start, args.rounds, args.batch)
    for name in ("windows", "held_windows"):
        if getattr(args, name) < 1:
            raise InvalidInput(f"{name} is {getattr(args, name)}.", "It can be 1 or more.")
    serve = held["serve"] if args.window is None else held["serve"] | {"window": args.window}
    check_search(search, config, make("focus", serve).to_dict(), args.context)
    progress = bar()
    loaded = load(args, progress)
    fitted, compared, name = _windows(args, loaded)
    router = load_adapter(folder, loaded.model)
    router.serve = serve
    print(_cost(search, config, fitted, compared), file=sys.stderr)
    kept = Path(f"{args.json}.partial") if args.json and args.json != "-" else None
    with stop_request() as cancel:
        work = TableSearch(
            loaded,
            router,
            search,
            fitted,
            compared,
            progress=progress,
            cancel=cancel,
            keep=None if kept is None else lambda document: write_json(document, str(kept)),
            resume=None if kept is None else read_json(kept),
        )
        made, document = work.run()
    best = document["tables"][document["best"]]
    names = ("budget", "levels", "by", "start", "context", "windows", "held_windows", "best")
    about = {"texts": name, "from": folder.name, **{key: document[key] for key in names}}
    dense = document["rivals"][0]["ppl"]
    made.record["allocation"] = about | {"kept_pairs": best["kept_pairs"], "ppl": best["ppl"], "dense_ppl": dense}
    made.save_pretrained(out, loaded.model)
    if kept is not None:
        kept.unlink(missing_ok=True)
    told = {"out": str(out), "model": loaded.name, "adapter": args.adapter, "text": name}
    dtype = str(loaded.model.dtype).removeprefix("torch.")
    return told | document | {"dtype": dtype, "environment": environment(loaded.model.device)}


def table(document: dict[str, Any]) -> str:
    """What was compared, and the table: a line a layer."""
    compared = [[r["what"], r["ppl"], r["kept_pairs"]] for r in document["rivals"]]
    compared += [[f"table {n + 1}", r["ppl"], r["kept_pairs"]] for n, r in enumerate(document["tables"])]
    looks = [(f"layer {layer}", " ".join(map(str, row))) for layer, row in enumerate(document["looks"])]
    windows = f"{document['held_windows']} windows of {document['context']} tokens of {document['text']}, held back"
    return "\n".join(
        [
            rows([f"on {windows}", "perplexity", "pairs kept"], compared),
            f"{document['out']} has table {document['best'] + 1}; groups looked into, by router:",
            pairs(looks),
        ]
    )


def _levels(given: list[str] | None, groups: int) -> tuple[int, ...]:
    """The numbers of looks, ``K`` for all groups."""
    if given is None:
        return (*(level for level in _LEVELS if level < groups), groups)
    try:
        return tuple(sorted({groups if item == _ALL else int(item) for item in given}))
    except ValueError:
        raise InvalidInput(f"Levels are {' '.join(given)}.", f"Give whole numbers, or {_ALL} for all groups.") from None


def _windows(args: argparse.Namespace, loaded: Any) -> tuple[Any, Any, str]:
    """Windows that costs are of, windows that compare the tables, and what text they are."""
    import torch

    from focus_core.assets import load_text, training_text, validation_text
    from focus_core.routing.windows import spread_windows
    from focus_core.training.lengths import check_window, hold_back

    check_window(args.context, loaded)

    def ids(text: str) -> Any:
        return torch.tensor(loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    if args.text == NOVELS:
        fitted, compared, name = ids(training_text()), ids(validation_text()), NOVELS
    else:
        text = load_text(args.text)
        fitted, compared = hold_back(ids(text.text), args.context)
        name = text.name
    return (
        spread_windows(fitted, args.context, args.windows),
        spread_windows(compared, args.context, args.held_windows),
        name,
    )


def _cost(search: Any, config: Any, fitted: Any, compared: Any) -> str:
    """How often the model will run, said before it does."""
    count, context = fitted.shape
    if search.by == "gradient":
        costs = f"{search.rounds * count} times forward and back"
    else:
        each = -(-(config.routers * len(search.levels)) // search.batch)
        costs = f"{search.rounds * count * config.layers * each} times on {search.batch} rows"
    rest = (search.rounds + 5) * len(compared)
    return f"The model runs {costs} and about {rest} times forward, on {context:,} tokens each."
