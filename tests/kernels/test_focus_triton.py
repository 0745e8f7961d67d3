"""Focus's GPU backends against the reference: Triton interpreted on the CPU; and when they refuse.

flash-attn-4 runs on a GPU only: elsewhere plain PyTorch stands in for it, and what surrounds it is tested.
"""

import pytest
import torch

from benchmarks.gpu_focus_checks import check, flash_cases
from focus_core.errors import InvalidInput, NotAvailable
from focus_core.kernels.focus import choose_backend, focus_attention
from focus_core.kernels.focus.flash import flash_refusal
from focus_core.kernels.focus.flash.applies import package_refusal, same_sets
from focus_core.kernels.focus.graphed import Graphed
from focus_core.kernels.focus.triton import pieces, tiles, triton_refusal
from tests.kernels.cases import make
from tests.kernels.interpreted import CASES
from tests.kernels.interpreting import interpreted


@pytest.fixture(scope="module")
def results():
    return interpreted("interpreted")


@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernels_agree_with_the_reference(results, name):
    row = results[name]
    assert row["good"], row


@pytest.mark.parametrize(
    "said", ["more groups than was said", "flash: more groups than was said", "flash: other sets than was said"]
)
def test_what_does_not_hold_as_it_was_said_gives_no_number(results, said):
    assert results[said]["good"]


@pytest.mark.parametrize("backend", ["triton", "flash"])
def test_without_a_gpu_the_backend_says_so(backend):
    q, k, v, *bits = make(keys=20)
    with pytest.raises(NotAvailable, match="needs a GPU") as caught:
        focus_attention(q, k, v, *bits, window=4, backend=backend)
    assert caught.value.hint
    assert choose_backend(q, k, *bits, window=4).backend == "chunked"


@pytest.mark.parametrize(
    "case, members, reason",
    [
        ({"dtype": torch.float64}, None, "float64"),
        ({"dim": 257}, None, "257"),
        ({}, (1, 9), "not 9"),
        ({"grad": True}, None, "no backward"),
    ],
)
def test_what_the_kernels_do_not_serve_is_refused_with_the_reason(monkeypatch, case, members, reason):
    monkeypatch.setattr("focus_core.kernels.focus.triton.applies.machine_refusal", lambda device: None)
    grad = case.pop("grad", False)
    q, k, v, *_ = make(keys=20, **case)
    q.requires_grad_(grad)
    assert reason in triton_refusal(q, k, v, members)
    q.requires_grad_(False)
    assert triton_refusal(*(x.float()[..., :64] for x in (q, k, v)), (1, 8)) is None


@pytest.mark.parametrize(
    "case, members, scale, reason",
    [
        ({"dtype": torch.float32}, None, None, "float32"),
        ({"dim": 20}, None, None, "20"),
        ({}, (2, 2), None, "a query has 2, a key 2"),
        ({}, (1, 1), -0.5, "-0.5"),
    ],
)
def test_what_flash_attention_does_not_serve_is_refused_with_the_reason(monkeypatch, case, members, scale, reason):
    monkeypatch.setattr("focus_core.kernels.focus.triton.applies.machine_refusal", lambda device: None)
    monkeypatch.setattr("focus_core.kernels.focus.flash.applies.package_refusal", lambda device: None)
    q, k, v, *_ = make(keys=20, **{"dtype": torch.bfloat16, **case})
    assert reason in flash_refusal(q, k, v, members, scale)
    assert flash_refusal(*(x.half()[..., :16] for x in (q, k, v)), (1, 1), 0.5) is None


@pytest.fixture
def everywhere(monkeypatch):
    monkeypatch.setattr("focus_core.kernels.focus.triton.applies.machine_refusal", lambda device: None)
    monkeypatch.setattr("focus_core.kernels.focus.flash.applies.package_refusal", lambda device: None)


def taken(tokens=1 << 17, heads=4, kv=2, queries=None, **settings):
    """What ``auto`` takes on a GPU; nothing is computed."""
    q, k = (torch.empty(1, n, tokens, 64, dtype=torch.bfloat16, device="meta") for n in (heads, kv))
    offered = torch.empty(1, kv, tokens, dtype=torch.int64, device="meta")
    queries = queries or tokens
    return choose_backend(
        q[:, :, tokens - queries :], k, offered.clone()[..., tokens - queries :], offered,
        **{"window": 8, "members": (1, 1), "equal": True} | settings,
    )  # fmt: skip


def test_auto_takes_flash_attention_for_long_calls_of_equal_sets(everywhere):
    assert taken().backend == "flash"
    short = taken(1 << 15)
    assert short.backend == "triton"
    assert "65,536 tokens" in short.reason
    assert taken(queries=2).backend == taken(members=None).backend == taken(members=(2, 2)).backend == "triton"


