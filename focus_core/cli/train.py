"""``train``: an adapter for a frozen model, with its training record; a killed run goes on where it was."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

from focus_core.cli.options import add_model, load
from focus_core.cli.output import adapter_folder, bar, pairs, stop_request
from focus_core.errors import InvalidInput
from focus_core.launched import processes
from focus_core.training.lengths import hold_back
from focus_core.training.settings import BALANCES, FORMS, KINDS, MAPS, WEIGHTINGS, TrainSettings

SUMMARY = "train an adapter for a frozen model: routers, LoRA, a latent's factors, all weights, or a control"
SHARED = True
NOVELS = "novels"
KMEANS, ROUTING, FEATURE_MAPS, FACTORS = "kmeans", "routing", "feature_maps", "factors"
_FITTED = (KMEANS, ROUTING, FEATURE_MAPS, FACTORS)
_FIT_WINDOWS = 16
_BY_KIND: dict[str, dict[str, Any]] = {
    "learning_rate": {"lora": 5e-4, "full": 3e-5, "sfa": 1e-3, "latent": 1e-3},
    "rank": {"latent": 64, FACTORS: 64},
    "query_topk": {"routing": 1},
}
"""Defaults that differ from those of ``TrainSettings`` for a kind."""
_BY_MODEL = {"rotary": "half of those that rotate"}
"""Settings whose default is the model's."""
_CHOICES = {"kind": (*KINDS, *_FITTED), "form": FORMS, "balance": BALANCES, "maps": MAPS, "weighting": WEIGHTINGS}


def configure(parser: argparse.ArgumentParser) -> None:
    """One option for every field of ``TrainSettings``; defaults are the recipe for 4,096 tokens on a GPU."""
    add_model(parser)
    parser.add_argument(
        "--text",
        default=NOVELS,
        help=f"a shipped text's name or a file, whose last tenth is held back for validation; {NOVELS} (default): "
        f"the five training novels, validated on their held-back slice; '{NOVELS} + NAME + ...': other texts besides, "
        "whole, with the same validation",
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="folder of the adapter; an unfinished run there with the same settings goes on",
    )
    parser.add_argument(
        "--shard",
        choices=("full_shard", "shard_grad_op"),
        default=_launched_shard(),
        help="spread the frozen model over the processes of `accelerate launch` (FSDP2), each layer whole only while "
        "it runs (full_shard), or from its forward to its backward (shard_grad_op); default: what --use_fsdp "
        "--fsdp_version 2 asked the launcher for",
    )
    group = parser.add_argument_group("settings", "those that name kinds are read by these kinds alone")
    for field in dataclasses.fields(TrainSettings):
        flag = f"--{field.name.replace('_', '-')}"
        explained = field.metadata["help"].replace("%", "%%")
        if field.name == "kind":
            explained += f"; fitted and not trained: {', '.join(_FITTED)}"
        if isinstance(field.default, bool):
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=field.default, help=explained)
            continue
        kind_of = {int: "N", float: "X"}.get(type(field.default), "TEXT")
        shape: dict[str, Any] = {"choices": _CHOICES[field.name]} if field.name in _CHOICES else {"metavar": kind_of}
        others = _BY_KIND.get(field.name, {})
        said = "".join(f"; {value} for {kind}" for kind, value in others.items())
        default = None if others or field.name in _BY_MODEL else field.default
        usual = _BY_MODEL.get(field.name, field.default)
        explained += f" (default {'none' if usual == '' else usual}{said})"
        group.add_argument(flag, type=type(field.default), default=default, help=explained, **shape)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train; the document is the adapter's record with where it lies."""
    given = {f.name: getattr(args, f.name) for f in dataclasses.fields(TrainSettings)}
    for name in (*_BY_KIND, *_BY_MODEL):
        if given[name] is None:
            given[name] = _BY_KIND.get(name, {}).get(args.kind, getattr(TrainSettings, name))
    trained_kind = "latent" if args.kind == FACTORS else "router" if args.kind in _FITTED else args.kind
    chosen = TrainSettings(**(given | {"kind": trained_kind}))
    rank, count = processes()
    if count > 1 and args.kind in _FITTED:
        raise InvalidInput(f"{args.kind} is fitted by one process, and {count} were started.", "Start it alone.")
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" and os.environ.get("FSDP_VERSION") != "2":
        raise InvalidInput(
            f"accelerate was told to shard by FSDP {os.environ.get('FSDP_VERSION', '1')}.", "Use --fsdp_version 2."
        )
    if count > 1 and ":" in (args.device or ""):
        raise InvalidInput(f"{count} processes cannot all have {args.device}.", "Say cpu or cuda: each takes its own.")
    out = Path(args.out) if rank else adapter_folder(args.out)
    if not rank:
        _check_free(out, None if args.kind in _FITTED else chosen)
    training, validation, names = _texts(args.text)
    progress = bar()
    loaded = load(args, progress)
    if args.kind in ("latent", FACTORS) and args.rotary is None:
        from focus_core.routing.factorise import default_rotary

        chosen = dataclasses.replace(chosen, rotary=default_rotary(loaded.facts))

    import torch

    def ids(text: str) -> torch.Tensor:
        return torch.tensor(loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    training_ids = ids(training)
    if validation is None:
        training_ids, validation_ids = hold_back(training_ids, chosen.context)
    else:
        validation_ids = ids(validation)
    if args.kind in _FITTED:
        adapter = _fit(args.kind, loaded, training_ids, chosen, out, names, progress)
    else:
        from focus_core.processes import leave_group
        from focus_core.training.trainer import train

        try:
            with stop_request() as cancel:
                adapter = train(
                    loaded,
                    training_ids,
                    validation_ids,
                    chosen,
                    out,
                    texts=names,
                    on_step=None if rank else _print_validation,
                    progress=progress,
                    cancel=cancel,
                )
        finally:
            leave_group()
    return {
        "out": str(out),
        "model": loaded.name,
        "kind": adapter.kind,
        "serve": adapter.serve,
        "record": adapter.record,
    }


def _check_free(out: Path, chosen: TrainSettings | None) -> None:
    """Refuse a folder of something that would be written over; ``chosen`` is None for what is fitted.

    A run that has a checkpoint is looked at when it goes on.
    """
    from focus_core.adapter import CONFIG_FILE, read_config
    from focus_core.training.checkpoint import FILE

    if (out / "config.json").exists():
        raise InvalidInput(f"{out} holds a model.", "Name a folder for the adapter alone.")
    begun = (out / FILE).exists()
    if chosen is not None and (begun or not (out / CONFIG_FILE).exists()):
        return
    held: dict[str, Any] = read_config(out)["record"].get("settings") or {} if (out / CONFIG_FILE).exists() else {}
    if chosen is None:
        free = not held and not begun
    else:
        # A run that was killed before its first checkpoint begins again. What rotates is said when a model is there.
        either = {"rotary": 0}
        free = bool(held) and {**TrainSettings().to_dict(), **held, **either} == chosen.to_dict() | either
    if free:
        return
    raise InvalidInput(f"{out} holds another adapter.", "Use another folder, or delete it.")


def _launched_shard() -> str | None:
    """What accelerate's launcher was asked for."""
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() != "true":
        return None
    again = os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "true").lower() in ("true", "full_shard", "1")
    return "full_shard" if again else "shard_grad_op"


