"""What ran, in one line under a picture that leaves the app."""

from __future__ import annotations

from typing import Any

from analysis import looks
from focus_core.trace import Trace

DEFAULTS = {"backend": "auto", "gate": "hard", "looks": "adapter"}
"""Settings of how a run is computed; as they are by themselves they say nothing about its result."""
_ONLY_WITH = {"temperature": ("gate", ("soft", "straight_through", "paper"))}


def settings(config: dict[str, Any] | None, adapter: str | None = None) -> str:
    """Settings in words: ``16 groups, a query looks into 4, a key is in 1, window of 128 tokens, first 4 tokens``.

    Args:
        config: the settings.
        adapter: the adapter's name, which may have a number of groups for each head.

    Returns:
        ``no settings`` where there are none to speak of.
    """
    config = dict(config or {})
    table, said = looks.table_of(adapter, config), []
    for name, value in config.items():
        on, when = _ONLY_WITH.get(name, (None, ()))
        if DEFAULTS.get(name, ...) == value or (on in config and config[on] not in when):
            continue
        said.append(looks.words(table) if table and name == "query_topk" else _words(name, value))
    return ", ".join(said) or "no settings"


def what_ran(trace: Trace, layer: int | None = None) -> str:
    """Model, text, variant with its settings, layer and date of a run, in one line."""
    p = trace.provenance
    name = p.get("text_name")
    parts = [
        str(p["model"]),
        f"{name or 'own text'}, {len(trace):,} tokens",
        f"{p['variant']}: {settings(p.get('config'), p.get('adapter'))}",
        "" if layer is None else f"layer {layer}",
        str(p.get("time") or "")[:10],
    ]
    return " · ".join(filter(None, parts))


def _words(name: str, value: Any) -> str:
    """One setting in words; one without words of its own keeps its name."""
    made = _WORDS.get(name)
    shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return made.format(shown) if made else f"{name.replace('_', ' ')} {shown.replace('_', ' ')}"


_WORDS = {
    "groups": "{} groups",
    "query_topk": "a query looks into {}",
    "key_topk": "a key is in {}",
    "window": "nearest {} tokens",
    "sinks": "first {} tokens",
    "block": "blocks of {} tokens",
    "window_blocks": "nearest {} blocks",
    "global_blocks": "first {} blocks",
    "random_blocks": "{} random blocks",
    "features": "{} features",
    "threshold": "blocks that hold {} of the sampled attention",
    "stride": "every {}th diagonal sampled",
    "dense_layers": "first {} layers dense",
}
