"""The variant control: one menu, and its settings in one popover, built from the variant's own fields."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.ui import links
from focus_core import assets
from focus_core.handlers._shapes import fits
from focus_core.variants import VARIANTS, config_fields

DEFAULT = "focus"


def choose(model: str, notices: list[str]) -> tuple[str, dict[str, Any], str | None]:
    """Draw the variant controls; returns the variant's name, its settings and its adapter's name."""
    options = sorted(VARIANTS, key=lambda name: (name != DEFAULT, name))
    links.check("variant", options, options[0], notices, str.capitalize)
    variant = st.selectbox(
        "Attention",
        options,
        format_func=str.capitalize,
        key="variant",
        bind="query-params",
        help="What is put in place of the model's dense attention.",
    )
    variant = variant or options[0]
    cls = VARIANTS[variant]
    adapter = _adapter(model, cls.adapter_kind, notices) if cls.adapter_kind else None
    fields = config_fields(cls)
    if not fields:
        st.caption(cls.summary)
        return variant, {}, adapter
    serve = serve_defaults(adapter)
    with st.popover("Settings", icon=":material/tune:", width="stretch"):
        st.caption(cls.summary)
        config = {
            name: _field(variant, adapter, name, {**spec, "default": serve.get(name, spec["default"])})
            for name, spec in fields.items()
        }
    return variant, config, adapter


def adapters_for(model: str, kind: str | None = None) -> dict[str, dict[str, Any]]:
    """Shipped adapters whose base has this model's shape (and that are of this kind), by name.

    Whether the weights are the same is seen when the model is loaded.
    """
    found = {}
    for name, entry in assets.adapters().items():
        config = entry["config"]
        if kind in (None, config.get("kind", kind)) and fits(config.get("model"), model):
            found[name] = entry
    return found


def serve_defaults(adapter: str | None) -> dict[str, Any]:
    """The settings that an adapter was evaluated with."""
    entry = assets.adapters().get(adapter) if adapter else None
    return dict(entry["config"].get("serve") or {}) if entry else {}


def field_key(variant: str, adapter: str | None, name: str) -> str:
    """Key of a setting's widget; another adapter is served with other settings, so its widgets are other widgets."""
    return f"{variant}.{adapter}.{name}" if adapter else f"{variant}.{name}"


def set_field(variant: str, adapter: str | None, name: str, value: Any) -> None:
    """Change a setting (a button's callback)."""
    st.session_state[field_key(variant, adapter, name)] = value


def off_training(variant: str, adapter: str | None, config: dict[str, Any]) -> bool:
    """Whether a run's settings differ from those that its adapter was evaluated with."""
    return any(config.get(name, value) != value for name, value in serve_defaults(adapter).items())


def _adapter(model: str, kind: str, notices: list[str]) -> str | None:
    names = list(adapters_for(model, kind))
    if not names:
        st.caption(f"No trained {kind} ships for this model: choose another attention, or train one.")
        return None

    def label(name: str) -> str:
        return str(assets.adapters()[name]["config"].get("title") or name)

    links.check("adapter", names, names[0], notices, label)
    return st.selectbox(
        "Trained temperatures" if kind == "temperature" else "Trained groups",
        names,
        format_func=label,
        key="adapter",
        bind="query-params",
        help="Learned from text; the model's own weights were not touched.",
    )


def _field(variant: str, adapter: str | None, name: str, spec: dict[str, Any]) -> Any:
    label = name.replace("_", " ").replace("topk", "top-k").capitalize()
    default, help = spec["default"], spec.get("help")
    key = field_key(variant, adapter, name)
    common = {"key": key, "help": help, "persist_state": "session"}
    if choices := spec.get("choices"):
        return st.selectbox(label, list(choices), index=list(choices).index(default), **common)
    if isinstance(default, bool):
        return st.toggle(label, default, **common)
    if isinstance(default, (int, float)):
        kind = type(default)
        low, high = (None if spec.get(k) is None else kind(spec[k]) for k in ("minimum", "maximum"))
        value = st.number_input(label, low, high, default, **common)
        return default if value is None else kind(value)
    return st.text_input(label, default, **common)
