"""A run in small: a tiny model, text that can be learned, and settings that take a second."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from focus_core.models.facts import facts_of
from focus_core.training.settings import TrainSettings
from tests.tiny import VOCAB, tiny_model

SMALL = {
    "groups": 4,
    "dim": 4,
    "query_topk": 2,
    "window": 4,
    "sinks": 1,
    "steps": 8,
    "context": 48,
    "batch": 2,
    "warmup": 2,
    "validate_every": 4,
    "validation_windows": 2,
    "checkpoint_every": 100,
}


def settings(**changes: Any) -> TrainSettings:
    return TrainSettings(**(SMALL | changes))


def loaded(**given: Any) -> SimpleNamespace:
    model = tiny_model(**({"layers": 2, "heads": 6, "kv_heads": 2, "head_dim": 8} | given))
    return SimpleNamespace(model=model, tokenizer=None, facts=facts_of(model), name="tiny")


def ids(length: int = 400, seed: int = 0) -> torch.Tensor:
    return torch.randint(1, VOCAB, (length,), generator=torch.Generator().manual_seed(seed))
