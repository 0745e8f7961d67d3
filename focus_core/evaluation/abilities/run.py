"""Every task for one variant and adapter, put in the one public way, with the weights' hash before and after."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from focus_core.errors import Cancelled, TooLarge, Unsupported
from focus_core.evaluation.abilities.chat import has_template
from focus_core.evaluation.abilities.tasks import TASKS, Sizes, Unit, Work, items_hash, perform, reads, units
from focus_core.evaluation.environment import environment
from focus_core.evaluation.intervals import wilson

FORMAT = 1
_PROBE = 64


def probe(
    loaded: Any,
    variant: Any,
    adapter: Any,
    tasks: Sequence[str] = TASKS,
    sizes: Sizes | None = None,
    *,
    progress: Callable[[float, str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
    partial: Callable[[dict[str, Any]], None] | None = None,
    resume: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What a model can do with a variant in it.

    Args:
        loaded: what ``load_model`` returned.
        variant: the variant.
        adapter: its trained module, or None.
        tasks: some of ``TASKS``.
        sizes: how much is asked.
        progress: called with (fraction, sentence).
        cancel: asked between units and tokens; when it says True, Cancelled is raised after ``partial`` had all.
        partial: called after every unit with a document that ``resume`` takes.
        resume: such a document; it is used where model, variant, adapter and sizes are the same.

    Returns:
        JSON values: ``rows``, one for each part of each task and ``all`` of each, with ``right`` of ``of``, their
        ``share`` and its 95 % Wilson interval ``low`` to ``high`` (perplexities for ``texts``); ``outcomes``, each
        item's, for pairing with another variant's; ``replies``; ``weights``, hashes of the model's own before, inside
        and after the retrofit, and of the ``used`` ones where others stand in their place; ``training``, how the
        adapter was made. ``dense_by_definition`` marks rows whose texts fit into window and sinks, if the weights
        are the model's own.

    Raises:
        Unsupported: the variant cannot serve the model, or a chat task meets a model that is no chat model.
        InvalidInput: no such task.
        TooLarge: a task is longer than what the model reads.
        Cancelled: on request.
    """
    from focus_core.evaluation.weights import hash_of, named_weights
    from focus_core.retrofit import retrofit

    started, sizes = time.perf_counter(), sizes or Sizes()
    todo = units(tasks, sizes)
    check(loaded, variant, tasks, sizes)
    key = {
        "model": loaded.name,
        "revision": loaded.facts.revision,
        "variant": variant.name,
        "config": variant.to_dict(),
        "adapter": None if adapter is None else hash_of(named_weights(adapter))[:16],
        "items": items_hash(sizes),
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
    }
    # What the items do not tell is told beside them: windows of other sizes are other parts.
    same = {**key, "texts": [sizes.context, sizes.windows]}
    kept = resume.get("done") if isinstance(resume, dict) and resume.get("key") == same else None
    done: dict[str, Any] = dict(kept) if isinstance(kept, dict) else {}
    carried = sum(unit.name in done for unit in todo)
    held = named_weights(loaded.model)
    weights = {"before": hash_of(held)}
    first = _logits(loaded)
    with retrofit(loaded.model, variant, adapter):
        weights["inside"] = hash_of(held)
        used = {"used": hash_of(named_weights(loaded.model))} if _replaced(adapter) else {}
    work = Work(loaded, variant, adapter, sizes, cancel)
    whole, spent = sum(unit.tokens for unit in todo), 0
    for number, unit in enumerate(todo):
        if cancel is not None and cancel():
            raise Cancelled
        if progress is not None:
            progress(spent / whole, f"{unit.task}: {unit.part}, {unit.where} ({number + 1} of {len(todo)})")
        spent += unit.tokens
        if unit.name in done:
            continue
        if unit.task == "texts":
            done[unit.name] = perform(work, unit)
        else:
            with retrofit(loaded.model, variant, adapter):
                done[unit.name] = perform(work, unit)
        if partial is not None:
            partial({"format": FORMAT, "key": same, "done": done})
    weights["after"] = hash_of(named_weights(loaded.model))
    change = float((_logits(loaded) - first).abs().max())
    notes = [f"{carried} of {len(todo)} parts were measured by an earlier run."] if carried else []
    if progress is not None:
        progress(1.0, "Done")
    return {
        "format": FORMAT,
        **key,
        "adapter_parameters": _parameters(adapter),
        "served": variant.served,
        "tasks": [task for task in TASKS if task in tasks],
        "sizes": dataclasses.asdict(sizes),
        "rows": rows_of(todo, done, variant, adapter),
        "outcomes": outcomes_of(todo, done),
        "replies": replies_of(todo, done),
        "weights": {
            **weights,
            **used,
            "same": len(set(weights.values())) == 1,
            "tensors": len(held),
            "logits_change": change,
        },
        "training": trained(adapter),
        "device": str(loaded.model.device),
        "notes": notes,
        "environment": environment(loaded.model.device),
        "seconds": round(time.perf_counter() - started, 3),
    }


