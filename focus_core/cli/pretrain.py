"""``pretrain``: a whole model from nothing through a variant; a killed run goes on where it was."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from typing import Any

from focus_core.cli.options import settings as parse_settings
from focus_core.cli.output import adapter_folder, bar, pairs, stop_request
from focus_core.cli.train import NOVELS, _texts
from focus_core.models.catalog import SMALL
from focus_core.training.lengths import hold_back
from focus_core.training.scratch_settings import ScratchSettings, schedule

SUMMARY = "train a whole model from nothing through a variant: another model's shape and tokenizer, new weights"


def configure(parser: argparse.ArgumentParser) -> None:
    """One option for every field of ``ScratchSettings``."""
    parser.add_argument("--model", default=SMALL, help=f"whose shape and tokenizer are used (default {SMALL})")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where there is one)")
    parser.add_argument("--text", default=NOVELS, help="as of train: novels, 'novels + NAME + ...', a text or a file")
    parser.add_argument("--variant", default="dense", help="the attention: dense, focus, sfa, ... (default dense)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting of the variant; may be repeated"
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="folder of the model and, where there is one, its adapter; an unfinished run there goes on",
    )
    group = parser.add_argument_group("recipe")
    for field in dataclasses.fields(ScratchSettings):
        explained = f"{field.metadata['help']} (default {field.default:g})".replace("%", "%%")
        flag, kind = f"--{field.name.replace('_', '-')}", type(field.default)
        unit = "N" if kind is int else "X"
        group.add_argument(flag, type=kind, default=field.default, metavar=unit, help=explained)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train; the document is the run's record with where the model lies."""
    from focus_core.models.loading import load_model
    from focus_core.variants import make

    chosen = ScratchSettings(**{f.name: getattr(args, f.name) for f in dataclasses.fields(ScratchSettings)})
    variant = make(args.variant, parse_settings(args.set))
    schedule(variant, chosen)
    out = adapter_folder(args.out, "the model")
    progress = bar()
    loaded = load_model(args.model, device=args.device, progress=progress)
    training_ids, validation_ids, names = _ids(args.model, args.text, chosen.context, loaded.tokenizer)

    from focus_core.training.scratch import pretrain

    with stop_request() as cancel:
        record = pretrain(
            loaded,
            variant,
            training_ids,
            validation_ids,
            chosen,
            out,
            texts=names,
            on_step=_print_validation,
            progress=progress,
            cancel=cancel,
        )
    return {"out": str(out), **record}


def table(document: dict[str, Any]) -> str:
    """Where the model lies, and the figures of its record."""
    told = ("like", "texts", "step", "tokens", "parameters", "adapter_parameters", "seconds")
    last = document["log"][-1]
    return pairs(
        [
            ("model", document["out"]),
            *((name.replace("_", " "), document[name]) for name in told),
            ("loss", last["loss"]),
            ("served validation perplexity", last["served_ppl"]),
        ]
    )


@functools.lru_cache(maxsize=1)
def _ids(model: str, text: str, context: int, tokenizer: Any) -> tuple[Any, Any, str]:
    """Ids of the texts; kept, as several runs of one process read the same ones."""
    import torch

    training, validation, names = _texts(text)

    def ids(one: str) -> torch.Tensor:
        return torch.tensor(tokenizer(one, add_special_tokens=False, verbose=False)["input_ids"])

    found = ids(training)
    if validation is not None:
        return found, ids(validation), names
    return *hold_back(found, context), names


def _print_validation(found: dict[str, Any]) -> None:
    start = "\r\x1b[2K" if sys.stderr.isatty() else ""
    group = f", largest group {found['largest_group']:.2f}x its share" if "largest_group" in found else ""
    print(
        f"{start}step {found['step']}: loss {found['loss']:.4f}, served perplexity {found['served_ppl']:.3f}{group}",
        file=sys.stderr,
    )
