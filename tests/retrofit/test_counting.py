"""What dense and window say of a call: counted pairs equal the pattern's, and the pattern equals what was computed."""

import numpy as np
import pytest
import torch

from focus_core.retrofit import retrofit
from focus_core.variants import make
from focus_core.variants.base import Shape
from focus_core.variants.counting import near_pairs
from tests.retrofit.helpers import Watcher, positions_of, step, tokens
from tests.tiny import tiny_model

NEAR = [("dense", {}), ("window", {"window": 4, "sinks": 0}), ("window", {"window": 3, "sinks": 2})]


@pytest.mark.parametrize("name, settings", [*NEAR, ("window", {"window": 60, "sinks": 3})])
@pytest.mark.parametrize("queries", [None, 1, 7])
def test_counted_pairs_are_the_patterns(name, settings, queries):
    model, ids, watcher = tiny_model("llama"), tokens(2, 30), Watcher()
    variant = make(name, settings)
    new = 30 if queries is None else queries
    with torch.no_grad(), retrofit(model, variant):
        cache = step(model, ids[:, : 30 - new])[1] if new < 30 else None
    with torch.no_grad(), retrofit(model, variant, recorder=watcher):
        step(model, ids[:, 30 - new :], cache)
    pattern = variant.pattern(watcher.calls[0])
    pairs = int(pattern.kept_per_query(0, 0).sum())
    shape = Shape(batch=2, heads=9, kv_heads=3, head_dim=16, length=30, queries=queries)
    assert variant.cost(shape).flops == 4 * 2 * 9 * 16 * pairs
    keys = int(pattern.tile(0, 0, slice(0, new), slice(0, 30)).any(0).sum())
    assert variant.cost(shape).bytes == 2 * 16 * 4 * (2 * new * 9 + 2 * keys * 3)
    assert variant.cost(shape).kv_bytes_per_token == 2 * 3 * 16 * 4


def test_pairs_by_hand():
    shape = Shape(batch=1, heads=1, kv_heads=1, head_dim=1, length=6)
    assert near_pairs(shape, 6) == 21
    assert near_pairs(shape, 2, 1) == 1 + 2 + 3 + 3 + 3 + 3


@pytest.mark.parametrize("name, settings", NEAR)
def test_the_pattern_is_what_was_computed(name, settings):
    model, ids, watcher = tiny_model("gemma2", layers=2), tokens(2, 20), Watcher()
    variant = make(name, settings)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    with torch.no_grad(), retrofit(model, variant, recorder=watcher):
        model(ids, attention_mask=mask, position_ids=positions_of(mask))
    call = watcher.calls[1]
    kept = np.stack([variant.pattern(call).tile(b, 0, slice(0, 20), slice(0, 20)) for b in range(2)])
    scores = call.query @ call.key.repeat_interleave(3, 1).mT * call.scale
    scores = call.softcap * torch.tanh(scores / call.softcap)
    weights = scores.masked_fill(~torch.from_numpy(kept)[:, None], -torch.inf).softmax(-1)
    wanted = weights @ call.value.repeat_interleave(3, 1)
    given = variant.attend(call)
    assert torch.allclose(given[0], wanted[0], atol=1e-5)
    assert torch.allclose(given[1, :, 5:], wanted[1, :, 5:], atol=1e-5)
