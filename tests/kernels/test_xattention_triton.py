"""XAttention's GPU kernels: interpreted on the CPU against the specification; and when they refuse."""

import pytest
import torch

from focus_core.errors import InvalidInput, NotAvailable, Unsupported
from focus_core.kernels.block_sparse import block_sparse_attention
from focus_core.kernels.block_sparse.planes import plane_of
from focus_core.kernels.block_sparse.triton_applies import flash_refusal, triton_refusal
from focus_core.kernels.xattention import xattention_block_mask, xattention_scores
from focus_core.kernels.xattention.triton.applies import scoring_refusal
from tests.kernels.interpreted_xattention import CASES
from tests.kernels.interpreting import interpreted


@pytest.fixture(scope="module")
def results():
    return interpreted("interpreted_xattention")


@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernels_agree_with_the_specification(results, name):
    assert results[name]["good"], results[name]


@pytest.fixture
def machine(monkeypatch):
    for place in ("block_sparse.triton_applies", "xattention.triton.applies"):
        monkeypatch.setattr(f"focus_core.kernels.{place}.machine_refusal", lambda device: None)


def test_without_a_gpu_the_backend_says_so():
    q = torch.randn(1, 2, 40, 16)
    for call in (xattention_scores, xattention_block_mask):
        with pytest.raises(NotAvailable, match="needs a GPU") as caught:
            call(q, q, block_size=16, stride=4, backend="triton")
        assert caught.value.hint


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"mode": "random"}, "not random"),
        ({"mode": "oracle"}, "not oracle"),
        ({"block": 256}, "not 16 and 256"),
        ({"stride": 2}, "not 2 and 128"),
        ({"block": 96, "stride": 4}, "not 4 and 96"),
        ({"dtype": torch.float64}, "float64"),
        ({"keys": 4_000_000}, "31250"),
    ],
)
def test_what_the_scoring_kernels_do_not_serve_is_refused_with_the_reason(machine, settings, reason):
    get = {"mode": "antidiagonal", "block": 128, "stride": 16, "dtype": torch.float32, "keys": 40} | settings
    q = torch.randn(1, 2, 40, 16, dtype=get["dtype"])
    assert reason in scoring_refusal(q, get["block"], get["stride"], get["mode"], get["keys"])
    assert scoring_refusal(q.float(), 128, 16, "diagonal", 40) is None


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"block": 8}, "not 8"),
        ({"block": 96}, "not 96"),
        ({"dim": 257}, "257"),
        ({"dtype": torch.float64}, "float64"),
        ({"keys": 4_000_000}, "31250"),
        ({"grad": True}, "no backward"),
    ],
)
def test_what_the_attention_kernels_do_not_serve_is_refused_with_the_reason(machine, settings, reason):
    get = {"block": 128, "dim": 16, "dtype": torch.float32, "keys": 40, "grad": False} | settings
    q = torch.randn(1, 2, 40, get["dim"], dtype=get["dtype"], requires_grad=get["grad"])
    assert reason in triton_refusal(q, q, get["block"], get["keys"])
    assert triton_refusal(q.detach().float()[..., :64], q[..., :64].detach(), 16, 40) is None


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"dtype": torch.float32}, "float32"),
        ({"block": 64}, "not 64"),
        ({"dim": 256}, "256"),
        ({"causal": False}, "causal"),
        ({"first": torch.zeros(1)}, "left padding"),
        ({"softcap": 3.0}, "soft cap"),
        ({"scale": -1.0}, "negative scale"),
        ({"keys": 300}, "260 tokens come before it"),
        ({"installed": False}, "requirements-gpu.txt"),
    ],
)
def test_what_flash_attn_does_not_serve_is_refused_with_the_reason(machine, monkeypatch, settings, reason):
    get = {"dtype": torch.bfloat16, "block": 128, "dim": 64, "causal": True, "first": None, "softcap": None}
    get = get | {"scale": 0.1, "keys": 40, "installed": True} | settings
    place = "focus_core.kernels.block_sparse.triton_applies"
    monkeypatch.setattr(f"{place}._installed", lambda: get["installed"])
    monkeypatch.setattr(f"{place}._hopper", lambda device: True)
    q = torch.randn(1, 2, 40, get["dim"]).to(get["dtype"])
    k = torch.randn(1, 2, get["keys"], get["dim"]).to(get["dtype"])
    call = (get["block"], get["causal"], get["first"], get["scale"], get["softcap"])
    assert reason in flash_refusal(q, k, k, *call)
    good = torch.randn(1, 2, 128, 64).bfloat16()
    monkeypatch.setattr(f"{place}._installed", lambda: True)
    assert flash_refusal(good, good, good, 128, True, None, 0.1, None) is None


def test_asking_for_what_is_not_served_is_an_error(machine, monkeypatch):
    for place in ("block_sparse.triton_run", "focus.triton.applies"):
        monkeypatch.setattr(f"focus_core.kernels.{place}.machine_refusal", lambda device: None)
    q = torch.randn(1, 2, 40, 16)
    with pytest.raises(Unsupported, match="random"):
        xattention_scores(q, q, block_size=16, stride=4, mode="random", backend="triton")
    mask = torch.ones(1, 2, 5, 5, dtype=torch.bool)
    with pytest.raises(Unsupported, match="not 8"):
        block_sparse_attention(q, q, q, mask, block_size=8, backend="triton")


def test_arguments_are_checked_before_the_kernels_run():
    q = torch.randn(1, 2, 40, 16)
    with pytest.raises(InvalidInput, match="does not divide"):
        xattention_block_mask(q, q, block_size=16, stride=5, backend="triton")
    with pytest.raises(InvalidInput, match="threshold is -1"):
        xattention_block_mask(q, q, block_size=16, stride=4, threshold=-1.0, backend="triton")


def read(x, plane, b, h, row, group, place):
    """What the copy engine gives for one token of a row of a head."""
    row_b, row_h, col_h = plane.places
    at = (b * row_b + h * row_h + row) * plane.step + h * col_h + place * x.stride(2)
    assert b * row_b + h * row_h + row < plane.shape[0]
    assert h * col_h + place * x.stride(2) < plane.shape[1]
    return x.as_strided((x.shape[3],), (1,), x.storage_offset() + at)


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("layout", ["heads", "tokens", "fused", "longer"])
def test_planes_lie_where_the_tokens_do(layout, group):
    whole = torch.arange(2 * 3 * 12 * 16.0)
    x = {
        "heads": lambda: whole.view(2, 3, 12, 16),
        "tokens": lambda: whole.view(2, 12, 3, 16).transpose(1, 2),
        "fused": lambda: torch.arange(2.0 * 12 * 144).view(2, 12, 9, 16)[:, :, 3:6].transpose(1, 2),
        "longer": lambda: whole.view(2, 3, 12, 16)[:, :, :8],
    }[layout]()
    plane = plane_of(x, group)
    for b in range(2):
        for h in range(3):
            for n in range(x.shape[2] // group * group):
                assert torch.equal(read(x, plane, b, h, n // group, group, n % group), x[b, h, n])


def test_rows_that_the_copy_engine_cannot_read_have_no_plane():
    x = torch.randn(1, 2, 16, 16)
    assert plane_of(x[..., :3]) is None or plane_of(x[..., 1:]) is None
    assert plane_of(x.transpose(2, 3)) is None
    assert plane_of(torch.randn(2, 2, 10, 16), 4) is None
    assert plane_of(torch.randn(1, 2, 16, 6).half()) is None
