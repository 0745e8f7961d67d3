"""The decode kernels of SFA, Slim attention and MLA, interpreted on the CPU, against references; and their refusals."""

import pytest
import torch

from benchmarks.gpu_decode_checks import cases, check
from focus_core.errors import NotAvailable, Unsupported
from focus_core.kernels.mla import mla_attention
from focus_core.kernels.ready import launch
from focus_core.kernels.sfa import encode, sfa_attention
from focus_core.kernels.slim import Turned, slim_attention
from tests.kernels.interpreted_decode import CASES
from tests.kernels.interpreting import interpreted


@pytest.fixture(scope="module")
def results():
    return interpreted("interpreted_decode")


@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernels_agree_with_the_reference(results, name):
    row = results[name]
    assert row["good"], row


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; the interpreter covers it elsewhere")
@pytest.mark.parametrize("case", cases()[::6], ids=str)
def test_compiled_kernels_agree_with_the_reference(case):
    assert check(case)["good"]


def sfa_call(backend, queries=1, select="features", **changes):
    q, k, v = torch.randn(1, 4, queries, 32), torch.randn(1, 2, 40, 32), torch.randn(1, 2, 40, 32)
    q, v = (x.to(changes.get("dtype", x.dtype)) for x in (q, v))
    codes = encode(k.to(q.dtype), 8, select)
    return sfa_attention(q.requires_grad_(changes.get("grad", False)), codes, v, features=8, select=select,
                         backend=backend)  # fmt: skip


def slim_call(backend, **changes):
    q, state, weight = torch.randn(1, 2, 1, 16), torch.randn(1, 30, 32), torch.randn(32, 32)
    return slim_attention(q, state, **({"value_weight": weight} | changes), backend=backend)


def mla_call(backend, queries=1, rank=24, **changes):
    q, latent, rotated = torch.randn(1, 2, queries, 16), torch.randn(1, 1, 30, rank), torch.randn(1, 1, 30, 8)
    return mla_attention(q, latent, rotated, *(torch.randn(2, 8, rank) for _ in "kv"), **changes, backend=backend)


@pytest.mark.parametrize("call", [sfa_call, slim_call, mla_call])
def test_without_a_gpu_the_backend_says_so_and_auto_works(call):
    with pytest.raises(NotAvailable, match="needs a GPU") as caught:
        call("triton")
    assert caught.value.hint
    assert call("auto").isfinite().all()


@pytest.mark.parametrize(
    "call, changes, reason",
    [
        (sfa_call, {"queries": 9}, "not 9"),
        (sfa_call, {"select": "first"}, "short dense key"),
        (sfa_call, {"dtype": torch.float64}, "float64"),
        (sfa_call, {"grad": True}, "no backward"),
        (slim_call, {"order": "values"}, "order=values"),
        (slim_call, {"value_weight": None}, "K-cache"),
        (slim_call, {"key_weight": torch.eye(32)}, "K-cache"),
        (slim_call, {"finish": lambda keys, rows, tokens: keys}, "Turned"),
        (slim_call, {"new_key": torch.randn(1, 2, 1, 16)}, "neither"),
        (slim_call, {"key_mask": torch.ones(1, 30, dtype=torch.bool)}, "key mask"),
        (mla_call, {"queries": 9}, "not 9"),
        (mla_call, {"rank": 520}, "520"),
        (mla_call, {"form": "naive"}, "absorbed"),
    ],
)
def test_what_the_kernels_do_not_serve_is_refused_with_the_reason(monkeypatch, call, changes, reason):
    for method in ("sfa", "slim", "mla"):
        for place in (f"{method}.triton_applies", f"{method}.api"):
            monkeypatch.setattr(f"focus_core.kernels.{place}.machine_refusal", lambda device: None)
    with pytest.raises(Unsupported, match=reason) as caught:
        call("triton", **changes)
    assert caught.value.hint


def test_angles_as_tables_rotate_by_halves():
    keys, angles = torch.randn(2, 3, 20, 16), torch.rand(1, 50, 8) * 6
    made = Turned(angles.cos(), angles.sin())(keys, slice(0, 2), slice(5, 25))
    pairs = torch.complex(keys[..., :8], keys[..., 8:]) * torch.polar(torch.ones(20, 8), angles[0, 5:25])
    assert torch.allclose(made, torch.cat([pairs.real, pairs.imag], -1), atol=1e-5)


class Kernel:
    """Stands for one of Triton's: the search fills a grid up, what is compiled reads all three dimensions of it."""

    arg_names = ("X", "free", "SIZE")

    def __init__(self, ready=False):
        self.ready, self.launched = ready, []

    def __getitem__(self, grid):
        def run(*given, **constants):
            if self.ready:
                self.launched.append((grid[0], grid[1], grid[2], given))
                return None
            self.compiled = Kernel(ready=True)
            return self.compiled

        return run


@pytest.mark.parametrize("grid", [(5,), (5, 3), (5, 3, 2)])
def test_what_was_compiled_is_launched_again_whatever_the_grid(grid):
    kernel, x = Kernel(), torch.zeros(16)
    for _ in range(3):
        launch(kernel, grid, (x,), (), (7,), {"SIZE": 4}, num_warps=4)
    assert kernel.compiled.launched == [(*(*grid, 1, 1)[:3], (x, 7, 4))] * 2
