"""Slim attention's cluster kernel: what it refuses, how tokens are shared, and the kernel itself where a GPU is."""

import ctypes
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu_slim_clusters import check, checks
from benchmarks.gpu_slim_ways import CHANGED, CHECKED, PLANS, changed, suits, used
from focus_core.errors import InvalidInput, NotAvailable
from focus_core.kernels.cuda import compiler_refusal
from focus_core.kernels.slim import Turned, api, cluster_decode, slim_attention
from focus_core.kernels.slim.cluster_applies import cluster_machine_refusal, shape_refusal
from focus_core.kernels.slim.cluster_decode import USUAL, build_refusal, plan_for, shares
from focus_core.kernels.slim.operands import Operands

ROOM = 232_448
"""Bytes of shared memory that a block can have on a Hopper GPU."""


def operands(heads=8, dim=64, dtype=torch.bfloat16, **changes):
    width = heads * dim
    given = dict.fromkeys(("key_weight", "key_bias", "value_bias", "finish", "new_key", "new_value", "first_key"))
    given |= {"q": torch.zeros(2, heads, 1, dim, dtype=dtype), "state": torch.zeros(2, 40, width, dtype=dtype)}
    given |= {"value_weight": torch.zeros(width, width, dtype=dtype), "causal": True, "key_mask": None}
    return Operands(**(given | changes))


def test_without_a_hopper_gpu_the_backend_says_so_and_auto_works():
    q, state, weight = torch.randn(1, 8, 1, 64), torch.randn(1, 30, 512), torch.randn(512, 512)
    with pytest.raises(NotAvailable, match="Hopper") as caught:
        slim_attention(q, state, value_weight=weight, backend="cuda")
    assert caught.value.hint
    assert slim_attention(q, state, value_weight=weight).isfinite().all()


@pytest.mark.parametrize("heads, dim", [(32, 128), (8, 64), (32, 64), (24, 64), (4, 128), (20, 128)])
def test_whole_blocks_of_columns_are_served_and_fit(heads, dim):
    assert shape_refusal(operands(heads, dim)) is None
    for turned, plans in PLANS.items():
        assert plans[0] == USUAL[turned]
        suited = [plan for plan in (*plans, *CHECKED) if suits(plan, dim)]
        assert all(plan.shared(heads, dim, turned) <= ROOM and plan.threads <= 1024 for plan in suited)
    assert all(suits(plan, dim) for plan in USUAL.values())


@pytest.mark.parametrize("name", CHANGED)
def test_every_change_fits_the_source_as_it_is(name):
    usual = cluster_decode._SOURCE
    with changed(name):
        assert cluster_decode._SOURCE.read_text() != usual.read_text()
    assert usual == cluster_decode._SOURCE


def test_sizes_can_be_chosen_for_a_while():
    turned = operands(finish=Turned(torch.ones(1, 40, 32), torch.ones(1, 40, 32)))
    with used(CHECKED[0]):
        assert plan_for(operands()) == plan_for(turned) == CHECKED[0]
    assert (plan_for(operands()), plan_for(turned)) == (USUAL[False], USUAL[True])


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"dtype": torch.float32}, "float16 and bfloat16"),
        ({"heads": 12}, "not 12 of 64"),
        ({"heads": 40, "dim": 64}, "not 40 of 64"),
        ({"heads": 8, "dim": 256}, "not 8 of 256"),
        ({"key_bias": torch.zeros(512)}, "no bias"),
        ({"state": torch.zeros(2, 40, 516, dtype=torch.bfloat16)[..., :512]}, "16 bytes"),
        ({"finish": Turned(torch.ones(1, 30, 32), torch.ones(1, 30, 32))}, "every token"),
    ],
)
def test_what_does_not_suit_is_refused(changes, reason):
    assert reason in shape_refusal(operands(**changes))