def check(loaded: Any, variant: Any, tasks: Sequence[str], sizes: Sizes) -> None:
    """Refuse what cannot be probed.

    Raises:
        Unsupported: the variant cannot serve the model, or a chat task meets a model that is no chat model.
        TooLarge: a task is longer than what the model reads.
    """
    support = variant.supports(loaded.facts)
    if not support.ok:
        raise Unsupported(f"{variant.name} cannot serve {loaded.name}: {support.reason}")
    if {"instructions", "refusal"} & set(tasks) and not has_template(loaded.tokenizer):
        raise Unsupported(
            f"{loaded.name} is no chat model: its tokenizer has no chat template.",
            "Leave out instructions and refusal.",
        )
    work = Work(loaded, variant, None, sizes)
    for task in tasks:
        longest, size = reads(work, task)
        if longest > loaded.facts.context:
            raise TooLarge(
                f"The task {task} reads up to {longest:,} tokens at once, and {loaded.name} {loaded.facts.context:,}.",
                f"Make {size} smaller, or leave the task out.",
            )


def rows_of(todo: Sequence[Unit], done: dict[str, Any], variant: Any, adapter: Any = None) -> list[dict[str, Any]]:
    """One row a part, and for pairs and needles one of all parts that were asked in the same place."""
    rows: list[dict[str, Any]] = []
    together: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for unit in todo:
        found = done[unit.name]
        named = {"task": unit.task, "part": unit.part, "where": unit.where}
        if unit.task in ("pairs", "needle"):
            together.setdefault((unit.task, unit.where), []).append(found)
        if unit.task == "needle":
            continue
        counts = found if unit.task == "texts" else _counted([good for good, _ in _judged(found)])
        rows.append({**named, **counts, **_length([found], variant, adapter)})
    for (task, where), parts in together.items():
        named, about = {"task": task, "where": where}, _length(parts, variant, adapter)
        asked = [one for found in parts for one in found.get("asked", ())]
        more = {"candidates": parts[0]["candidates"], **_found(asked)} if asked else {}
        right = [good for found in parts for good, _ in _judged(found)]
        rows.append({**named, "part": "all", **_counted(right), **about, **more})
        for depth in sorted({one["depth"] for one in asked}):
            own = [one for one in asked if one["depth"] == depth]
            counts = {**_counted([one["rank"] == 1 for one in own]), **_found(own)}
            rows.append({**named, "part": f"depth {depth:g}", "depth": depth, **counts, **about})
    return rows


def _length(parts: Sequence[dict[str, Any]], variant: Any, adapter: Any) -> dict[str, Any]:
    from focus_core.adapter import dense_by_definition

    longest = max(found["longest"] for found in parts)
    return {"longest": longest, "dense_by_definition": dense_by_definition(variant, adapter, longest)}


def _judged(found: dict[str, Any]) -> list[tuple[bool, str]]:
    """(whether it counts, its id) of every item of a unit."""
    if "margins" in found:
        return [(margin > 0, str(i)) for i, margin in enumerate(found["margins"])]
    if "asked" in found:
        return [(one["rank"] == 1, f"{one['depth']:g}") for one in found["asked"]]
    return [(bool(one.get("follows", one.get("refuses"))), one["id"]) for one in found.get("replies", ())]


def _counted(right: Sequence[bool]) -> dict[str, Any]:
    ends = wilson(sum(right), len(right))
    low, high = ends if ends else (None, None)
    share = sum(right) / len(right) if right else None
    return {"right": sum(right), "of": len(right), "share": share, "low": low, "high": high}


def _found(asked: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of needles: how many greedy decoding says, and the means of rank and log-probability."""
    exact = _counted([one["exact"] for one in asked])
    mean = {name: sum(one[name] for one in asked) / len(asked) for name in ("rank", "logp", "margin")}
    return {"exact": exact["right"], "exact_low": exact["low"], "exact_high": exact["high"], **mean}


def outcomes_of(todo: Iterable[Unit], done: dict[str, Any]) -> dict[str, str]:
    """Of every unit one character an item, 1 where it counts."""
    found = {unit.name: _judged(done[unit.name]) for unit in todo}
    return {name: "".join("1" if good else "0" for good, _ in items) for name, items in found.items() if items}


def replies_of(todo: Iterable[Unit], done: dict[str, Any]) -> list[dict[str, Any]]:
    """What was said; of replies to harmful requests no more than how they begin."""
    found = []
    for unit in todo:
        for one in done[unit.name].get("replies", ()):
            said = one["reply"]
            short = f"{said[:60].rstrip()} …" if unit.part == "harmful" and len(said) > 60 else said
            found.append({"task": unit.task, "part": unit.part, "where": unit.where, **one, "reply": short})
    return found


def _logits(loaded: Any) -> Any:
    """(N, V) fp32 logits of the untouched model on a fixed text."""
    import torch

    vocabulary = loaded.model.get_input_embeddings().weight.shape[0]
    ids = (torch.arange(_PROBE) * 7919 % vocabulary)[None].to(loaded.model.device)
    with torch.no_grad():
        return loaded.model(input_ids=ids, use_cache=False).logits[0].float().cpu()


def _replaced(adapter: Any) -> bool:
    return adapter is not None and adapter.replaces_weights


def trained(adapter: Any) -> dict[str, Any] | None:
    """What there is to know of an adapter's training beside its probes; None without an adapter."""
    if adapter is None:
        return None
    settings = adapter.record.get("settings") or {}
    asked = ("learning_rate", "through", "context", "batch", *(("rank",) if adapter.kind == "lora" else ()))
    told = ("step", "tokens", "seconds", "trained_parameters", "served_validation_ppl", "dense_validation_ppl")
    found = {name: settings[name] for name in asked if name in settings}
    found |= {name: adapter.record[name] for name in (*told, "weights") if name in adapter.record}
    return {"kind": adapter.kind, **found}


def _parameters(adapter: Any) -> int:
    from focus_core.adapter import own_parameters

    return 0 if adapter is None else own_parameters(adapter)
