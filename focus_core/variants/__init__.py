"""Attention variants: one file each, found here by being in this folder."""

from __future__ import annotations

import importlib
import pkgutil

from focus_core.variants.base import (
    CHANGES_MODEL,
    FULL,
    LORA,
    VARIANTS,
    AttentionCall,
    Cost,
    Knob,
    Prepared,
    Shape,
    Support,
    Variant,
    config_fields,
    make,
    option,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "CHANGES_MODEL",
    "FULL",
    "LORA",
    "VARIANTS",
    "AttentionCall",
    "Cost",
    "Knob",
    "Prepared",
    "Shape",
    "Support",
    "Variant",
    "config_fields",
    "make",
    "option",
]
