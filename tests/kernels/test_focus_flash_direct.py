"""flash-attn-4's compiled kernels started directly: by the second call of a kind, and only where that is understood."""

import pytest
import torch

from focus_core.kernels.focus.flash.direct import Call, Direct


class Package:
    """Stands in for flash-attn-4: a public function over one that takes its kernels from a cache."""

    def __init__(self, extra=None):
        self.chosen, self.started, self.extra = 0, 0, extra
        self.inner = lambda: None
        self.inner.compile_cache = {}

    def kernel(self, q, k, v, out, lse, scale, *rest):
        assert rest[-1] == (None, None)
        assert out.shape == (*q.shape[:2], v.shape[2])
        self.started += 1
        out.copy_(q[..., : v.shape[2]] * scale)
        lse.fill_(self.started)

    def __call__(self, q, k, v, *, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, softmax_scale, **settings):
        if softmax_scale > 99:
            raise ValueError("too large")
        self.chosen += 1
        if "kind" not in self.inner.compile_cache:
            self.inner.compile_cache["kind"] = self.kernel
        out, lse = q.new_empty(*q.shape[:2], v.shape[2]), torch.empty(q.shape[1], q.shape[0])
        cuts = cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k
        self.inner.compile_cache["kind"](q, k, v, out, lse, softmax_scale, *cuts, self.extra, (None, None))
        return out, lse


def call(tokens=6, scale=0.5):
    q, k, v = torch.randn(tokens, 4, 8), torch.randn(tokens, 2, 8), torch.randn(tokens, 2, 4)
    cuts = torch.tensor([0, 2, tokens], dtype=torch.int32)
    return Call(q, k, v, cuts, cuts, None, None, scale, 0.0, True)


def test_the_second_call_of_a_kind_starts_the_kernel_with_its_own_tensors():
    package = Package()
    cache = package.inner.compile_cache
    direct = Direct(package, package.inner)
    for n in range(1, 4):
        mine = call()
        out, lse = direct(mine)
        torch.testing.assert_close(out, mine.q[..., :4] * 0.5)
        assert lse.shape == (4, 6)
        assert bool((lse == n).all())
    assert (package.chosen, package.started) == (1, 3)
    assert package.inner.compile_cache is cache
    direct(call(7))
    direct(call(scale=0.25))
    assert (package.chosen, package.started) == (3, 5)


@pytest.mark.parametrize("extra", [torch.ones(2), (None, torch.ones(2))])
def test_a_kernel_with_a_tensor_of_its_own_is_not_started_directly(extra):
    package = Package(extra)
    direct = Direct(package, package.inner)
    direct(call())
    direct(call())
    assert package.chosen == 2


def test_without_the_cache_every_call_goes_the_public_way():
    package = Package()
    direct = Direct(package, None)
    direct(call())
    direct(call())
    assert package.chosen == 2


def test_an_error_leaves_the_cache_as_it_was():
    package = Package()
    cache = package.inner.compile_cache
    with pytest.raises(ValueError, match="too large"):
        Direct(package, package.inner)(call(scale=100.0))
    assert package.inner.compile_cache is cache