def table(document: dict[str, Any]) -> str:
    """Where the adapter lies, and the figures of its record."""
    record = document["record"]
    return pairs(
        [
            ("adapter", f"{document['out']} ({document['kind']} for {document['model']})"),
            *[(name.replace("_", " "), value) for name, value in record.items() if not isinstance(value, dict)],
        ]
    )


def _fit(kind: str, loaded: Any, ids: Any, chosen: TrainSettings, out: Path, names: str, progress: Any) -> Any:
    """What is not trained: k-means of hidden states or of heads, maps or factors, over windows spread in the text."""
    from focus_core.routing.factorise import factorise
    from focus_core.routing.feature_maps import fit_feature_maps
    from focus_core.routing.kmeans import fit_kmeans
    from focus_core.routing.online import fit_routing
    from focus_core.routing.windows import spread_windows

    windows = spread_windows(ids, chosen.context, _FIT_WINDOWS)
    served: tuple[str, ...] = ("groups", "query_topk", "key_topk", "window", "sinks")
    if kind == FEATURE_MAPS:
        adapter: Any = fit_feature_maps(loaded.model, windows, progress=progress)
        served = ("features", "select", "sparse")
    elif kind == FACTORS:
        options: dict[str, Any] = {"rotary": chosen.rotary, "weighting": chosen.weighting}
        adapter = factorise(loaded.model, windows, chosen.rank, **options, progress=progress)
        served = ("rank", "rotary")
    else:
        fit: Any = fit_kmeans if kind == KMEANS else fit_routing
        adapter = fit(loaded.model, windows, groups=chosen.groups, seed=chosen.seed, progress=progress)
    adapter.serve = {name: getattr(chosen, name) for name in served}
    adapter.record |= {"texts": names, "windows": len(windows), "context": chosen.context, "seed": chosen.seed}
    adapter.save_pretrained(out, loaded.model)
    return adapter


def _texts(name: str) -> tuple[str, str | None, str]:
    from focus_core.assets import load_text, training_text, validation_text

    first, *others = (part.strip() for part in name.split("+"))
    if first == NOVELS:
        besides = [load_text(other) for other in others]
        told = ["five Austen novels without the validation slice", *(text.name for text in besides)]
        return "\n\n\n".join([training_text(), *(text.text for text in besides)]), validation_text(), "; ".join(told)
    text = load_text(name)
    return text.text, None, text.name


def _print_validation(metrics: dict[str, Any]) -> None:
    if "served_ppl" not in metrics:
        return
    start = "\r\x1b[2K" if sys.stderr.isatty() else ""
    group = f", largest group {metrics['largest_group']:.2f}x its share" if "largest_group" in metrics else ""
    print(
        f"{start}step {metrics['step']}: loss {metrics['loss']:.4f}, served perplexity {metrics['served_ppl']:.3f}, "
        f"pairs kept {metrics['kept_pairs']:.1%}{group}",
        file=sys.stderr,
    )
