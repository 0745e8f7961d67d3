"""Tensors whose numbers do not lie side by side, and packed codes of one token: the same results."""

import pytest
import torch

from focus_core.kernels.focus import focus_attention
from focus_core.kernels.sfa import encode, pack, unpack
from tests.kernels.cases import make


def spread_out(x):
    """The same numbers, every second one of a tensor twice as wide."""
    return torch.stack([x, torch.full_like(x, torch.nan)], -1).flatten(-2)[..., ::2]


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("queries", [1, 2, 40])
def test_numbers_that_lie_apart_give_the_same_attention(which, queries):
    call = list(make(keys=40, queries=queries, heads=4, kv_heads=2))
    wanted = focus_attention(*call, window=8, backend="reference")
    call[which] = spread_out(call[which])
    for backend in ("cpu", "chunked"):
        torch.testing.assert_close(focus_attention(*call, window=8, backend=backend), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype, features, select", [(torch.bfloat16, 3, "features"), (torch.float32, 2, "pairs")])
def test_codes_of_one_token_unpack(dtype, features, select):
    codes = encode(torch.randn(1, 1, 1, 32).to(dtype), features, select)
    found = unpack(pack(codes), 32, features, dtype, select)
    assert torch.equal(found.dense(), codes.dense())
