"""Dropping equal numbers of far pairs: the numbers are equal, and the choice is what its name says."""

import math
from types import SimpleNamespace

import pytest
import torch

from focus_core.cli import main
from focus_core.errors import InvalidInput
from focus_core.evaluation.noise import WAYS, Dropping, noise
from focus_core.kernels.focus import focus_attention
from focus_core.variants import VARIANTS
from focus_core.variants.focus import Focus
from tests.training.small import loaded, settings

MASK = {"groups": 4, "query_topk": 2, "key_topk": 1, "window": 5, "sinks": 2}


def call(tokens=40):
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, h, tokens, 8, generator=make) for h in (6, 2, 2))
    sets = [2 ** torch.randint(0, 4, (2, 2, tokens), generator=make) for _ in range(3)]
    shape = {"query": q, "key": k, "value": v, "fresh": sets[0] | sets[1], "cached": sets[2]}
    return SimpleNamespace(**shape, layer=0, scale=None, softcap=None, first_key=None)


def keeps(way, given):
    scores = given.query @ given.key.repeat_interleave(3, 1).transpose(-1, -2) * 8**-0.5
    random = torch.Generator().manual_seed(0)
    return Dropping(**MASK, drop=way)._keep(given, scores, slice(0, 40), random), scores


def test_focus_is_what_is_served():
    given = call()
    wanted = focus_attention(
        given.query, given.key, given.value, given.fresh, given.cached, window=5, sinks=2, backend="reference"
    )
    torch.testing.assert_close(Dropping(**MASK).attend(given), wanted, rtol=1e-4, atol=1e-5)


def test_nothing_dropped_is_dense_and_its_entropy_is_right():
    given, variant = call(), Dropping(**MASK, drop="none")
    key, value = (x.repeat_interleave(3, 1) for x in (given.key, given.value))
    wanted = torch.nn.functional.scaled_dot_product_attention(given.query, key, value, is_causal=True)
    torch.testing.assert_close(variant.attend(given), wanted, rtol=1e-4, atol=1e-5)
    given.query = given.query * 0
    variant.attend(given)
    assert variant.entropies[1] == pytest.approx(sum(math.log(n + 1) for n in range(40)) / 40, rel=1e-5)


@pytest.mark.parametrize("way", WAYS[2:])
def test_every_way_keeps_as_many_and_the_near_ones(way):
    focus, scores = keeps("focus", call())
    other, _ = keeps(way, call())
    assert torch.equal(focus.sum(-1), other.sum(-1))
    assert not torch.equal(focus, other)
    i, j = torch.arange(40)[:, None], torch.arange(40)[None]
    near = ((i - j < 5) | (j < 2)) & (j <= i)
    assert other[..., near].all()
    assert not other[..., j > i].any()
    if way == "random":
        return
    far = (j <= i) & ~near
    kept, dropped = other & far, ~other & far
    sign = 1 if way == "lowest" else -1
    least = (sign * scores).masked_fill(~kept, torch.inf).amin(-1)
    most = (sign * scores).masked_fill(~dropped, -torch.inf).amax(-1)
    assert (least >= most).all()


def test_the_whole_measurement_on_a_small_model():
    from focus_core.training.trainer import new_adapter

    base = loaded()
    base.tokenizer = lambda text, **_: {"input_ids": [ord(c) % 60 + 1 for c in text]}
    adapter = new_adapter(base.facts, settings(), base.model)
    given = {"groups": 4, "query_topk": 2, "window": 4, "sinks": 1}
    found = noise(base, adapter, given, "some words of no meaning " * 8, context=48, windows=3)
    assert set(found["ways"]) == set(WAYS)
    assert all(way["ppl"] > 1 for way in found["ways"].values())
    assert found["ways"]["none"]["entropy"] > found["ways"]["focus"]["entropy"]
    assert found["ways"]["none"]["nll_se"] == 0
    assert 0 < found["kept_pairs"] < 1
    assert VARIANTS["focus"] is Focus
    with pytest.raises(InvalidInput, match="far"):
        noise(base, adapter, given, "some", context=4)


@pytest.mark.parametrize(("option", "value"), [("--context", "0"), ("--context", "1"), ("--windows", "-1")])
def test_numbers_that_cannot_be_are_refused_before_a_model_is_loaded(option, value, capsys):
    assert main(["noise", "--adapter", "smollm2-directed-k16", option, value]) == 2
    assert f"{option} is {value}." in capsys.readouterr().err
