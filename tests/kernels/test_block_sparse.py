"""Block-sparse attention: the reference by hand, and every backend against the reference."""

import math

import pytest
import torch

from focus_core.errors import InvalidInput, NotAvailable
from focus_core.kernels.block_sparse import block_sparse_attention
from focus_core.kernels.block_sparse.grid import mask_shape
from focus_core.kernels.block_sparse.reference import kept_pairs
from focus_core.kernels.dense import dense_attention
from focus_core.pattern_blocks import BlockPattern


def made(
    *, batch=1, heads=9, kv_heads=3, queries=None, keys=100, dim=64, block=16, masks=None, share=0.4, first=None,
    dtype=torch.float32, seed=0, causal=True,
):  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    queries = keys if queries is None else queries
    first = None if first is None else torch.tensor(first)
    q = torch.randn(batch, heads, keys, dim, generator=generator)[:, :, keys - queries :].to(dtype)
    k, v = (torch.randn(batch, kv_heads, keys, dim, generator=generator).to(dtype) for _ in range(2))
    rows, columns = mask_shape(batch, queries, keys, block, first)
    mask = torch.rand(batch, masks or heads, rows, columns, generator=generator) < share
    return (q, k, v, mask), {"block_size": block, "first_key": first, "causal": causal}


def by_hand(q, k, v, mask, *, block_size, first_key=None, causal=True, scale=None, softcap=None):
    """The contract pair by pair; for tiny inputs."""
    (batch, heads, queries, dim), (kv_heads, keys) = q.shape, k.shape[1:3]
    out = torch.zeros(batch, heads, queries, v.shape[3], dtype=torch.float64)
    lse = torch.full((batch, heads, queries), -math.inf, dtype=torch.float64)
    for b in range(batch):
        first = 0 if first_key is None else int(first_key[b])
        row0 = max(0, keys - queries - first) // block_size
        for h in range(heads):
            for n in range(queries):
                i, scores, values = keys - queries + n - first, [], []
                if i < 0:
                    continue
                held = mask[b, h // (heads // mask.shape[1]), i // block_size - row0]
                for j in range(i + 1 if causal else keys - first):
                    if held[j // block_size]:
                        kv = h // (heads // kv_heads)
                        s = float(q[b, h, n].double() @ k[b, kv, first + j].double()) * (scale or dim**-0.5)
                        scores.append(s if softcap is None else softcap * math.tanh(s / softcap))
                        values.append(v[b, kv, first + j].double())
                if scores:
                    lse[b, h, n] = torch.tensor(scores, dtype=torch.float64).logsumexp(0)
                    out[b, h, n] = sum(math.exp(s - lse[b, h, n]) * x for s, x in zip(scores, values, strict=True))
    return out, lse


SMALL = {
    "plain": {"keys": 13, "block": 4},
    "mask for all heads": {"keys": 13, "block": 4, "masks": 1},
    "mask a KV head": {"keys": 13, "block": 4, "masks": 2},
    "chunk": {"keys": 14, "queries": 5, "block": 4},
    "one query": {"keys": 13, "queries": 1, "block": 4},
    "padded": {"keys": 13, "block": 4, "batch": 3, "first": [0, 5, 13]},
    "padded chunk": {"keys": 13, "queries": 4, "block": 4, "batch": 2, "first": [3, 11]},
    "not causal": {"keys": 13, "block": 4, "causal": False},
    "not causal, padded": {"keys": 13, "block": 4, "batch": 2, "first": [3, 0], "causal": False},
    "soft cap": {"keys": 13, "block": 4},
}


@pytest.mark.parametrize("backend", ["reference", "chunked", "cpu"])
@pytest.mark.parametrize("name", SMALL)
def test_it_is_the_contract_pair_by_pair(name, backend):
    tensors, settings = made(**{"heads": 4, "kv_heads": 2, "dim": 8, **SMALL[name]})
    settings |= {"softcap": 1.5, "scale": 0.7} if name == "soft cap" else {}
    out, lse = block_sparse_attention(*tensors, **settings, backend=backend, return_lse=True)
    wanted, wanted_lse = by_hand(*tensors, **settings)
    assert (out.double() - wanted).abs().max() < 1e-5
    assert torch.equal(lse.isinf(), wanted_lse.isinf())
    finite = ~wanted_lse.isinf()
    assert (lse.double() - wanted_lse)[finite].abs().max() < 1e-5


SHAPES = {
    "odd length": {"keys": 203},
    "whole blocks": {"keys": 192},
    "shorter than a block": {"keys": 100, "block": 128},
    "one token": {"keys": 1},
    "head dim 80": {"keys": 131, "dim": 80},
    "head dim 96": {"keys": 131, "dim": 96},
    "head dim 128": {"keys": 131, "dim": 128},
    "batch of 3": {"keys": 131, "batch": 3},
    "left padding": {"keys": 131, "batch": 3, "first": [0, 17, 129]},
    "a row of pads": {"keys": 50, "batch": 2, "first": [0, 50]},
    "chunk inside a block": {"keys": 203, "queries": 77},
    "decode": {"keys": 203, "queries": 1, "batch": 2, "first": [0, 30]},
    "padded chunk": {"keys": 203, "queries": 60, "batch": 2, "first": [11, 180]},
    "nothing kept": {"keys": 90, "share": 0.0},
    "everything kept": {"keys": 203, "share": 1.1},
    "not causal": {"keys": 203, "causal": False},
    "not causal, padded": {"keys": 131, "batch": 2, "first": [5, 0], "causal": False},
    "bf16": {"keys": 203, "dtype": torch.bfloat16},
    "fp64": {"keys": 131, "dtype": torch.float64},
    "block of 128": {"keys": 700, "block": 128},
}


@pytest.mark.parametrize("backend", ["chunked", "cpu"])
@pytest.mark.parametrize("name", SHAPES)
def test_backends_agree_with_the_reference(name, backend):
    tensors, settings = made(**SHAPES[name])
    wanted, wanted_lse = block_sparse_attention(*tensors, **settings, backend="reference", return_lse=True)
    out, lse = block_sparse_attention(*tensors, **settings, backend=backend, return_lse=True)
    slack = {torch.bfloat16: 3e-2, torch.float64: 1e-10}.get(out.dtype, 1e-5)
    assert out.dtype == wanted.dtype
    assert (out - wanted).abs().max() < slack
    assert torch.equal(lse.isinf(), wanted_lse.isinf())
    assert torch.where(lse.isinf(), 0, lse - wanted_lse).abs().max() < slack
    assert (block_sparse_attention(*tensors, **settings, backend=backend) - out).abs().max() < slack


@pytest.mark.parametrize("backend", ["chunked", "cpu"])
def test_views_and_another_value_width(backend):
    (q, k, v, mask), settings = made(keys=131, batch=2, first=[0, 9])
    v = v[..., :24]
    wanted = block_sparse_attention(q, k, v, mask, **settings, backend="reference")
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    assert (block_sparse_attention(q, k, v, mask, **settings, backend=backend) - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("first", [None, [3, 21]])
def test_every_block_kept_is_dense(first):
    (q, k, v, mask), settings = made(keys=131, batch=2, first=first, share=2)
    dense = dense_attention(q, k, v, first_key=settings["first_key"])
    assert (block_sparse_attention(q, k, v, mask, **settings) - dense).abs().max() < 1e-5


@pytest.mark.parametrize("shape", ["odd length", "padded chunk", "decode", "left padding"])
def test_the_pattern_of_the_mask_is_what_is_computed(shape):
    (q, k, _, mask), settings = made(**SHAPES[shape])
    first = settings["first_key"]
    pairs = kept_pairs(mask, q.shape[2], k.shape[2], block=16, first=first)
    pattern = BlockPattern(
        mask.numpy(), 16, 9, q.shape[2], k.shape[2], first_key=None if first is None else first.numpy()
    )
    for b in range(q.shape[0]):
        for h in range(9):
            tile = pattern.tile(b, h, slice(0, q.shape[2]), slice(0, k.shape[2]))
            assert torch.equal(torch.from_numpy(tile), pairs[b, h])


def test_the_masked_backend_trains_and_the_cpu_one_says_that_it_does_not():
    (q, k, v, mask), settings = made(keys=60)
    q.requires_grad_()
    block_sparse_attention(q, k, v, mask, **settings).square().sum().backward()
    wanted = q.grad.clone()
    q.grad = None
    block_sparse_attention(q, k, v, mask, **settings, backend="reference").square().sum().backward()
    assert (q.grad - wanted).abs().max() < 1e-4
    with pytest.raises(InvalidInput, match="no backward"):
        block_sparse_attention(q, k, v, mask, **settings, backend="cpu")


def test_two_threads_give_the_same():
    tensors, settings = made(keys=700, block=32)
    one = block_sparse_attention(*tensors, **settings)
    torch.set_num_threads(2)
    assert (block_sparse_attention(*tensors, **settings) - one).abs().max() < 1e-6


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda m: m.float(), "bools, not torch.float32"),
        (lambda m: m[0], r"\(9, 7, 7\)"),
        (lambda m: m[:, :, :6], "needs 7 rows and 7 columns"),
        (lambda m: m[..., :6], "needs 7 rows and 7 columns"),
        (lambda m: m[:, :4], "4 block masks cannot serve 9 heads"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused_with_its_shape(change, reason):
    (q, k, v, mask), settings = made()
    with pytest.raises(InvalidInput, match=reason):
        block_sparse_attention(q, k, v, change(mask), **settings)


def test_other_arguments_are_checked():
    (q, k, v, mask), settings = made()
    with pytest.raises(InvalidInput, match="block_size is 0"):
        block_sparse_attention(q, k, v, mask, block_size=0)
    with pytest.raises(InvalidInput, match="no backend 'gpu'"):
        block_sparse_attention(q, k, v, mask, **settings, backend="gpu")
    for backend in ("triton", "flash"):
        with pytest.raises(NotAvailable, match="needs a GPU"):
            block_sparse_attention(q, k, v, mask, **settings, backend=backend)
    with pytest.raises(InvalidInput, match="Batch sizes differ"):
        block_sparse_attention(q, k[:0], v, mask, **settings)