def test_auto_takes_flash_attention_on_tiles_where_its_memory_and_the_heads_suit_it(everywhere):
    apart = {"equal": False, "members": (4, 1)}
    wide = taken(heads=32, kv=8, **apart)
    assert wide.backend == "flash"
    assert "1.7 times" in wide.reason
    assert taken(heads=4, kv=2, **apart).backend == "triton"
    # One key head cannot be served in pieces, and the copies of its queries weigh the most.
    assert taken(heads=32, kv=1, **apart).backend == "triton"


def test_sets_in_one_place_are_known_to_be_the_same():
    sets = torch.arange(24).view(1, 2, 12)
    assert same_sets(sets, sets)
    assert same_sets(sets[..., 7:], sets)
    assert not same_sets(sets[..., 6:11], sets)
    assert not same_sets(sets.clone(), sets)


@pytest.mark.parametrize(
    "batch, heads, looked, standing, wanted",
    [(1, 8, 4, None, (1, 4)), (1, 8, 4, 2, (2, 4)), (1, 8, 1, 2, (1, 1)), (1, 1, 4, 2, (1, 2)), (2, 1, 16, 1, (2, 2))],
)
def test_pieces_bound_what_stands_at_a_time(batch, heads, looked, standing, wanted):
    parts, slots = pieces.pieces_of(batch * heads, looked, standing)
    assert (parts, slots) == wanted


@pytest.mark.parametrize("batch, kv, parts, sizes", [(1, 8, 2, [4, 4]), (1, 3, 2, [1, 1, 1]), (3, 2, 2, [2, 2, 2])])
@pytest.mark.parametrize("shared", [True, False])
def test_pieces_are_views_that_cover_the_call_once(batch, kv, parts, sizes, shared):
    q, k = torch.zeros(batch, 2 * kv, 5, 4), torch.arange(batch * kv * 20).view(batch, kv, 5, 4)
    bits = torch.arange(batch * (1 if shared else kv) * 5).view(batch, -1, 5)
    out = torch.zeros(batch, 2 * kv, 5, 4)
    found = list(pieces.views((q, k, k, bits, bits, torch.arange(batch), out, None), parts))
    assert [piece[1].shape[1] for piece in found] == sizes
    assert torch.cat([piece[1].flatten() for piece in found]).equal(k.flatten())
    for query, key, _, sets, _, first, mine, lse in found:
        assert mine.is_contiguous()
        assert lse is None
        assert len(first) == len(query)
        assert query.shape[1] == 2 * key.shape[1]
        assert sets.shape[1] == (1 if shared else key.shape[1])
        mine += 1
    assert bool((out == 1).all())


def test_a_graph_needs_a_gpu():
    with pytest.raises(InvalidInput, match="one GPU, not on cpu"):
        Graphed(torch.neg)(torch.ones(2))
    with pytest.raises(InvalidInput, match="most is 0"):
        Graphed(torch.neg, 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU.")
def test_a_graph_gives_what_the_call_gives_for_new_inputs_and_shapes():
    graph = Graphed(focus_attention, most=1)
    for keys, seed in ((300, 0), (300, 1), (200, 2), (300, 3)):
        call = [x.cuda() for x in make(keys=keys, seed=seed, dtype=torch.float16, routers=1)]
        call[3] = call[4]
        settings = {"window": 30, "members": (1, 1), "backend": "triton"}
        torch.testing.assert_close(graph(*call, **settings), focus_attention(*call, **settings), rtol=0, atol=0)


@pytest.mark.skipif(
    not torch.cuda.is_available() or package_refusal(torch.device("cuda", 0)) is not None,
    reason="flash-attn-4 needs a Hopper GPU and requirements-gpu.txt.",
)
def test_flash_attention_in_the_groups_agrees_with_the_reference():
    found = [check(case) for case in flash_cases() if case.get("dim", 64) == 64]
    assert [row for row in found if not row["good"]] == []


@pytest.mark.parametrize("members", [(-1, 1), (1, 65)])
def test_members_are_checked(members):
    with pytest.raises(InvalidInput, match="members"):
        focus_attention(*make(keys=20), window=4, members=members)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("widest", [16, 64, 80, 128, 256])
def test_tiles_fit_gpus_with_less_shared_memory(dtype, widest):
    for of in (tiles.group_tile, tiles.begun_tile, tiles.near_tile):
        best = of(dtype, widest)
        assert tiles.fitted(best, dtype, widest, 227 * 1024) == best
        small = tiles.fitted(best, dtype, widest, 99 * 1024)
        used = (small.rows + 2 * small.keys * small.stages) * tiles.padded(widest) * dtype.itemsize
        assert used <= 99 * 1024
        assert small.rows == best.rows
