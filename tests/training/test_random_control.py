"""The random control in training from nothing, against dense attention under its mask written out."""

import json

import pytest
import torch
from transformers import AttentionInterface

from data.build import scratch as record
from focus_core.assets import DATA
from focus_core.retrofit import retrofit
from focus_core.routing.sets import members, random_groups
from focus_core.training.scratch import loss_of, new_model
from focus_core.variants import make
from tests.training.small import ids, loaded

TOKENS, GROUPS, QUERY, WINDOW, SINKS = 40, 4, 2, 4, 1


def mask(layer, tokens, groups, query, window, sinks, seed=0):
    """(N, N) bool by the definition: earlier, and near, first or in a group that the query looks into."""
    positions = torch.arange(tokens)
    theirs, looked = (
        members(random_groups(positions[None], layer, 0, groups, k, seed)[0], groups).int() for k in (1, query)
    )
    distance = positions[:, None] - positions
    return (distance >= 0) & ((distance < window) | (positions < sinks) | (looked @ theirs.T > 0))


def written_out(module, query, key, value, attention_mask, scaling=None, **_):
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    kept = mask(module.layer_idx, query.shape[2], GROUPS, QUERY, WINDOW, SINKS)
    return (scores.masked_fill(~kept, float("-inf")).softmax(-1) @ value).transpose(1, 2), None


@pytest.fixture
def model():
    """Weights wide enough that a wrong mask is seen; without dropout, the two ways draw the same."""
    like = loaded(family="gpt2", heads=2, head_dim=8, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0).model
    model = new_model(like, 0)
    model.load_state_dict(like.state_dict())
    return model


def gradients(model, window):
    model.zero_grad()
    loss = loss_of(model, window)
    loss.backward()
    return loss.item(), [p.grad.clone() for p in model.parameters()]


def test_training_is_that_of_dense_attention_under_the_mask(model, monkeypatch):
    window = torch.stack([ids(TOKENS), ids(TOKENS, seed=1)])
    variant = make("random", {"groups": GROUPS, "query_topk": QUERY, "window": WINDOW, "sinks": SINKS})
    plain, _ = gradients(model, window)
    with retrofit(model, variant):
        loss, found = gradients(model, window)
    monkeypatch.setitem(AttentionInterface._global_mapping, "written_out", written_out)
    model.set_attn_implementation("written_out")
    wanted_loss, wanted = gradients(model, window)
    assert loss == pytest.approx(wanted_loss, abs=1e-5)
    assert abs(loss - plain) > 1e-3
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_record_tells_the_pairs_of_the_mask():
    """Counted one by one; every layer draws another mask."""
    document = json.loads((DATA.parent / record.RECORD).read_text("utf-8"))
    run = next(run for run in document["runs"] if run["line"] == "random-k16")
    config, told = run["config"], run["measured"][0]
    length = told["context"]
    kept = [
        mask(layer, length, config["groups"], config["query_topk"], config["window"], config["sinks"], config["seed"])
        for layer in range(6)
    ]
    shares = [m.sum().item() / (length * (length + 1) / 2) for m in kept]
    assert told["kept_pairs"] == pytest.approx(sum(shares) / 6, abs=1e-6)
    assert all(share == pytest.approx(told["kept_pairs"], abs=1e-3) for share in shares)
    assert not any(torch.equal(kept[0], other) for other in kept[1:])
    assert told["leak"] == 0
