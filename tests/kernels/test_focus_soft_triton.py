"""The soft gates' Triton kernels, interpreted on the CPU, against the plain formula; and when they refuse."""

import pytest
import torch

from benchmarks.gpu_focus_training_checks import make_call, plain
from focus_core.errors import InvalidInput, NotAvailable, Unsupported
from focus_core.kernels.focus.soft import LogAgreement, soft_attention
from focus_core.kernels.focus.triton_soft import soft_refusal
from tests.kernels.interpreted_soft import _SMALL, CASES
from tests.kernels.interpreting import interpreted


@pytest.fixture(scope="module")
def results():
    return interpreted("interpreted_soft")


@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernels_and_their_gradients_are_the_plain_formulas(results, name):
    assert results[name]["good"], results[name]


@pytest.mark.parametrize("case", [{}, {"hard": True}, {"held": 2}, {"batch": 2, "first": [25, 67]}])
def test_the_plain_formula_is_what_the_chunks_compute(case):
    """So that both are held to one function."""
    call, settings = make_call(_SMALL | case, "cpu")
    gate = LogAgreement(call[3], call[4], settings.pop("key_topk"), settings.pop("floor"))
    got = soft_attention(*call[:3], add=gate, **settings, backend="chunked")
    wanted = plain(*(x.double() for x in call), key_topk=gate.key_topk, floor=gate.floor, **settings)
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=2e-6)


def attend(backend, **gates):
    call, settings = make_call(_SMALL | {"keys": 20}, "cpu")
    gate = LogAgreement(call[3], call[4], settings.pop("key_topk"), settings.pop("floor"))
    return soft_attention(*call[:3], **(gates or {"add": gate}), **settings, backend=backend)


def test_without_a_gpu_it_says_so_and_auto_works():
    with pytest.raises(NotAvailable, match="needs a GPU") as caught:
        attend("triton")
    assert caught.value.hint
    assert torch.equal(attend("auto"), attend("chunked"))


def test_other_gates_and_unknown_backends_are_refused():
    with pytest.raises(Unsupported, match="agreement alone"):
        attend("triton", multiply=lambda rows: torch.tensor(0.5))
    with pytest.raises(InvalidInput, match="no backend 'dense'"):
        attend("dense")


@pytest.mark.parametrize(
    "case, change, reason",
    [
        ({"dtype": "float64"}, None, "float64"),
        ({"dim": 257}, None, "257"),
        ({"groups": 65}, None, "64 groups, not 65"),
        ({}, (2, lambda v: v.half()), "one type"),
        ({}, (3, lambda x: x[:, :, 1:]), "do not fit"),
        ({"heads": 4, "kv": 4, "routers": 2}, None, "do not fit"),
    ],
)
def test_what_the_kernels_do_not_serve_is_refused_with_the_reason(monkeypatch, case, change, reason):
    monkeypatch.setattr("focus_core.kernels.focus.triton_soft.applies.machine_refusal", lambda device: None)
    call, _ = make_call(_SMALL | {"keys": 20} | case, "cpu")
    if change is not None:
        call[change[0]] = change[1](call[change[0]])
    assert reason in soft_refusal(*call)
    assert soft_refusal(*make_call(_SMALL | {"keys": 20}, "cpu")[0]) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_auto_holds_no_array_of_all_pairs():
    call, settings = make_call({"keys": 16_384, "heads": 2, "kv": 1}, "cuda")
    call = [x.detach().requires_grad_() for x in call]
    gate = LogAgreement(call[3], call[4], settings.pop("key_topk"), settings.pop("floor"))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    soft_attention(*call[:3], add=gate, **settings).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 16_384**2 / 2
