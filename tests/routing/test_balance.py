"""Loads are counted from served sets of real tokens, once; and the bias moves towards even groups."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from focus_core.retrofit import retrofit
from focus_core.routing.balance import LoadMeter, move_bias, move_duals
from focus_core.routing.router import Router, RouterConfig
from focus_core.variants import make
from tests.tiny import VOCAB, tiny_model


def router(**given) -> Router:
    made = Router(RouterConfig(**({"layers": 2, "hidden_size": 24, "groups": 6, "dim": 4, "routers": 3} | given)))
    with torch.no_grad():
        made.bias.copy_(torch.randn(made.bias.shape, generator=torch.Generator().manual_seed(1)) / 5)
    return made


def call(layer: int = 0, first=None, window=None, length: int = 40, seed: int = 0, size: int = 24):
    hidden = torch.randn(2, length, size, generator=torch.Generator().manual_seed(seed))
    first = None if first is None else torch.tensor(first)
    return SimpleNamespace(layer=layer, hidden=hidden, first_key=first, sliding_window=window)


@pytest.mark.parametrize("key_topk, sinks, first", [(1, 0, None), (2, 3, None), (1, 3, [0, 11]), (2, 0, [5, 40])])
def test_the_load_is_what_numpy_counts(key_topk, sinks, first):
    made, asked = router(), call(1, first)
    meter = LoadMeter(made, key_topk, sinks)
    meter.record(asked, None)
    logits = made.logits(1, asked.hidden)[0].detach().numpy()
    wanted = np.zeros((2, 3, 6))
    for b in range(2):
        start = (0 if first is None else first[b]) + sinks
        for r in range(3):
            for n in range(start, 40):
                wanted[1, r, np.argsort(-logits[b, r, n])[:key_topk]] += 1
    assert np.array_equal(meter.load.numpy(), wanted)
    total = wanted.sum(-1, keepdims=True)
    share = np.where(total > 0, wanted * 6 / np.maximum(total, 1), 1)
    np.testing.assert_allclose(meter.share().numpy(), share, rtol=1e-6)


def test_loads_add_up_until_reset_and_native_layers_are_not_counted():
    meter = LoadMeter(router(), 1, 0)
    meter.record(call(0), None)
    meter.record(call(0, seed=1), None)
    meter.record(call(1, window=8), None)
    assert meter.load[0].sum(-1).tolist() == [160] * 3
    assert meter.load[1].sum() == 0
    assert (meter.share()[1] == 1).all()
    meter.reset()
    assert meter.load.sum() == 0


def test_the_bias_moves_against_the_load_and_stays_centred():
    made = router(layers=1, routers=1, groups=4)
    made.bias.zero_()
    meter = LoadMeter(made, 1, 0)
    meter.load = torch.tensor([[[40.0, 10.0, 10.0, 20.0]]])
    move_bias(made, meter, 0.1)
    # Signs +1, -1, -1, 0 of the error give -0.1, 0.1, 0.1, 0 before the mean of 0.025 is taken out.
    torch.testing.assert_close(made.bias[0, 0], torch.tensor([-0.125, 0.075, 0.075, -0.025]))
    assert made.bias.mean().item() == pytest.approx(0, abs=1e-7)


def test_a_layer_that_was_not_counted_keeps_its_bias():
    made = router()
    made.bias.sub_(made.bias.mean(-1, keepdim=True))
    before, meter = made.bias.clone(), LoadMeter(made, 1, 0)
    meter.record(call(0), None)
    move_bias(made, meter, 0.1)
    torch.testing.assert_close(made.bias[1], before[1])
    assert not torch.allclose(made.bias[0], before[0])


def skewed() -> Router:
    """A router whose tokens nearly all join one group."""
    made = Router(RouterConfig(1, 24, groups=6, dim=4))
    made.bias[0, 0, 2] = 1.5
    return made


def fullest(made: Router, balance: str, steps: int) -> list[float]:
    meter, seen = LoadMeter(made, 1, 0, keep_logits=balance == "sinkhorn"), []
    for step in range(steps):
        meter.reset()
        meter.record(call(length=400, seed=step), None)
        seen.append(meter.share().max().item())
        if balance == "bias":
            move_bias(made, meter, 0.05)
        else:
            move_duals(made, meter)
    return seen


@pytest.mark.parametrize("balance, steps", [("bias", 60), ("sinkhorn", 60)])
def test_repeated_moves_balance_a_skewed_router(balance, steps):
    seen = fullest(skewed(), balance, steps)
    assert seen[0] > 4
    assert np.mean(seen[-10:]) < 1.5


def test_duals_are_sinkhorns():
    """A step moves the bias a tenth of the way to the duals that even the soft columns."""
    made, asked = router(layers=1, routers=2), call(length=200, first=[0, 60])
    made.bias.sub_(made.bias.mean(-1, keepdim=True))
    before, meter = made.bias.clone(), LoadMeter(made, 1, 4, keep_logits=True)
    meter.record(asked, None)
    move_duals(made, meter)
    wanted = before + (made.bias - before) * 10
    raw = made.logits(0, asked.hidden)[0].detach() - made.bias[0][:, None]
    real = torch.cat([raw[0, :, 4:], raw[1, :, 64:]], 1)
    columns = torch.softmax((real + wanted[0][:, None]) / 0.05, -1).sum(1) * 6 / real.shape[1]
    unmoved = torch.softmax((real + before[0][:, None]) / 0.05, -1).sum(1) * 6 / real.shape[1]
    assert (unmoved - 1).abs().max() > 0.3
    # Ten iterations are not the limit.
    assert (columns - 1).abs().max() < (unmoved - 1).abs().max() / 5


def test_gradient_checkpointing_does_not_count_twice():
    model = tiny_model(layers=2).requires_grad_(True)
    ids = torch.randint(1, VOCAB, (2, 40), generator=torch.Generator().manual_seed(0))
    made = Router(RouterConfig(2, model.config.hidden_size, groups=4, dim=4, routers=3))
    variant = make("focus", {"groups": 4, "window": 4, "sinks": 1, "gate": "soft"})
    loads, gradients = [], []
    for checkpointing in (False, True):
        meter = LoadMeter(made, 1, 1)
        model.train()
        if checkpointing:
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        made.zero_grad()
        runs = []
        hook = model.model.layers[0].input_layernorm.register_forward_hook(lambda *_, runs=runs: runs.append(1))
        with retrofit(model, variant, adapter=made, recorder=meter):
            model(input_ids=ids, use_cache=False).logits.square().mean().backward()
        hook.remove()
        assert len(runs) == 1 + checkpointing
        loads.append(meter.load)
        gradients.append(made.centroids.grad.clone())
    assert loads[0].sum(-1).eq(2 * 39).all()
    assert torch.equal(*loads)
    torch.testing.assert_close(*gradients)
