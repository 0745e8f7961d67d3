"""The Compare page's material: what can be compared, the request, and what was recorded."""

from __future__ import annotations

from typing import Any

from analysis import looks
from analysis.comparison import recorded_row
from analysis.records import full, own_name
from app.ui import recorded
from app.ui.settings import adapters_for, serve_defaults, variant_label
from app.ui.view import Page
from focus_core import assets
from focus_core.variants import LORA, VARIANTS, make

SELECTED = "selected"
NOVEL = "persuasion"
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
TEMPERATURES = (1.0, 0.3, 0.1, 0.03)
KIND = "compare"
_SAID = ("groups", "query_topk", "key_topk", "window", "sinks", "gate", "temperature", "backend")
"""Settings that a line's name has in a form of its own, or leaves out."""


def short(variant: str, config: dict[str, Any], adapter: str | None = None, *, named: bool = True) -> str:
    """A line's name as people read it: groups and how many a token uses, or the window, and what else was changed.

    The adapter stands behind it where it is to be ``named``; what its table says of groups always does.
    """
    usual = make(variant).to_dict()
    full = {**usual, **config}
    name = variant if variant in ("window", "random") else variant_label(variant)
    if "query_topk" in full:
        table = looks.table_of(adapter, full)
        name += f" K={full['groups']} q{looks.span(table) if table else full['query_topk']}k{full['key_topk']}"
        if full["window"] != usual["window"]:
            name += f" window {full['window']}"
    elif "window" in full:
        name += f" {full['window']} + {full['sinks']}"
    for field, value in full.items():
        if field not in _SAID and value != usual[field]:
            name += f" {field.replace('_', ' ')} {f'{value:.4g}' if isinstance(value, float) else value}"
    if full.get("gate", "hard") != "hard":
        name += f" {full['gate']}" + (f" {full['temperature']:g}" if full["gate"] == "soft" else "")
    return f"{name} ({adapter})" if adapter and named else name


def choices(page: Page) -> dict[str, dict[str, Any]]:
    """Everything that can be compared on this model, by a stable name; the sidebar's own settings come first."""
    found: dict[str, dict[str, Any]] = {}
    chosen = VARIANTS[page.variant]
    if page.variant != "dense" and (page.adapter or not chosen.adapter_kind or chosen.adapter_optional):
        found[SELECTED] = line(page, page.variant, page.config, page.adapter)
    for name in sorted(VARIANTS, key=lambda n: (n != "focus", n)):
        kind = VARIANTS[name].adapter_kind
        if name == "dense":
            found |= _with_lora(page)
            continue
        if kind is None or VARIANTS[name].adapter_optional:
            found[name] = line(page, name, {}, None)
        for adapter in adapters_for(page.model, kind) if kind else ():
            config = serve_defaults(adapter)
            found[f"{name}.{adapter}"] = line(page, name, config, adapter)
            if config.get("query_topk", 1) > 1:
                found[f"{name}.{adapter}.q1"] = line(page, name, {**config, "query_topk": 1}, adapter)
    own = found.get(SELECTED)
    kept = {k: e for k, e in found.items() if k == SELECTED or not _same(e, own)}
    return {**kept, **_measured_before(page, kept)}


def _with_lora(page: Page) -> dict[str, dict[str, Any]]:
    """Dense attention with each LoRA of this model, and the variant that it was trained through with it."""
    found = {}
    for adapter, entry in adapters_for(page.model, LORA).items():
        config = entry["config"].get("config") or {}
        through = config.get("through", "dense")
        lines = {"dense": {}, **({through: serve_defaults(adapter)} if through in VARIANTS else {})}
        for name, settings in lines.items():
            label = f"LoRA r={config.get('rank')} ({adapter})"
            if name != "dense":
                label = f"{short(name, settings)} + {label}"
            found[f"{name}.{adapter}"] = {"variant": name, "config": dict(settings), "adapter": adapter, "label": label}
    return found


