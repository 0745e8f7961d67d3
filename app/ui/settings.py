"""The variant control: one menu, and its settings in one popover, built from the variant's own fields."""

from __future__ import annotations

from typing import Any

import streamlit as st

from analysis import looks
from app.ui import links
from focus_core import assets
from focus_core.models.shapes import fits
from focus_core.variants import VARIANTS, config_fields

DEFAULT = "focus"
HIDDEN = ("backend", "gate", "temperature", "looks")
"""Settings that the command line has: what computes, and the soft gates that Compare has a tab for."""
_KINDS = {
    "router": "trained router",
    "kmeans": "k-means fit",
    "temperature": "trained temperature",
    "routing": "fit of clusters",
    "thresholds": "fit of thresholds",
}
_MENUS = {"temperature": "Trained temperatures", "thresholds": "Fitted thresholds", "routing": "Fitted clusters"}
NO_ADAPTER = "none"
"""Choice of a variant that also runs without an adapter."""
MADE_HERE = ("router", "kmeans", "thresholds")
"""Kinds of adapter that a page can make; others are made by the command line."""
_SPELT = {
    "kmeans": "k-means",
    "xattention": "XAttention",
    "sfa": "SFA",
    "focus_sfa": "Focus + SFA",
    "xattention_sfa": "XAttention + SFA",
    "mla": "MLA",
    "bigbird": "BigBird",
}
_FORMS = {"directed": "Directed", "shared": "Shared", "paper": "Paper's form"}


def variant_label(name: str) -> str:
    """A variant as people write it."""
    return _SPELT.get(name, name.capitalize())


def choose(model: str, notices: list[str]) -> tuple[str, dict[str, Any], str | None]:
    """Draw the variant controls; returns the variant's name, its settings and its adapter's name."""
    options = sorted(VARIANTS, key=lambda name: (name != DEFAULT, name))
    links.check("variant", options, options[0], notices, variant_label)
    variant = st.selectbox(
        "Attention",
        options,
        format_func=variant_label,
        key="variant",
        bind="query-params",
        help="What is put in place of the model's dense attention.",
    )
    variant = variant or options[0]
    cls = VARIANTS[variant]
    # What runs without an adapter too is not said to lack one.
    asks = cls.adapter_kind and not (cls.adapter_optional and not adapters_for(model, cls.adapter_kind))
    adapter = _adapter(model, cls.adapter_kind, notices, cls.adapter_optional) if asks else None
    if adapter is None:
        links.write("adapter", "")
    fields = config_fields(cls)
    if not fields:
        st.caption(cls.summary)
        _from_link(variant, adapter, {}, notices)
        links.write("set", "")
        return variant, {}, adapter
    fields, fixed = _as_served(fields, adapter)
    open_fields = {name: spec for name, spec in fields.items() if name not in (*HIDDEN, *fixed)}
    _from_link(variant, adapter, open_fields, notices)
    config = {name: spec["default"] for name, spec in fields.items()} | fixed
    with st.popover("Settings", icon=":material/tune:", width="stretch"):
        st.caption(cls.summary)
        for name, value in fixed.items():
            st.markdown(
                f"{_label(name)}: **{value}**",
                help=f"{fields[name]['help']} Learned with this number: choose another “Trained groups” for another.",
            )
        for name, spec in open_fields.items():
            config[name] = _field(variant, adapter, name, spec)
            if name == "query_topk" and (table := looks.table_of(adapter, serve_defaults(adapter))):
                own = config[name] == spec["default"]
                st.caption(
                    f"{spec['default']} stands for {looks.span(table)}, by layer and KV head"
                    + ("." if own else f"; {config[name]} is for all alike.")
                )
    changed = [f"{n}:{config[n]}" for n, spec in open_fields.items() if config[n] != spec["default"]]
    links.write("set", ",".join(changed))
    return variant, config, adapter


