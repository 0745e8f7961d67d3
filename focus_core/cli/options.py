"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from focus_core.errors import InvalidInput
from focus_core.launched import processes
from focus_core.models.catalog import DEFAULT
from focus_core.variants.base import CHANGES_MODEL

DTYPES = ("float32", "bfloat16", "float16")


def add_model(parser: argparse.ArgumentParser) -> None:
    """``--model``, ``--device``, ``--dtype`` and ``--device-map``."""
    parser.add_argument(
        "--model",
        default=DEFAULT,
        help=f"a name that `models` lists, a folder, a GGUF file or a Hugging Face id (default {DEFAULT})",
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where there is one)")
    parser.add_argument("--dtype", choices=DTYPES, help="default: the checkpoint's on a GPU, float32 on a CPU")
    parser.add_argument(
        "--device-map",
        metavar="MAP",
        help="spread the model over this process's GPUs: auto, balanced, balanced_low_0 or sequential, as transformers "
        "calls them, a device, or JSON from modules to devices",
    )


def add_variant(parser: argparse.ArgumentParser) -> None:
    """``--variant``, ``--set`` and ``--adapter``."""
    parser.add_argument("--variant", default="focus", help="a name that `variants` lists (default focus)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting of the variant; may be repeated"
    )
    parser.add_argument("--adapter", metavar="DIR", help="a trained adapter: a folder, or the name of a shipped one")


def load(args: argparse.Namespace, progress: Any = None) -> Any:
    """Load ``--model`` on ``--device`` or by ``--device-map`` or ``--shard``, in ``--dtype``; says where it lies."""
    from focus_core.models.loading import load_model

    spread = {"device_map": args.device_map, "shard": getattr(args, "shard", None)}
    if args.device_map and args.device:
        raise InvalidInput("--device and --device-map both say where the model goes.", "Leave out one of them.")
    if args.device_map and processes()[1] > 1:
        raise InvalidInput("--device-map spreads a model in one process, and several were started.", "Use --shard.")
    given = {name: value for name, value in spread.items() if value}
    loaded = load_model(args.model, device=args.device, dtype=args.dtype, progress=progress, **given)
    if given and processes()[0] == 0:
        print(loaded.placed, file=sys.stderr)
    return loaded


def settings(given: list[str], form: str = "--set FIELD=VALUE") -> dict[str, str]:
    """Parse repeated ``FIELD=VALUE``.

    Raises:
        InvalidInput: an item without a name or without ``=``.
    """
    parsed = {}
    for item in given:
        field, equals, value = item.partition("=")
        if not equals or not field.strip():
            raise InvalidInput(f"{item!r} is no setting.", f"Write {form}.")
        parsed[field.strip()] = value.strip()
    return parsed


def choose_variant(args: argparse.Namespace) -> tuple[Any, Path | None]:
    """The variant and its adapter's folder, checked before anything is loaded.

    Settings are those that the adapter was trained to be served with, then ``--set``.

    Raises:
        InvalidInput: an unknown variant, setting or adapter; an adapter that is missing, or that nothing reads.
    """
    from focus_core.adapter import read_config
    from focus_core.variants import VARIANTS, make

    given = settings(args.set)
    kind = VARIANTS[args.variant].adapter_kind if args.variant in VARIANTS else None
    if not args.adapter:
        variant = make(args.variant, given)
        if kind and not VARIANTS[args.variant].adapter_optional:
            known = ", ".join(n for n, path in shipped_adapters().items() if read_config(path)["kind"] == kind)
            hint = f"Give --adapter DIR (shipped: {known})." if known else "Give --adapter DIR; `train` makes one."
            raise InvalidInput(f"{args.variant} needs a trained adapter of kind {kind}.", hint)
        return variant, None

    folder = shipped_adapters().get(args.adapter, Path(args.adapter))
    document = read_config(folder)
    reads = document["config"].get("reads") or {}
    if document["kind"] in CHANGES_MODEL and args.variant in VARIANTS and kind in (None, reads.get("kind")):
        # Its settings are those of the variant that it was trained through; any other keeps its own.
        served = document["serve"] if document["config"].get("through") == args.variant else {}
        return make(args.variant, {**served, **given}), folder
    if kind is None and args.variant in VARIANTS:
        raise InvalidInput(
            f"{args.variant} takes no adapter but of kind {' or '.join(CHANGES_MODEL)}.", "Leave out --adapter."
        )
    if kind is not None and document["kind"] != kind:
        raise InvalidInput(
            f"{args.variant} needs an adapter of kind {kind}, and {args.adapter} is of kind {document['kind']}."
        )
    return make(args.variant, {**document["serve"], **given}), folder


def load_adapter_of(folder: Path | None, model: Any) -> Any:
    """The adapter of that folder on the model's device; None without a folder."""
    if folder is None:
        return None
    from focus_core.adapter import load_adapter

    return load_adapter(folder, model)


def shipped_adapters() -> dict[str, Path]:
    """Folders of the shipped adapters by their names."""
    from focus_core.assets import adapters

    return {name: Path(entry["path"]) for name, entry in adapters().items()}
