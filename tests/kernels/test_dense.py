"""Dense attention in all its forms against the pair-by-pair contract (a window that keeps everything, or no groups)."""

import pytest
import torch

from focus_core.errors import InvalidInput
from focus_core.kernels.dense import dense_attention
from focus_core.kernels.focus import focus_attention
from tests.kernels.cases import brute_force, make


@pytest.mark.parametrize("first", [None, [0, 13]])
@pytest.mark.parametrize("window", [None, 1, 5, 17, 400])
@pytest.mark.parametrize("queries", [20, 7, 1])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_dense_is_the_contract(queries, window, first, softcap):
    q, k, v, query_bits, key_bits = make(batch=2, heads=4, kv_heads=2, keys=20, queries=queries, dim=8)
    first_key = None if first is None else torch.tensor(first)
    wanted, wanted_lse, _ = brute_force(
        q, k, v, query_bits * 0, key_bits * 0, window=window or 20, first_key=first_key, softcap=softcap
    )
    settings = {"window": window, "first_key": first_key, "softcap": softcap}
    out, lse = dense_attention(q, k, v, **settings, return_lse=True)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(dense_attention(q, k, v, **settings), out, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype, slack", [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_types_and_gradients(dtype, slack):
    q, k, v, *_ = make(keys=150, dtype=dtype)
    exact = dense_attention(q.double(), k.double(), v.double())
    first_key = torch.tensor([0])
    for out in (dense_attention(q, k, v), dense_attention(q, k, v, first_key=first_key)):
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), exact, rtol=0, atol=slack)
    leaf = q.requires_grad_()
    plain = torch.autograd.grad(dense_attention(leaf, k, v).float().sum(), leaf)[0]
    padded = torch.autograd.grad(dense_attention(leaf, k, v, first_key=first_key).float().sum(), leaf)[0]
    torch.testing.assert_close(plain, padded, rtol=0, atol=5 * slack)


def test_focus_that_keeps_everything_is_dense():
    q, k, v, query_bits, key_bits = make(keys=300)
    dense = dense_attention(q, k, v)
    everything = torch.ones_like(key_bits)
    for call in (
        {"query_bits": query_bits, "key_bits": key_bits, "window": 300},
        {"query_bits": query_bits, "key_bits": key_bits, "window": 8, "sinks": 300},
        {"query_bits": everything, "key_bits": everything, "window": 8},
        {"query_bits": everything * -1, "key_bits": key_bits, "window": 8},
    ):
        assert torch.equal(focus_attention(q, k, v, **call), dense)
        for backend in ("cpu", "chunked"):
            out = focus_attention(q, k, v, **call, backend=backend)
            torch.testing.assert_close(out, dense, rtol=0, atol=2e-6)


def test_a_window_below_one_is_refused():
    q, k, v, *_ = make(keys=10)
    with pytest.raises(InvalidInput, match="at least 1"):
        dense_attention(q, k, v, window=0)