def _as_served(
    fields: dict[str, dict[str, Any]], adapter: str | None
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The fields with the defaults and limits of this adapter, and the values that it leaves no choice of."""
    serve = serve_defaults(adapter)
    fields = {name: {**spec, "default": serve.get(name, spec["default"])} for name, spec in fields.items()}
    if adapter not in assets.adapters() or "groups" not in fields:
        return fields, {}
    learned = (assets.adapters()[adapter]["config"].get("config") or {}).get("groups")
    groups = int(learned or fields["groups"]["default"])
    for name in ("query_topk", "key_topk"):
        fields[name]["maximum"] = min(groups, fields[name]["maximum"] or groups)
    if table := looks.table_of(adapter, serve):
        fields["query_topk"]["help"] = (
            f"{fields['query_topk']['default']}, as it comes, stands for the adapter's own numbers: "
            f"{looks.words(table)}. Any other number is for all heads alike."
        )
    return fields, {"groups": groups}


def _from_link(variant: str, adapter: str | None, fields: dict[str, dict[str, Any]], notices: list[str]) -> None:
    """Take the settings that the opening link names, ``set=window:32,query_topk:2``; what cannot be is said."""
    for part in filter(None, links.opening("set").split(",")):
        name, _, raw = part.partition(":")
        spec = fields.get(name)
        value = None if spec is None else _read(raw, spec)
        if value is not None:
            set_field(variant, adapter, name, value)
        elif spec is None:
            notices.append(f"In the link, {part[:60]} is no setting here; there are {', '.join(fields) or 'none'}.")
        else:
            notices.append(f"In the link, {name} cannot be {raw[:60] or 'empty'}; showing {spec['default']}.")


def take(variant: str, adapter: str | None, config: dict[str, Any]) -> None:
    """Set the controls to a run's settings; what a control cannot hold stays as it is."""
    fields, fixed = _as_served(config_fields(VARIANTS[variant]), adapter)
    links.opening("set")
    for name, spec in fields.items():
        if name in config and name not in (*HIDDEN, *fixed) and (value := _read(str(config[name]), spec)) is not None:
            set_field(variant, adapter, name, value)


def take_usual(variant: str, adapter: str | None) -> None:
    """Set the controls to what an adapter is served with."""
    fields, fixed = _as_served(config_fields(VARIANTS[variant]), adapter)
    for name, spec in fields.items():
        if name not in (*HIDDEN, *fixed):
            set_field(variant, adapter, name, spec["default"])


def _read(raw: str, spec: dict[str, Any]) -> Any:
    """A setting's value from a link; None when it cannot be."""
    default = spec["default"]
    if choices := spec.get("choices"):
        return next((choice for choice in choices if str(choice) == raw), None)
    if isinstance(default, bool):
        return {"True": True, "False": False}.get(raw)
    try:
        value = type(default)(raw)
    except ValueError:
        return None
    if not isinstance(value, (int, float)):
        return value
    low, high = spec.get("minimum"), spec.get("maximum")
    # The browser's number input holds no larger ones.
    fits = (low is None or value >= low) and value <= (2**53 - 1 if high is None else high)
    return value if fits else None


def adapter_label(name: str) -> str:
    """A shipped adapter as people read it, from its own config: how its groups were learned, and how many."""
    entry = assets.adapters()[name]
    document = entry["config"]
    if entry.get("user"):
        return f"{name} (made here)"
    config = document.get("config") or {}
    form, groups = str(config.get("form", "")), config.get("groups")
    if document.get("title"):
        return str(document["title"])
    if document.get("kind") == "temperature":
        return "One temperature a layer"
    if document.get("kind") == "thresholds":
        recall = (document.get("record") or {}).get("recall")
        return "A threshold a head" + (f", {100 * recall:g} % of attention" if recall else "")
    if groups is None:
        return name
    label = f"{'k-means' if document.get('kind') == 'kmeans' else _FORMS.get(form, form)}, K={groups}"
    if (config.get("routers") or 1) > 1:
        label += ", one router a KV head"
    return label + (" (its soft gate leaks)" if form == "paper" else "")


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


def _adapter(model: str, kind: str, notices: list[str], optional: bool = False) -> str | None:
    names = list(adapters_for(model, kind))
    seeded = "adapter" in st.session_state.get("_checked", ())
    # A link may mean groups of a model that is only named later.
    wanted = st.session_state.setdefault("_adapter_wanted", "" if seeded else st.query_params.get("adapter", ""))
    if not names:
        links.check("adapter", [], None, notices, lambda _: "none: this model has none yet")
        made = (
            "the page offers to make one"
            if kind in MADE_HERE
            else f"to make one: `python -m focus_core train --kind {kind}`"
        )
        st.caption(f"There is no {_KINDS.get(kind, kind)} for this model yet; {made}.")
        return None

    labels = {name: adapter_label(name) for name in names}
    said = list(labels.values())
    # Two of one kind are told apart by their folders, since a link names the label.
    labels = {name: f"{text} ({name})" if said.count(text) > 1 else text for name, text in labels.items()}
    if optional:
        names, labels = [NO_ADAPTER, *names], {NO_ADAPTER: "None", **labels}
    label = labels.__getitem__
    links.check("adapter", names, names[0], notices, label, bound=False)
    if wanted and (meant := [name for name in names if wanted in (name, labels[name])]):
        st.session_state["adapter"], st.session_state["_adapter_wanted"] = meant[0], ""
    if st.session_state.get("adapter") not in names:
        st.session_state["adapter"] = names[0]
    chosen = st.selectbox(
        _MENUS.get(kind, "Trained groups"),
        names,
        format_func=label,
        key="adapter",
        persist_state="session",
        help="Learned from text; the model's own weights were not touched. Their names on the command line:\n"
        + "".join(f"\n- {text}: `{name}`" for name, text in labels.items() if name != NO_ADAPTER),
    )
    # Which of one's own comes first changes with every one that is made, so a link always names it.
    own = chosen != NO_ADAPTER and assets.adapters()[chosen].get("user")
    links.write("adapter", chosen if own or chosen != names[0] else "")
    return None if chosen == NO_ADAPTER else chosen


def _label(name: str) -> str:
    return name.replace("_", " ").replace("topk", "top-k").capitalize()


def _field(variant: str, adapter: str | None, name: str, spec: dict[str, Any]) -> Any:
    label = _label(name)
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
