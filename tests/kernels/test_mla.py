"""MLA's two forms against the specification: equal to rounding for any size, padding and cut (note M1)."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from focus_core.errors import InvalidInput, NotAvailable
from focus_core.kernels.dense import dense_attention
from focus_core.kernels.mla import mla_attention
from focus_core.kernels.sizes import absorbs, mla_flops

FORMS = ("naive", "absorbed", "auto")


def case(keys=40, queries=None, batch=2, heads=6, up=6, shared=1, nope=8, rope=4, value=10, rank=12, seed=0, biases=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    given = {
        "q": draw(batch, heads, queries or keys, nope + rope),
        "latent": draw(batch, 1, keys, rank),
        "k_rope": draw(batch, shared, keys, rope),
        "up_k": draw(up, nope, rank) / 2,
        "up_v": draw(up, value, rank) / 2,
    }
    return given | ({"bias_k": draw(up, nope), "bias_v": draw(up, value)} if biases else {})


def single(given):
    return {name: x.float() for name, x in given.items()}


@pytest.mark.parametrize("keys, queries", [(1, 1), (2, 2), (63, 63), (129, 129), (131, 1), (131, 7), (300, 299)])
@pytest.mark.parametrize("first", [None, [0, 13], [40, 300]])
@pytest.mark.parametrize("form", FORMS)
def test_both_forms_are_the_specification(keys, queries, first, form):
    given = case(keys, queries, biases=first is not None)
    options = {"first_key": None if first is None else torch.tensor(first).clamp_max(keys), "return_lse": True}
    wanted, wanted_lse = mla_attention(**given, **options, backend="reference")
    out, lse = mla_attention(**given, **options, form=form)
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(lse, wanted_lse, rtol=0, atol=1e-12)
    if first is not None:
        padded = options["first_key"][:, None] > torch.arange(keys - queries, keys)
        assert (out.transpose(1, 2)[padded] == 0).all()
        assert (lse.transpose(1, 2)[padded] == -torch.inf).all()
    out, _ = mla_attention(**single(given), **options, form=form)
    torch.testing.assert_close(out, wanted.float(), rtol=0, atol=3e-5)


@pytest.mark.parametrize("heads, up, shared", [(6, 6, 6), (6, 3, 3), (6, 3, 1), (6, 1, 1)])
@pytest.mark.parametrize("form", FORMS)
def test_heads_are_shared_by_latent_weights_and_rotated_keys(heads, up, shared, form):
    given = case(37, 5, heads=heads, up=up, shared=shared, biases=1)
    options = {"softcap": 2.0, "scale": 0.7}
    wanted = mla_attention(**given, **options, backend="reference")
    torch.testing.assert_close(mla_attention(**given, **options, form=form), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_rotates_and_nothing_but_rotates(form):
    """GPT-2 has no rotated part; with every key part rotated the latent makes values alone."""
    for given in (case(rope=0, shared=6, biases=1), case(nope=0, shared=6)):
        wanted = mla_attention(**given, backend="reference")
        torch.testing.assert_close(mla_attention(**given, form=form), wanted, rtol=0, atol=1e-12)


def test_the_specification_is_dense_attention_over_the_keys_it_names():
    given = case(shared=1)
    k = torch.einsum("bsnr,hdr->bhnd", given["latent"], given["up_k"])
    v = torch.einsum("bsnr,hdr->bhnd", given["latent"], given["up_v"])
    wanted = dense_attention(given["q"], torch.cat([k, given["k_rope"].expand(-1, 6, -1, -1)], -1), v)
    torch.testing.assert_close(mla_attention(**given, backend="reference"), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_a_text_cut_into_calls_gives_the_same(form):
    given = case(50)
    whole = mla_attention(**given, form=form)
    for start, stop in ((0, 17), (17, 18), (18, 50)):
        part = {name: x[:, :, :stop] if name in ("latent", "k_rope") else x for name, x in given.items()}
        part["q"] = given["q"][:, :, start:stop]
        torch.testing.assert_close(mla_attention(**part, form=form), whole[:, :, start:stop], rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_those_of_the_specification(form):
    grads = []
    for options in ({"form": form}, {"backend": "reference"}):
        given = {name: x.requires_grad_() for name, x in case(21, biases=1).items()}
        mla_attention(**given, **options).square().sum().backward()
        grads.append([x.grad for x in given.values()])
    for ours, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("form", ["naive", "absorbed"])
def test_the_operations_counted_are_those_done(form):
    """One decoded token: no pair is skipped, so the matrix products are exactly the formula's."""
    given = single(case(200, 3, batch=1, heads=6, up=3, shared=1))
    with FlopCounterMode(display=False) as counter:
        mla_attention(**given, form=form, softcap=1e9)
    sizes = {"heads": 6, "up_heads": 3, "nope": 8, "rope": 4, "value": 10, "rank": 12}
    assert counter.get_total_flops() == mla_flops(form, queries=3, keys=200, pairs=600, **sizes)


def test_a_token_is_decoded_absorbed_and_a_long_text_naive_in_the_papers_sizes():
    paper = {"heads": 128, "up_heads": 128, "nope": 128, "rope": 64, "value": 128, "rank": 512}
    assert absorbs(queries=1, keys=4096, **paper)
    assert not absorbs(queries=4096, keys=4096, **paper)
    naive, absorbed = (mla_flops(f, queries=1, keys=4096, pairs=4096, **paper) for f in ("naive", "absorbed"))
    assert naive / absorbed > 100


@pytest.mark.parametrize(
    "change, words",
    [
        ({"q": torch.zeros(2, 6, 40, 11)}, "8 \\+ 4 dimensions"),
        ({"latent": torch.zeros(2, 2, 40, 12)}, "one latent a token"),
        ({"k_rope": torch.zeros(2, 1, 39, 4)}, "one entry a token"),
        ({"up_v": torch.zeros(3, 10, 12)}, "equal heads"),
        ({"k_rope": torch.zeros(2, 4, 40, 4)}, "evenly"),
        ({"bias_v": torch.zeros(6, 9)}, "b_V"),
        ({"up_k": torch.zeros(6, 8, 12).half()}, "one float type"),
        ({"form": "folded"}, "no form"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_shapes(change, words):
    with pytest.raises(InvalidInput, match=words):
        mla_attention(**(single(case()) | change))
    with pytest.raises(NotAvailable):
        mla_attention(**case(), backend="triton")
