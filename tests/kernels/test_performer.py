"""Performer's linear attention against the sum over all pairs, and what its features promise."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from focus_core.errors import InvalidInput
from focus_core.kernels.dense import dense_attention
from focus_core.kernels.performer import linear, log_features, orthogonal_projection, performer_attention
from tests.kernels.cases import make


def case(keys=100, queries=None, dim=64, features=48, spread=1.0, dtype=torch.float32, **shape):
    q, k, v, *_ = make(keys=keys, queries=queries, dim=dim, **shape)
    projection = orthogonal_projection(features, dim, dtype=dtype)
    return (q * spread).to(dtype), (k * spread).to(dtype), v.to(dtype), projection


@pytest.mark.parametrize(
    "keys, queries", [(1, 1), (2, 2), (63, 63), (64, 64), (65, 65), (131, 131), (131, 7), (131, 1)]
)
@pytest.mark.parametrize("first", [None, [0, 13], [40, 131]])
def test_the_linear_form_is_the_specification(keys, queries, first):
    first_key = None if first is None else torch.tensor(first).clamp_max(keys)
    q, k, v, projection = case(keys, queries, dim=16, batch=2)
    settings = {"first_key": first_key, "scale": 0.3}
    wanted = performer_attention(*(x.double() for x in (q, k, v, projection)), **settings, backend="reference")
    got = performer_attention(q, k, v, projection, **settings)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=2e-6)
    assert got.isfinite().all()


def test_longer_chunks_as_on_a_gpu_give_the_same(monkeypatch):
    monkeypatch.setattr(linear, "CHUNK", linear.CHUNK_CUDA)
    q, k, v, projection = case(linear.CHUNK_CUDA + 70, dim=16, features=20, heads=2, kv_heads=1)
    wanted = performer_attention(*(x.double() for x in (q, k, v, projection)), backend="reference")
    torch.testing.assert_close(performer_attention(q, k, v, projection).double(), wanted, rtol=1e-5, atol=2e-6)


def test_autocast_leaves_the_sums_in_fp32():
    q, k, v, projection = (x.bfloat16() for x in case(130, dim=16))
    with torch.autocast("cpu", torch.bfloat16):
        found = performer_attention(q, k, v, projection)
    assert torch.equal(found, performer_attention(q, k, v, projection))


@pytest.mark.parametrize("dim", [64, 80, 96, 128])
@pytest.mark.parametrize("heads, kv_heads", [(9, 3), (4, 4), (4, 1)])
def test_head_sizes_and_shared_heads(dim, heads, kv_heads):
    q, k, v, projection = case(70, dim=dim, features=2 * dim + 5, heads=heads, kv_heads=kv_heads)
    wanted = performer_attention(q, k, v, projection, backend="reference")
    torch.testing.assert_close(performer_attention(q, k, v, projection), wanted, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("spread", [4.0, 12.0])
@pytest.mark.parametrize("order", ["as drawn", "growing", "shrinking"])
def test_keys_of_very_unlike_lengths_keep_every_query_finite(spread, order):
    """Features of the longest keys differ by far more than fp32 holds: each query has its own scale."""
    q, k, v, projection = case(200, dim=16, spread=spread)
    if order != "as drawn":
        ramp = torch.linspace(0.05, 1.0, 200)[:, None]
        k = k * (ramp if order == "growing" else ramp.flip(0))
    wanted = performer_attention(*(x.double() for x in (q, k, v, projection)), backend="reference")
    got = performer_attention(q, k, v, projection)
    # Log features of some hundreds are rounded to 1e-5 in fp32.
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=1e-3)
    assert got.abs().amax(-1).gt(0).all()


@pytest.mark.parametrize("dtype, slack", [(torch.bfloat16, 3e-2), (torch.float64, 1e-12)])
def test_types(dtype, slack):
    q, k, v, projection = case(150, dtype=dtype)
    exact = performer_attention(*(x.double() for x in (q, k, v, projection)), backend="reference")
    out, prefix = performer_attention(q, k, v, projection, return_prefix=True)
    assert out.dtype == dtype
    assert prefix.sums.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=slack)


def test_strided_inputs():
    q, k, v, projection = case(90)
    apart = [torch.stack([x, x * 0], -1)[..., 0].transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert not apart[0].is_contiguous()
    torch.testing.assert_close(performer_attention(*apart, projection), performer_attention(q, k, v, projection))


@pytest.mark.parametrize("sizes", [(150,), (1,) * 150, (64, 64, 22), (13, 1, 100, 36)])
@pytest.mark.parametrize("first", [None, [0, 30]])
def test_the_sums_carry_a_text_over_any_cut(sizes, first):
    q, k, v, projection = case(150, dim=16, spread=3.0, batch=2, dtype=torch.float64)
    first_key = None if first is None else torch.tensor(first)
    whole, last = performer_attention(q, k, v, projection, first_key=first_key, return_prefix=True)
    prefix, parts, done = None, [], 0
    for size in sizes:
        now = slice(done, done + size)
        done += size
        # What the sums stand for is not read again.
        lost = (
            torch.cat([k[:, :, : now.start] * float("nan"), k[:, :, now]], 2) if prefix is not None else k[:, :, :done]
        )
        out, prefix = performer_attention(
            q[:, :, now], lost, v[:, :, :done], projection, first_key=first_key, prefix=prefix, return_prefix=True
        )
        parts.append(out)
        again = performer_attention(q[:, :, now], k[:, :, :done], v[:, :, :done], projection, first_key=first_key)
        torch.testing.assert_close(again, out, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(prefix.sums, last.sums, rtol=1e-10, atol=1e-12)
    assert prefix.bytes() == 2 * 3 * 48 * (16 + 1 + 1) * 8


def test_later_tokens_are_not_seen():
    """Bit for bit, also when a later key would raise a maximum over the whole text (a fault of the published code)."""
    q, k, v, projection = case(150, dim=16)
    before = performer_attention(q, k, v, projection)
    k, v = k.clone(), v.clone()
    k[:, :, 101:] *= 0.1
    v[:, :, 101:] += 1e6
    q[:, :, 101:] *= 3
    after = performer_attention(q, k, v, projection)
    assert torch.equal(before[:, :, :101], after[:, :, :101])
    assert (before - after)[:, :, 101:].abs().max() > 1


def test_gradients_are_the_specifications():
    inputs = case(70, dim=16, spread=2.0, dtype=torch.float64)
    leaves = [x.clone().requires_grad_() for x in inputs[:3]]
    weight = torch.randn(1, 9, 70, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    first_key = torch.tensor([5])
    got, wanted = (
        torch.autograd.grad(
            (performer_attention(*leaves, inputs[3], first_key=first_key, backend=backend) * weight).sum(), leaves
        )
        for backend in ("linear", "reference")
    )
    for one, other in zip(got, wanted, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_rows_are_orthogonal_and_as_long_as_gaussian_ones():
    rows = orthogonal_projection(150, 64, seed=2, dtype=torch.float64)
    for block in rows.split(64):
        product = block @ block.T
        assert (product - torch.diag(product.diagonal())).abs().max() < 1e-10
    lengths = torch.cat([orthogonal_projection(64, 64, seed=s, dtype=torch.float64).norm(dim=-1) for s in range(40)])
    assert lengths.square().mean().item() == pytest.approx(64, rel=0.03)
    assert lengths.square().var().item() == pytest.approx(128, rel=0.15)


def test_a_draw_depends_on_seed_and_layer_alone():
    one = orthogonal_projection(20, 8, seed=1, layer=3)
    assert torch.equal(one, orthogonal_projection(20, 8, seed=1, layer=3))
    assert not torch.equal(one, orthogonal_projection(20, 8, seed=1, layer=4))
    assert not torch.equal(one, orthogonal_projection(20, 8, seed=2, layer=3))


def test_the_estimate_is_unbiased():
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    rows = torch.cat([orthogonal_projection(800, 8, seed=s, dtype=torch.float64) for s in range(50)])
    estimate = torch.exp(log_features(q, rows, 0.35) + log_features(k, rows, 0.35)).mean().item()
    assert estimate == pytest.approx(torch.exp(0.35 * (q * k).sum()).item(), rel=0.02)


def test_the_error_falls_as_features_grow():
    q, k, v, _ = case(120, dim=16, spread=0.5)
    dense = dense_attention(q, k, v)

    def error(features: int) -> float:
        outs = [performer_attention(q, k, v, orthogonal_projection(features, 16, seed=s)) for s in range(4)]
        return sum((out - dense).square().mean().item() for out in outs) ** 0.5

    errors = [error(m) for m in (16, 128, 1024)]
    assert errors[0] > 1.5 * errors[1] > 2.25 * errors[2]


def test_a_peaked_softmax_is_estimated_badly():
    """Why a pretrained model breaks: the variance grows with the exponential of the scores."""
    errors = []
    for spread in (0.5, 3.0):
        q, k, v, projection = case(120, dim=16, spread=spread, features=256)
        errors.append((performer_attention(q, k, v, projection) - dense_attention(q, k, v)).square().mean().sqrt())
    assert errors[1] > 8 * errors[0]


def test_work_grows_with_the_length_and_not_its_square():
    def flops(keys: int) -> int:
        with FlopCounterMode(display=False) as counter:
            performer_attention(*case(keys, dim=16))
        return counter.get_total_flops()

    assert flops(2048) == pytest.approx(2 * flops(1024), rel=0.01)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"scale": 0.0}, "scale of the scores is 0"),
        ({"projection": torch.ones(4, 5)}, r"projection \(4, 5\) does not fit heads of 16"),
        ({"backend": "cuda"}, "no backend 'cuda'"),
        ({"backend": "reference", "return_prefix": True}, "keeps no sums"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    q, k, v, projection = case(10, dim=16)
    arguments = {"projection": projection} | change
    with pytest.raises(InvalidInput, match=message):
        performer_attention(q, k, v, **arguments)


def test_sums_of_other_shapes_are_refused():
    q, k, v, projection = case(10, dim=16)
    _, prefix = performer_attention(q, k, v, projection, return_prefix=True)
    with pytest.raises(InvalidInput, match=r"Sums \(1, 3, 48, 17\) do not fit"):
        performer_attention(q[:, :, :1], k, v, projection[:20], prefix=prefix)
