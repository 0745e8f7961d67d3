"""What a model relies on: no look-ahead, one answer however the tokens arrive, small memory, honest rounding."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from focus_core.kernels.focus import focus_attention
from focus_core.kernels.focus.reference import focus_reference, kept_mask
from tests.kernels.cases import make

SAVED = {"window": 24, "sinks": 3}


@pytest.mark.parametrize("backend", ["reference", "cpu", "chunked"])
def test_later_tokens_change_nothing_before_them(backend):
    q, k, v, *bits = make(keys=400, groups=4, query_groups=2)
    before, lse = focus_attention(q, k, v, *bits, **SAVED, backend=backend, return_lse=True)
    for cut in (1, 130, 399):
        changed = [x.clone() for x in (q, k, v)]
        for x in changed:
            x[:, :, cut:] = x[:, :, cut:] * -3 + 5
        after, after_lse = focus_attention(*changed, *bits, **SAVED, backend=backend, return_lse=True)
        assert torch.equal(after[:, :, :cut], before[:, :, :cut])
        assert torch.equal(after_lse[:, :, :cut], lse[:, :, :cut])
        assert not torch.equal(after[:, :, cut:], before[:, :, cut:])


@pytest.mark.parametrize("backend", ["cpu", "auto"])
def test_later_groups_change_nothing_before_them(backend):
    q, k, v, query_bits, key_bits = make(keys=400, groups=4)
    before = focus_attention(q, k, v, query_bits, key_bits, **SAVED, backend=backend)
    changed = [x.clone() for x in (query_bits, key_bits)]
    for x in changed:
        x[..., 200:] = 1
    after = focus_attention(q, k, v, *changed, **SAVED, backend=backend)
    torch.testing.assert_close(after[:, :, :200], before[:, :, :200], rtol=0, atol=1e-6)


@pytest.mark.parametrize("first", [None, [0, 37]])
@pytest.mark.parametrize("backend", ["cpu", "auto"])
def test_prefill_chunks_and_single_tokens_agree(backend, first):
    """fp32 rounding is all that may differ: 2e-6 on outputs of order 1."""
    q, k, v, query_bits, key_bits = make(batch=2, keys=200, groups=4, query_groups=2, key_groups=2)
    first_key = None if first is None else torch.tensor(first)
    whole = focus_attention(q, k, v, query_bits, key_bits, **SAVED, first_key=first_key, backend=backend)
    for steps in ([64, 128, 200], [1, 100, 103, 200], range(1, 201)):
        parts, start = [], 0
        for stop in steps:
            call = q[:, :, start:stop], k[:, :, :stop], v[:, :, :stop]
            sets = query_bits[..., start:stop], key_bits[..., :stop]
            parts.append(focus_attention(*call, *sets, **SAVED, first_key=first_key, backend=backend))
            start = stop
        torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=0, atol=2e-6)


def test_bf16_is_no_worse_than_plain_bf16_attention():
    call = make(keys=700, dtype=torch.bfloat16, groups=8)
    q, k, v, *bits = call
    settings = {**SAVED, "first_key": None, "scale": 0.125, "softcap": None, "return_lse": False}
    exact = focus_reference(q.double(), k.double(), v.double(), *bits, **settings)
    mask = kept_mask(*bits, **SAVED).repeat_interleave(3, 1)
    scores = (q @ k.repeat_interleave(3, 1).transpose(-1, -2) * 0.125).masked_fill(~mask, float("-inf"))
    plain = torch.softmax(scores, -1) @ v.repeat_interleave(3, 1)
    budget = (plain.double() - exact).square().mean().sqrt()
    for backend in ("cpu", "chunked"):
        out = focus_attention(*call, **SAVED, scale=0.125, backend=backend)
        assert (out.double() - exact).square().mean().sqrt() <= 1.2 * budget


@pytest.mark.parametrize("backend", ["reference", "chunked", "auto"])
def test_gradients(backend):
    q, k, v, *bits = make(batch=2, keys=40, heads=4, kv_heads=2, dim=8, groups=3, dtype=torch.float64)
    first_key = torch.tensor([0, 7])
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def run(name):
        out = focus_attention(*leaves, *bits, window=4, sinks=1, first_key=first_key, backend=name)
        return torch.autograd.grad((out * torch.arange(8)).sum(), leaves)

    for got, wanted in zip(run(backend), run("reference"), strict=True):
        assert bool(got.isfinite().all())
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    eps = 1e-6
    moved = [x.detach().clone() for x in leaves]
    values = []
    for sign in (1, -1):
        moved[1][1, 1, 9, 3] = k[1, 1, 9, 3].detach() + sign * eps
        out = focus_attention(*moved, *bits, window=4, sinks=1, first_key=first_key, backend="reference")
        values.append((out * torch.arange(8)).sum())
    torch.testing.assert_close(run(backend)[1][1, 1, 9, 3], (values[0] - values[1]) / (2 * eps), rtol=1e-6, atol=1e-7)


def test_the_cpu_backend_refuses_to_train():
    from focus_core.errors import InvalidInput

    q, k, v, *bits = make(keys=40)
    with pytest.raises(InvalidInput, match="no backward"):
        focus_attention(q.requires_grad_(), k, v, *bits, window=4, backend="cpu")
    with torch.no_grad():
        assert focus_attention(q, k, v, *bits, window=4, backend="cpu").shape == q.shape


MEMORY = """
import resource, torch
from focus_core.kernels.focus import focus_attention
torch.set_num_threads(2)
n = 16384
q, k, v = torch.randn(1, 4, n, 64), torch.randn(1, 2, n, 64), torch.randn(1, 2, n, 64)
sets = torch.ones((), dtype=torch.int64) << torch.randint(0, 16, (2, 1, 2, n))
def run(m):
    focus_attention(q[:, :, :m], k[:, :, :m], v[:, :, :m], *sets[..., :m], window=128, sinks=4, backend="cpu")
run(300)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(n)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_no_square_array_at_16384_tokens():
    """One N x N array is 256 MiB even as bytes; the output of this call alone is 16 MiB."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, cwd=root, env={**os.environ}, check=True
    )
    assert float(done.stdout) < 160
