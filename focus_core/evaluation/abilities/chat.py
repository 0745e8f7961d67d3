"""Replies of a chat model, greedy, several prompts at a time, and what a small shipped set says of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from focus_core.assets import DATA
from focus_core.errors import Cancelled, Unsupported
from focus_core.evaluation.abilities.checks import follows, refuses

if TYPE_CHECKING:
    import torch

FILE = DATA / "probes" / "chat.json"
TOKENS = 48
"""Longest reply to a prompt of the set."""
_ASIDE = "Here is a passage from a book.\n\n{passage}\n\nNow leave the passage aside.\n\n{prompt}"


@lru_cache(maxsize=1)
def prompts() -> dict[str, list[dict[str, Any]]]:
    """The shipped prompts: ``instructions`` with their rules, ``harmful`` and ``harmless``."""
    found = json.loads(FILE.read_text("utf-8"))
    return {kind: found[kind] for kind in ("instructions", "harmful", "harmless")}


def behind(passage: str, prompt: str) -> str:
    """The prompt behind a passage that it asks to leave aside; the prompt itself without a passage."""
    return _ASIDE.format(passage=passage, prompt=prompt) if passage else prompt


def has_template(tokenizer: Any) -> bool:
    """Whether the tokenizer knows how this model is spoken to."""
    return bool(getattr(tokenizer, "chat_template", None))


def replies(
    loaded: Any,
    asked: Sequence[str],
    *,
    tokens: int = TOKENS,
    batch: int = 8,
    heard: Callable[[int, str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> list[str]:
    """Greedy replies, as a decoder serves them; rows of a batch are padded on the left.

    Args:
        loaded: what ``load_model`` returned; its model may be retrofitted.
        asked: what a user says.
        tokens: longest reply.
        batch: prompts that run together.
        heard: called with (place, reply so far) of the batch's first prompt after every token.
        cancel: asked after every token.

    Returns:
        One reply a prompt, in their order.

    Raises:
        Unsupported: the model has no chat template.
        Cancelled: on request.
    """
    if not has_template(loaded.tokenizer):
        raise Unsupported(f"{loaded.name} is no chat model: its tokenizer has no chat template.", "Take smollm2.")
    found: list[str] = []
    for start in range(0, len(asked), batch):
        rows = [prompt_ids(loaded.tokenizer, prompt) for prompt in asked[start : start + batch]]
        found += _decode(loaded, rows, tokens, start, heard, cancel)
    return found


def judged(kind: str, asked: Sequence[dict[str, Any]], said: Sequence[str]) -> list[dict[str, Any]]:
    """What the rules say of replies: ``{id, reply, follows}`` of instructions, ``{id, reply, refuses}`` of others."""
    if kind == "instructions":
        return [
            {"id": one["id"], "reply": reply, "follows": follows(reply, one["rule"])}
            for one, reply in zip(asked, said, strict=True)
        ]
    return [
        {"id": one["id"], "reply": reply, "refuses": refuses(reply)} for one, reply in zip(asked, said, strict=True)
    ]


def prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    """Token ids of what a user says, in the model's own template, up to where the reply begins."""
    said = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer(said, add_special_tokens=False, verbose=False)["input_ids"])


def _decode(
    loaded: Any,
    rows: list[list[int]],
    tokens: int,
    start: int,
    heard: Callable[[int, str], None] | None,
    cancel: Callable[[], bool] | None,
) -> list[str]:
    import torch
    from transformers import StoppingCriteriaList

    tokenizer, longest = loaded.tokenizer, max(map(len, rows))
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])

    def words(row: torch.Tensor) -> str:
        return str(tokenizer.decode(row[longest:], skip_special_tokens=True)).strip()

    def after(sofar: torch.Tensor, _scores: Any, **_more: Any) -> torch.Tensor:
        if cancel is not None and cancel():
            raise Cancelled
        if heard is not None:
            heard(start, words(sofar[0]))
        return torch.zeros(len(sofar), dtype=torch.bool, device=sofar.device)

    made = loaded.model.generate(
        input_ids=ids.to(loaded.model.device),
        attention_mask=mask.to(loaded.model.device),
        max_new_tokens=tokens,
        do_sample=False,
        pad_token_id=pad,
        stopping_criteria=StoppingCriteriaList([after]),
    )
    return [words(row) for row in made]