@pytest.mark.parametrize(
    "batch, past, clusters", [(1, 1, 16), (1, 32_767, 16), (16, 32_767, 15), (40, 999, 33), (3, 65, 7)]
)
def test_tiles_of_all_sequences_are_shared_evenly(batch, past, clusters):
    every, per, used, splits = shares(batch, past, clusters, 32)
    each = every // batch
    assert (each - 1) * 32 < past <= each * 32
    assert used <= clusters
    assert (used - 1) * per < every <= used * per
    owners = [{tile // per for tile in range(b * each, (b + 1) * each)} for b in range(batch)]
    assert max(map(len, owners)) == splits


def test_a_sequence_alone_keeps_all_clusters_busy():
    assert shares(1, 32_767, 16, 32)[2:] == (16, 16)
    assert shares(16, 32_767, 16, 32)[2:] == (16, 1)


def test_what_cannot_be_built_is_asked_once_and_not_while_a_graph_is_captured(monkeypatch):
    asked, capturing = [], True

    def kernel(*wanted):
        asked.append(wanted)
        raise RuntimeError("CUDA error 209 while loading a kernel: no kernel image.")

    monkeypatch.setattr(cluster_decode, "kernel", kernel)
    monkeypatch.setattr(cluster_decode, "_TRIED", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    assert "graph" in build_refusal(operands(), 1.0, None)
    capturing = False
    assert [("no kernel image" in build_refusal(operands(), 1.0, None)) for _ in range(2)] == [True, True]
    assert len(asked) == 1
    monkeypatch.setattr(api, "_REFUSALS", {"cuda": lambda *call: None})
    assert not api._serves("cuda", operands(), "auto", {"scale": 1.0, "softcap": None})


def test_auto_takes_the_cluster_kernel_whether_keys_are_rotated_or_not(monkeypatch):
    monkeypatch.setattr(api, "_REFUSALS", {"cuda": lambda *call: None})
    monkeypatch.setattr(cluster_decode, "build_refusal", lambda *call, **options: None)
    turned = Turned(torch.ones(1, 40, 32), torch.ones(1, 40, 32))
    settings = ("auto", {"scale": 1.0, "softcap": None})
    assert api._serves("cuda", operands(), *settings)
    assert api._serves("cuda", operands(finish=turned), *settings)


@pytest.mark.parametrize(("clusters", "told"), [(0, "No cluster of 1 blocks"), (3, None)])
def test_a_gpu_on_which_no_cluster_fits_is_refused(monkeypatch, clusters, told):
    monkeypatch.setattr(cluster_decode, "kernel", lambda *wanted: SimpleNamespace(clusters=lambda size: clusters))
    monkeypatch.setattr(cluster_decode, "_TRIED", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    found = build_refusal(operands(), 1.0, None)
    assert found is None if told is None else told in found


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_launch_gives_what_the_kernel_takes(monkeypatch, rows):
    maps, launched = [], []
    found = SimpleNamespace(launch=lambda grid, given: launched.append((grid, given)))
    monkeypatch.setattr(cluster_decode, "_at_once", lambda found, size: 3)
    monkeypatch.setattr(cluster_decode, "kernel", lambda *wanted: found)
    monkeypatch.setattr(cluster_decode, "tensor_map", lambda *told: maps.append(told) or ctypes.c_int())
    monkeypatch.setattr(cluster_decode.Parts, "merge", lambda *given: None)
    angles = torch.ones(max(rows, 1), 40, 32)
    given = operands(finish=Turned(angles, angles + 1) if rows else None)
    sums, lse = cluster_decode.cluster_states(given, 39, 1.0, None)
    assert (sums.shape, lse.shape) == ((2, 8, 512), (2, 8, 1))
    ((grid, arguments),) = launched
    assert grid == (2, 1, 1)
    takes = cluster_decode._SOURCE.read_text().split("slim_decode(")[1].split(")")[0]
    assert len(arguments) == takes.count(",") + 1
    assert maps[0] == (given.state.data_ptr(), (64, 39, 8, 2), (1024, 128, 40 * 1024), (64, 8, 8, 1))
    if rows:
        # Cosines and sines in 32 bits are copied as twice as many numbers of 16.
        step = 40 * 128 if rows > 1 else 39 * 128
        assert [told[1:] for told in maps[1:]] == [((64, 39, 1, rows), (128, 128, step), (64, 8, 1, 1))] * 2
        assert maps[1][0] == angles.data_ptr()
    assert len(maps) == (3 if rows else 1)
    assert arguments[-1].value == max(rows, 1)


def test_tensors_of_two_devices_and_angles_of_other_rows_are_refused():
    q, state, weight = torch.randn(2, 8, 1, 64), torch.randn(2, 30, 512), torch.randn(512, 512)
    for other in (
        {"value_weight": weight.to("meta")},
        {"finish": Turned(torch.ones(3, 30, 32), torch.ones(3, 30, 32))},
    ):
        with pytest.raises(InvalidInput, match=r"meta|3 rows"):
            slim_attention(q, state, **({"value_weight": weight} | other))


def test_a_missing_compiler_is_a_reason():
    if torch.version.cuda is None:
        assert "CUDA build of torch" in compiler_refusal()
    else:
        assert compiler_refusal() is None or "NVRTC" in compiler_refusal()


@pytest.mark.skipif(
    not torch.cuda.is_available() or cluster_machine_refusal(torch.device("cuda", 0)) is not None,
    reason="needs a Hopper GPU and NVRTC; an emulated machine covers it elsewhere",
)
@pytest.mark.parametrize(("case", "plan"), checks()[::3], ids=str)
def test_the_kernel_agrees_with_the_reference(case, plan):
    assert check(case, plan)["good"]
