"""``variants``: what can be put into a model, with every setting."""

from __future__ import annotations

import argparse
from typing import Any

from focus_core.cli.output import show

SUMMARY = "list the attention variants and their settings"


def configure(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One entry a variant: name, summary, adapter kind and whether it is optional, config."""
    from focus_core.variants import VARIANTS, config_fields

    return [
        {
            "name": name,
            "summary": cls.summary,
            "adapter": cls.adapter_kind,
            "adapter_optional": cls.adapter_optional,
            "config": {
                field: {key: value for key, value in facts.items() if value is not None}
                for field, facts in config_fields(cls).items()
            },
        }
        for name, cls in sorted(VARIANTS.items())
    ]


def table(document: list[dict[str, Any]]) -> str:
    """Each variant with its settings below it."""
    lines = []
    for variant in document:
        of_kind = f"an adapter of kind {variant['adapter']}"
        reads = f" Takes {of_kind} (optional)." if variant["adapter_optional"] else f" Needs {of_kind}."
        lines.append(f"{variant['name']}: {variant['summary']}{reads if variant['adapter'] else ''}")
        for name, field in variant["config"].items():
            lines.append(f"    {name}={show(field['default']).replace(',', '')}  {field['help']}")
    return "\n".join(lines)
