"""``interpret``: what a router's groups are, layer by layer: parts of speech, something else, or nothing."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from focus_core.cli.options import add_model, choose_variant, load, load_adapter_of, shipped_adapters
from focus_core.cli.output import adapter_folder, bar, rows, stop_request
from focus_core.errors import InvalidInput

SUMMARY = "what a router's groups are: agreement with parts of speech beside chance, names from data, stability"
_BY_KIND = {"router": "focus", "kmeans": "kmeans", "routing": "routing"}
_FIT_WINDOWS = 8


def configure(parser: argparse.ArgumentParser) -> None:
    """The router, the texts, and what it is held against."""
    add_model(parser)
    parser.add_argument("--adapter", required=True, metavar="DIR", help="a router: a folder, or a shipped one's name")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting of its variant; may be repeated"
    )
    parser.add_argument(
        "--text",
        nargs="+",
        default=["brown news", "brown fiction"],
        metavar="TEXT",
        help="shipped texts' names or files, two or more to compare them; Brown texts have gold tags",
    )
    parser.add_argument("--context", type=int, default=1024, metavar="N", help="tokens a window (default 1024)")
    parser.add_argument("--windows", type=int, default=2, metavar="W", help="windows of each text (default 2)")
    parser.add_argument(
        "--against",
        nargs="+",
        default=[],
        metavar="DIR",
        help="other adapters, such as other seeds, whose groups of the same tokens are compared",
    )
    parser.add_argument(
        "--kmeans",
        metavar="DIR",
        help=f"clusters to hold it against; without, {_FIT_WINDOWS} windows of the training novels are clustered",
    )
    parser.add_argument(
        "--work", default="build/interpret", metavar="DIR", help="recorded windows; a later run goes on"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Record every token's groups, then score and name them."""
    from focus_core.adapter import read_config
    from focus_core.assets import load_text

    if args.windows < 1 or args.context < 8:
        raise InvalidInput(f"{args.windows} windows of {args.context} tokens are too few.", "Give 1 of 8 or more.")
    variant, folder = _variant(args, args.adapter, args.set)
    others = {given: _variant(args, given, []) for given in args.against}
    texts = [load_text(name) for name in args.text]
    clusters = None if args.kmeans is None else shipped_adapters().get(args.kmeans, Path(args.kmeans))
    if (own := read_config(folder)["config"].get("groups")) != variant.groups:
        raise InvalidInput(f"{args.adapter} has {own} groups, and groups is set to {variant.groups}.", "Leave it out.")
    if clusters is not None:
        of = read_config(clusters)
        if of["kind"] != "kmeans":
            raise InvalidInput(f"{args.kmeans} is of kind {of['kind']}, not kmeans.", "Make one: train --kind kmeans.")
        if of["config"].get("groups") != variant.groups:
            raise InvalidInput(
                f"{args.kmeans} has {of['config'].get('groups')} groups, {args.adapter} {variant.groups}."
            )
    work = adapter_folder(args.work, "what is recorded")
    progress = bar()
    loaded = load(args, progress)

    from focus_core.evaluation.environment import environment
    from focus_core.interpret.sources import sample_of
    from focus_core.interpret.watch import cost, record_sets
    from focus_core.routing.router import Router

    adapter = load_adapter_of(folder, loaded.model)
    named = _names(args.against)
    rivals = {named[given]: (v, load_adapter_of(place, loaded.model)) for given, (v, place) in others.items()}
    sample, windows = sample_of(loaded, texts, args.context, args.windows, variant.sinks)
    passes = windows.size * (1 + len(others)) + (0 if clusters else _FIT_WINDOWS * args.context)
    print(f"{passes:,} tokens to run, about {cost(loaded, passes):,.0f} s without what is recorded.", file=sys.stderr)
    with stop_request() as cancel:
        watched: dict[str, Any] = {"progress": progress, "cancel": cancel}
        readers: dict[str, Any] = {"kmeans": _clusters(args, loaded, clusters, variant.groups, work, watched)}
        if isinstance(adapter, Router):
            readers["untrained"] = Router(adapter.config).to(loaded.model.device)
        sets = record_sets(loaded, variant, adapter, windows, readers, work, **watched)
        against = {}
        for name, (other, theirs) in rivals.items():
            against[name] = record_sets(loaded, other, theirs, windows, {}, work, **watched)["groups_keys"]

        from focus_core.interpret.report import report

        found = report(sample, sets, variant.groups, window=variant.window, against=against, store=work, **watched)
    told = {
        "model": loaded.name,
        "variant": variant.name,
        "adapter": Path(args.adapter).name,
        "config": {name: value for name, value in variant.to_dict().items() if name != "backend"},
        "training": _training(adapter),
        "texts": [text.name for text in texts],
        "context": args.context,
        "windows": len(windows),
        "kmeans": readers["kmeans"].record,
        "against": list(against),
    }
    return told | found | {"dtype": str(loaded.model.dtype)[6:], "environment": environment(loaded.model.device)}


