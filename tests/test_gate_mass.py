"""What the published gate takes from pairs of different groups: measured on the function that it is."""

from types import SimpleNamespace

import torch

from data.build.gate_mass import GateMass
from focus_core.claims import claim, document
from focus_core.kernels.focus import soft

MASK = {"groups": 4, "query_topk": 1, "window": 6, "sinks": 2}


def call(sharpness, groups):
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, 40, 8, generator=draw) for heads in (6, 2, 2))
    adapter = SimpleNamespace(sharpness=torch.tensor([sharpness]))
    return SimpleNamespace(query=q, key=k, value=v, cached=groups, layer=0, scale=None, adapter=adapter)


def test_the_output_is_the_published_gates_and_shares_are_of_far_pairs_alone():
    shares = (3 * torch.randn(1, 1, 40, 4, generator=torch.Generator().manual_seed(1))).softmax(-1)
    given, variant = call(5.0, shares), GateMass(gate="paper", **MASK)
    wanted = soft.soft_attention(
        given.query,
        given.key,
        given.value,
        multiply=soft.paper_gate(shares, given.adapter.sharpness[0]),
        window=6,
        sinks=2,
    )
    torch.testing.assert_close(variant.attend(given), wanted, rtol=1e-4, atol=1e-5)
    (row,) = variant.rows
    assert 0.5 < row["least_gate"] < row["mean_gate"] < row["largest_gate"] < 1
    assert 0 < row["share"] < 1


def test_one_hot_groups_have_a_gate_of_a_half_and_lose_no_share_where_scores_are_even():
    groups = torch.eye(4)[torch.arange(40) % 4][None, None]
    given, variant = call(50.0, groups), GateMass(gate="paper", **MASK)
    given.query = given.query * 0
    variant.attend(given)
    (row,) = variant.rows
    assert row["least_gate"] == row["mean_gate"] == 0.5
    assert abs(row["largest_gate"] - 1) < 1e-6
    # Half a score of 0 is 0: the gate takes nothing.
    assert row["share"] == row["share_without"] > 0.2


def test_what_ships_has_every_layer_and_the_ledger_reads_it():
    layers = document("gate-mass-smollm2.json")["layers"]
    assert [row["layer"] for row in layers] == list(range(30))
    assert all(row["least_gate"] >= 0.5 for row in layers)
    assert any(one["file"] == "gate-mass-smollm2.json" for one in claim("focus-soft-gate")["measured"])
