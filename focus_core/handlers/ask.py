"""One prompt to a chat model with each of several variants or adapters in it: the same question, answered side by side.

Request: ``{model, prompt, passage, tokens, entries: [{variant, config, adapter, label}]}``; with ``passage`` the prompt
stands behind the shipped one. Result: ``{about, rows, complete}``; a row is ``{key, label, variant, adapter, reply,
prompt_tokens, dense_by_definition, complete}`` and is handed over whenever its reply has grown. ``about.weights`` has
the hash of the model's own weights before and after.
"""

from __future__ import annotations

import json
import time
from typing import Any

from focus_core.errors import InvalidInput, TooLarge, Unsupported
from focus_core.handlers import _requests as requests
from focus_core.jobs.costs import Estimate, Host, say_count
from focus_core.models.shapes import shape_of

MAX_ENTRIES = 8
MAX_TOKENS = 256
MAX_PROMPT = 8000
_PASSAGE_TOKENS = 256
_DECODE_SHARE = 0.3
"""A decoded token's time as a share of what one read alone is foreseen to take (measured)."""
_HEARD_SECONDS = 0.4


def estimate(request: dict[str, Any], host: Host) -> Estimate:
    """Cost of all replies at their longest; see ``focus_core.handlers``."""
    model = requests.model_name(request)
    prompt, tokens, entries = _checked(request)
    shape = shape_of(model)
    if shape is None:
        return requests.unknown_cost(model)
    read = 40 + requests.count_tokens(prompt, None, model)[0] + _PASSAGE_TOKENS * bool(request.get("passage"))
    if read + tokens > shape.context:
        raise TooLarge(
            f"{model} reads at most {shape.context:,} tokens; the prompt and its reply take about {read + tokens:,}.",
            "Shorten the prompt.",
        )

    def cost(count: int) -> tuple[float, int]:
        decoded = count * _DECODE_SHARE * requests.forward_seconds(shape, 1, host)
        return len(entries) * (requests.forward_seconds(shape, read, host) + decoded), requests.forward_bytes(
            shape, read
        )

    detail = f"{say_count(len(entries), 'replies')}, {say_count(host.cores, 'cores')}"
    return host.fit("ask", cost, tokens, detail=detail, fixed=requests.loading(model, host))


def identity(request: dict[str, Any]) -> Any:
    """See ``focus_core.handlers``."""
    entries = request.get("entries") or []
    return [requests.files_identity({**request, "adapter": e.get("adapter")}) for e in entries]


def run(request: dict[str, Any], context: Any) -> dict[str, Any]:
    """Ask each; the replies that were there before a cancel stay."""
    from focus_core.adapter import dense_by_definition
    from focus_core.evaluation.abilities import chat
    from focus_core.evaluation.abilities.tasks import Sizes, Work
    from focus_core.evaluation.environment import environment
    from focus_core.evaluation.weights import hash_of, named_weights
    from focus_core.retrofit import retrofit

    prompt, tokens, entries = _checked(request)
    loaded = context.model(requests.model_name(request))
    if not chat.has_template(loaded.tokenizer):
        raise Unsupported(f"{loaded.name} is no chat model: its tokenizer has no chat template.", "Take smollm2.")
    passage = Work(loaded, None, None, Sizes(passage=_PASSAGE_TOKENS)).passage if request.get("passage") else ""
    asked = chat.behind(passage, prompt)
    read = len(chat.prompt_ids(loaded.tokenizer, asked))
    held = named_weights(loaded.model)
    about: dict[str, Any] = {
        "model": loaded.name,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "prompt": prompt,
        "passage": passage,
        "weights": {"before": hash_of(held)},
        "environment": environment(loaded.model.device),
    }
    context.partial({"about": about})
    rows = []
    for number, entry in enumerate(entries):
        variant, adapter, name = requests.build_variant({**request, **entry}, loaded.model)
        row: dict[str, Any] = {
            "key": json.dumps([entry["variant"], entry.get("config") or {}, name]),
            "label": entry.get("label") or entry["variant"],
            "variant": entry["variant"],
            "adapter": name,
            "prompt_tokens": read,
            "dense_by_definition": dense_by_definition(variant, adapter, read + tokens),
        }
        told = [0.0, 0]

        def heard(_place: int, words: str, row: dict = row, told: list = told, number: int = number) -> None:
            told[1] += 1
            context.progress((number + told[1] / tokens) / len(entries), f"{row['label']} answers")
            if time.monotonic() - told[0] >= _HEARD_SECONDS:
                told[0] = time.monotonic()
                context.partial({"row": {**row, "reply": words, "complete": False}})

        context.progress(number / len(entries), f"{row['label']} reads {read:,} tokens")
        with retrofit(loaded.model, variant, adapter):
            said = chat.replies(loaded, [asked], tokens=tokens, heard=heard, cancel=context.cancelled)[0]
        rows.append({**row, "reply": said, "complete": True})
        context.partial({"row": rows[-1]})
    about["weights"]["after"] = hash_of(named_weights(loaded.model))
    return {"about": about, "rows": rows, "complete": True}


def _checked(request: dict[str, Any]) -> tuple[str, int, list[dict[str, Any]]]:
    prompt, tokens, entries = request.get("prompt"), request.get("tokens", 64), request.get("entries")
    if not isinstance(prompt, str) or not prompt.strip():
        raise InvalidInput("The prompt is empty.", "Write a question, or take one of the shipped ones.")
    if len(prompt) > MAX_PROMPT:
        raise TooLarge(f"The prompt has {len(prompt):,} characters; {MAX_PROMPT:,} are taken.", "Shorten it.")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 1 <= tokens <= MAX_TOKENS:
        raise InvalidInput(f"tokens is {tokens!r}.", f"A reply can have 1 to {MAX_TOKENS}.")
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_ENTRIES:
        raise InvalidInput(f"{len(entries or [])} models are to answer.", f"Choose 1 to {MAX_ENTRIES}.")
    for entry in entries:
        requests.check_variant({**request, **entry})
    return prompt.encode("utf-8", "replace").decode(), tokens, entries
