"""Training sees the same function: gradients reach what prepare() used, also when layers are run twice."""

import pytest
import torch

from focus_core.retrofit import retrofit
from tests.retrofit.helpers import Gate, Gated, Watcher, tokens
from tests.tiny import tiny_model

FAMILIES = ("gpt2", "llama", "gemma2")


def still(family):
    """A model in training mode whose dropout is off."""
    off = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0} if family == "gpt2" else {}
    return tiny_model(family, **off).train()


def loss_of(model, ids, **given):
    logits = model(ids, **given).logits[:, :-1].double()
    return -logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).mean()


def gradient(model, gate, ids, recorder=None, **given):
    gate.zero_grad()
    with retrofit(model, Gated(), gate, recorder):
        loss_of(model, ids, **given).backward()
    return gate.weight.grad.clone()


def run_layers_twice(model, reentrant):
    """Turn gradient checkpointing on, by the name it has in this version."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_the_slope_of_the_loss(family):
    model, ids = still(family), tokens(2, 24)
    gate = Gate(model.config.hidden_size)
    found = gradient(model, gate, ids, use_cache=False)
    direction, losses = found / found.norm(), []
    for sign in (1, -1):
        with torch.no_grad(), retrofit(model, Gated(), gate):
            gate.weight += sign * 1e-2 * direction
            losses.append(loss_of(model, ids).item())
            gate.weight -= sign * 1e-2 * direction
    slope = (losses[0] - losses[1]) / 2e-2
    assert slope > 1e-2
    assert found.norm().item() == pytest.approx(slope, rel=1e-2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_changes_no_gradient(family, reentrant):
    model, ids = still(family), tokens(2, 24)
    gate = Gate(model.config.hidden_size)
    plain = gradient(model, gate, ids, use_cache=False)
    run_layers_twice(model, reentrant)
    watcher = Watcher()
    again = gradient(model, gate, ids, watcher, use_cache=False)
    assert torch.allclose(plain, again, rtol=1e-4, atol=1e-7)
    assert plain.abs().max() > 1e-5
    assert [call.layer for call in watcher.calls] == [0, 1, 2]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cache_in_training_changes_no_gradient(family):
    model, ids = still(family), tokens(2, 24)
    gate = Gate(model.config.hidden_size)
    plain = gradient(model, gate, ids, use_cache=False)
    assert torch.allclose(plain, gradient(model, gate, ids, use_cache=True), rtol=1e-4, atol=1e-7)
