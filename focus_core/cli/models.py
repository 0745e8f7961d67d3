"""``models``: what can be loaded, its shape, and which variants can serve it."""

from __future__ import annotations

import argparse
from typing import Any

from focus_core.cli.output import bar, rows
from focus_core.errors import FocusError, NotAvailable

SUMMARY = "list the models, their shapes and the variants that can serve them"
_SHAPE = ("family", "layers", "heads", "kv_heads", "head_dim", "context")


def configure(parser: argparse.ArgumentParser) -> None:
    """A model that is not listed can be named."""
    parser.add_argument("--model", help="only this one: a name, a folder, a GGUF file or a Hugging Face id")


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One entry a model; the shape is null where the model is not on this machine or cannot be used.

    No weights are read: shapes come from configs.
    """
    from focus_core.models.catalog import list_models

    if args.model:
        known = {entry.name: entry for entry in list_models()}
        entry = known.get(args.model)
        facts = _facts(args.model, bar())
        return [_row(args.model, entry is not None and entry.bundled, facts, facts.note)]
    found = []
    for entry in list_models():
        try:
            if not entry.available:
                raise NotAvailable(f"Not on this machine. {entry.how_to_get}")
            facts = _facts(entry.name)
        except FocusError as error:
            found.append(_row(entry.name, entry.bundled, None, str(error)))
            continue
        found.append(_row(entry.name, entry.bundled, facts, entry.note))
    return found


def table(document: list[dict[str, Any]]) -> str:
    """Shapes, then support with the reasons of refusals, then notes."""
    shapes = [[row["name"], *(row[field] for field in _SHAPE), row["bundled"]] for row in document]
    lines = [rows(["name", *_SHAPE, "bundled"], shapes)]
    for row in document:
        if row["variants"]:
            lines.append(f"{row['name']} can run {', '.join(n for n, s in row['variants'].items() if s['ok'])}.")
        lines += [f"{row['name']}: {n}: {s['reason']}" for n, s in row["variants"].items() if not s["ok"]]
        if row["note"]:
            lines.append(f"{row['name']}: {row['note']}")
    return "\n".join(lines)


def _row(name: str, bundled: bool, facts: Any, note: str) -> dict[str, Any]:
    from focus_core.variants import VARIANTS

    support = {}
    if facts is not None:
        found = {variant: cls().supports(facts) for variant, cls in sorted(VARIANTS.items())}
        support = {variant: {"ok": one.ok, "reason": one.reason} for variant, one in found.items()}
    shape = {field: getattr(facts, field, None) for field in _SHAPE}
    return {"name": name, **shape, "bundled": bundled, "variants": support, "note": note}


def _facts(name: str, progress: Any = None) -> Any:
    """A model's facts; the default model's come from its GGUF while it has not been converted."""
    from focus_core.models import catalog
    from focus_core.models.loading import model_facts

    if name != catalog.DEFAULT or catalog.prepared_default() is not None or catalog.packaged_gguf() is None:
        return model_facts(name, progress=progress)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from focus_core.models.facts import facts_of

    path = catalog.packaged_gguf()
    try:
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    except ImportError:
        raise NotAvailable("Reading a GGUF file needs gguf.", "pip install gguf") from None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return facts_of(model, name, revision=catalog.GGUF_SHA256[:12], note=catalog.NOTE)