def _measured_before(page: Page, known: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Lines of recorded results on this model whose settings are none of the known lines'."""
    shipped, found = assets.adapters(), {}
    seen = [(e["variant"], full(e["variant"], e["config"]), e["adapter"]) for e in known.values()]
    for record in recorded.lines():
        identity = (record.variant, record.config, record.adapter)
        if record.model != page.model or not record.served or identity in seen or record.variant == "dense":
            continue
        if record.adapter is not None and record.adapter not in shipped:
            continue
        cls = VARIANTS[record.variant]
        if record.adapter is None and cls.adapter_kind and not cls.adapter_optional:
            continue
        seen.append(identity)
        usual = full(record.variant, serve_defaults(record.adapter))
        changed = [f"{k}={v}" for k, v in record.config.items() if usual is None or usual.get(k) != v]
        key = "+".join([".".join(filter(None, [record.variant, record.adapter])), *changed])
        found[key] = line(page, record.variant, record.config, record.adapter)
    return found


def defaults(options: dict[str, dict[str, Any]]) -> list[str]:
    """The sidebar's variant with the two controls that show what its groups add."""
    own = options.get(SELECTED, {}).get("adapter")
    wanted = [SELECTED, f"focus.{own}", f"focus.{own}.q1", "window", "random"]
    return [k for k in wanted if k in options]


def text_fields(page: Page, novel: bool) -> dict[str, Any] | None:
    """The request's text: the sidebar's, or the held-out novel; None when there is none."""
    if novel:
        return {"text_name": NOVEL, "text": None}
    return page.text.fields if page.text else None


def text_tokens(page: Page, novel: bool) -> int | None:
    """Tokens of that text; judged by its length when it is not a shipped one."""
    name = NOVEL if novel else page.text.name if page.text else None
    if name:
        return next((t["tokens"] for t in assets.catalog()["texts"] if t["name"] == name), None)
    return round(len(page.text.text.encode()) / 4.2) if page.text else None


def request(
    page: Page, entries: list[dict[str, Any]], lengths: list[int], repeats: int, novel: bool, windows: int = 4
) -> dict[str, Any] | None:
    """The ``compare`` job for these choices; None while there is nothing to compare or to read."""
    text = text_fields(page, novel)
    if text is None or not entries or not lengths:
        return None
    fields = {"entries": entries, "lengths": sorted(lengths), "repeats": repeats, "windows": windows}
    return {"model": page.model, **text, **fields}


def gate_entries(page: Page) -> list[dict[str, Any]]:
    """Focus from the softest gate to the served one, and the paper's where an adapter of its form ships."""
    routers = adapters_for(page.model, "router")
    plain = [name for name, entry in routers.items() if _form(entry) != "paper"]
    adapter = page.adapter if page.adapter in plain else next(iter(plain), None)
    entries = []
    for name, entry in routers.items():
        if _form(entry) == "paper":
            entries.append(line(page, "focus", {**serve_defaults(name), "gate": "paper"}, name))
    if adapter:
        own = page.config if page.adapter == adapter and page.variant == "focus" else serve_defaults(adapter)
        base = {k: v for k, v in own.items() if k not in ("gate", "temperature")}
        entries += [line(page, "focus", {**base, "gate": "soft", "temperature": t}, adapter) for t in TEMPERATURES]
        entries.append(line(page, "focus", {**base, "gate": "hard"}, adapter))
    return entries


def shipped(prefix: str) -> list[dict[str, Any]]:
    """Recorded comparisons whose files' names begin so."""
    return [d for d in recorded.documents(prefix) if d.get("rows")]


def recorded_points(model: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """(caption, row) of the shipped evaluations of this model."""
    found = []
    for document in recorded.documents():
        row = recorded_row(document)
        if row is not None and document.get("model") == model:
            row["label"] = short(row["variant"], row["config"], own_name(document.get("adapter_name")))
            found.append((_caption(document), row))
    return tuple(found)


def _caption(document: dict[str, Any]) -> str:
    where = document.get("environment") or {}
    date = str(where.get("time", ""))[:10]
    text = document.get("text") or "a text"
    return ", ".join(filter(None, [f"{text}, {document.get('context', 0):,} tokens", where.get("device"), date]))


def line(page: Page, variant: str, config: dict[str, Any], adapter: str | None) -> dict[str, Any]:
    """An entry of a comparison request, with its name."""
    # The adapter that is selected at the left need not be named on every line.
    label = short(variant, config, adapter, named=adapter != page.adapter)
    return {"variant": variant, "config": dict(config), "adapter": adapter, "label": label}


def _same(entry: dict[str, Any], other: dict[str, Any] | None) -> bool:
    if other is None or entry["variant"] != other["variant"] or entry["adapter"] != other["adapter"]:
        return False
    return make(entry["variant"], entry["config"]) == make(other["variant"], other["config"])


def _form(entry: dict[str, Any]) -> str | None:
    return (entry["config"].get("config") or {}).get("form")