def _training(adapter: Any) -> dict[str, Any]:
    """How the adapter was trained, as its record says."""
    settings = adapter.record.get("settings") or adapter.record
    return {name: settings[name] for name in ("steps", "context", "batch", "seed", "tokens") if name in settings}


def _variant(args: argparse.Namespace, adapter: str, given: list[str]) -> tuple[Any, Path]:
    """The variant that serves an adapter's groups, and the adapter's folder."""
    from focus_core.adapter import read_config

    kind = read_config(shipped_adapters().get(adapter, Path(adapter)))["kind"]
    if kind not in _BY_KIND:
        raise InvalidInput(f"{adapter} is of kind {kind} and has no groups.", f"Give one of {', '.join(_BY_KIND)}.")
    asked = argparse.Namespace(variant=_BY_KIND[kind], adapter=adapter, set=given)
    variant, folder = choose_variant(asked)
    assert folder is not None
    return variant, folder


def _names(given: list[str]) -> dict[str, str]:
    """What adapters are called in the result: their folders' own names, or the whole paths where two share one."""
    own = [Path(one).name for one in given]
    return {one: name if name and own.count(name) == 1 else one for one, name in zip(given, own, strict=True)}


def _clusters(
    args: argparse.Namespace, loaded: Any, given: Path | None, groups: int, work: Path, watched: dict[str, Any]
) -> Any:
    """k-means of the model's hidden states: those asked for, or fitted on the training novels once."""
    from focus_core.adapter import load_adapter

    if given is not None:
        return load_adapter(given, loaded.model)
    place = work / f"kmeans-{Path(loaded.name).name}-k{groups}-{args.context}"
    # Of a run that was killed, or of another model of that name, nothing is taken.
    with contextlib.suppress(InvalidInput):
        return load_adapter(place, loaded.model)

    from focus_core.assets import training_text
    from focus_core.routing.kmeans import fit_kmeans
    from focus_core.routing.windows import spread_windows

    ids = loaded.tokenizer(training_text(), add_special_tokens=False, verbose=False)["input_ids"]
    fitted = fit_kmeans(loaded.model, spread_windows(ids, args.context, _FIT_WINDOWS), groups=groups, **watched)
    fitted.save_pretrained(place, loaded.model)
    return fitted


def table(document: dict[str, Any]) -> str:
    """A line a layer: V-measure of what tokens are beside its baselines, and what most groups are about."""
    lines = [key for key in ("groups", *document["baselines"]) if key in document["layers"][0]["keys"]]
    body = []
    for entry in document["layers"]:
        keys = entry["keys"]
        about = ", ".join(f"{count} {name}" for name, count in list(keys["named"].items())[:3])
        body.append([entry["layer"], *(keys[key]["v_measure"][0] for key in lines), keys["groups"]["purity"][0], about])
    head = ["layer", *(f"V {key}" for key in lines), "purity", "groups are about"]
    end = (
        f"{document['tagged']:,} tagged tokens in {document['sentences']:,} sentences of {', '.join(document['texts'])}"
    )
    return rows(head, body) + "\n" + end
