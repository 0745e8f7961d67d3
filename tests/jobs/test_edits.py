"""Groups changed by hand: what is taken, what it does to the sets, and that the model follows."""

import numpy as np
import pytest
import torch

from focus_core import edits
from focus_core.capture import capture_trace
from focus_core.edits import Edited, Merge, Move
from focus_core.errors import InvalidInput, Unsupported
from focus_core.evaluation.likelihood import token_nll
from focus_core.kernels.focus import focus_attention
from focus_core.models.facts import facts_of
from focus_core.models.loading import Loaded
from focus_core.pattern import GroupPattern
from focus_core.retrofit import retrofit
from focus_core.routing.router import Router, RouterConfig
from focus_core.variants import Prepared, Variant, make
from tests.retrofit.helpers import in_chunks
from tests.tiny import VOCAB, tiny_model, tiny_tokenizer

TEXT = "the cat and the dog sat on the mat while another one ran there and then the rain ended in the morning. " * 4
LIMIT = 90
FOCUS = {"groups": 5, "query_topk": 2, "window": 6, "sinks": 2}


@pytest.fixture(scope="module")
def loaded():
    model = tiny_model()
    return Loaded(model, tiny_tokenizer(), facts_of(model, "tiny"), "tiny")


@pytest.fixture(scope="module")
def adapter():
    return Router(RouterConfig(layers=3, hidden_size=144, groups=5, dim=4, routers=3)).requires_grad_(False)


def run(loaded, adapter, *made, config=FOCUS, **options):
    return capture_trace(loaded, make("focus", config), adapter, TEXT, limit=LIMIT, edits=made, layers=[], **options)


class ByHand(Variant):
    """Every layer's sets are given as arrays."""

    def __init__(self, queries, keys):
        object.__setattr__(self, "sets", (queries, keys))

    def prepare(self, hidden, layer, positions, adapter, first_key):
        queries, keys = (torch.from_numpy(side[layer])[None] for side in self.sets)
        return Prepared(keys, queries)

    def attend(self, call):
        return focus_attention(
            call.query,
            call.key,
            call.value,
            call.fresh,
            call.cached,
            window=FOCUS["window"],
            sinks=FOCUS["sinks"],
            scale=call.scale,
            backend="reference",
        )


def test_a_request_becomes_edits():
    given = [{"layer": 1, "router": 0, "token": 7, "to": 2}, {"layer": 0, "router": 2, "merge": [3, 1]}]
    made = edits.parse(given)
    assert made == (Move(1, 0, 7, 2), Merge(0, 2, 3, 1))
    assert [edit.document() for edit in made] == given
    assert edits.parse(None) == edits.parse([]) == ()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"layer": 1}, "edits is a dict, not a list"),
        ([7], "Edit 1 is 7"),
        ([{"layer": 1, "router": 0, "token": 7}], "Edit 1 is"),
        ([{"layer": 1, "router": 0, "token": 7, "to": 2, "merge": [1, 2]}], "Edit 1 is"),
        ([{"layer": 1, "router": 0, "token": -7, "to": 2}], "Edit 1: token is -7"),
        ([{"layer": True, "router": 0, "token": 7, "to": 2}], "Edit 1: layer is True"),
        ([{"layer": 1, "router": 0, "token": 7, "to": 2.0}], r"Edit 1: to is 2\.0"),
        ([{"layer": 1, "router": 0, "merge": [1]}], r"Edit 1 merges \[1\]"),
        ([{"layer": 1, "router": 0, "merge": [1, "2"]}], "Edit 1: a group is '2'"),
        ([{"layer": 1, "router": 0, "merge": [4, 4]}], "group 4 into itself"),
        ([{"layer": 0, "router": 0, "token": 0, "to": 0}] * 1_001, "There are 1,001 edits"),
    ],
)
def test_what_is_no_edit_is_refused(given, says):
    with pytest.raises(InvalidInput, match=says):
        edits.parse(given)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (Move(3, 0, 7, 2), "no layer 3. It can be 0 to 2"),
        (Move(0, 3, 7, 2), "no router 3. It can be 0 to 2"),
        (Move(0, 0, 90, 2), "no token 90. It can be 0 to 89"),
        (Move(0, 0, 7, 5), "no group 5. It can be 0 to 4"),
        (Merge(0, 0, 1, 9), "no group 9"),
    ],
)
def test_what_is_not_there_cannot_be_edited(loaded, adapter, made, says):
    with pytest.raises(InvalidInput, match=f"Edit 2: there is {says}"):
        run(loaded, adapter, Move(0, 0, 7, 2), made)


def test_only_served_groups_can_be_edited(loaded, adapter):
    with pytest.raises(Unsupported, match="focus with the soft gate serves no groups"):
        run(loaded, adapter, Move(0, 0, 7, 2), config={**FOCUS, "gate": "soft"})
    with pytest.raises(Unsupported, match="window serves no groups"):
        capture_trace(loaded, make("window"), None, TEXT, edits=[Move(0, 0, 7, 2)])
    gemma = tiny_model("gemma2")
    own = Loaded(gemma, tiny_tokenizer(), facts_of(gemma), "gemma")
    with pytest.raises(InvalidInput, match=r"layer 0 keeps its own window of 8.*Layers with groups: 1\."):
        capture_trace(own, make("random"), None, TEXT, edits=[Move(0, 0, 7, 2)])


def test_sets_change_where_they_should_and_nowhere_else():
    rng = np.random.default_rng(0)
    before = torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, (2, 3, 40)))
    positions = torch.arange(40)[None].repeat(2, 1)
    positions[1] -= 5  # five pads before the second row
    copy = before.clone()
    moved = Move(0, 1, 7, 63).apply(before, positions)
    assert moved[0, 1, 7] == moved[1, 1, 12] == -(2**63)
    assert (moved != before).sum() == 2

    merged = Merge(0, 2, 63, 4).apply(before, positions)
    assert torch.equal(merged[:, :2], before[:, :2])
    for old, new in zip(before[:, 2].flatten().tolist(), merged[:, 2].flatten().tolist(), strict=True):
        groups = {g for g in range(64) if old >> g & 1}
        wanted = (groups - {63}) | {4} if 63 in groups else groups
        assert {g for g in range(64) if new >> g & 1} == wanted
    assert torch.equal(before, copy)


def test_an_edit_that_changes_nothing_changes_no_logit(loaded, adapter):
    plain = run(loaded, adapter, config={**FOCUS, "query_topk": 1})
    both = plain.arrays["query_bits"][1, 2] == plain.arrays["key_bits"][1, 2]
    token = int(np.flatnonzero(both)[-1])
    group = int(np.log2(plain.arrays["key_bits"][1, 2, token]))
    used = {int(np.log2(s)) for side in ("query_bits", "key_bits") for s in plain.arrays[side][0, 1]}
    same = [Move(1, 2, token, group)] + [Merge(0, 1, g, 0) for g in range(1, 5) if g not in used]
    edited = run(loaded, adapter, *same, config={**FOCUS, "query_topk": 1})
    for name, array in plain.arrays.items():
        np.testing.assert_array_equal(edited.arrays[name], array, err_msg=name)
    assert "edits" not in plain.provenance
    assert edited.provenance["edits"] == [edit.document() for edit in same]


def test_an_edit_equals_the_same_sets_given_by_hand(loaded, adapter):
    plain = run(loaded, adapter)
    made = (Move(1, 0, 40, 3), Merge(2, 1, 0, 4), Move(2, 1, 55, 0))
    edited = run(loaded, adapter, *made)
    queries, keys = plain.arrays["query_bits"].copy(), plain.arrays["key_bits"].copy()
    # Layers 0 and 1 route what no edit has changed yet; layer 2 routes other hidden states than before.
    assert (edited.arrays["key_bits"][0] == keys[0]).all()
    for side, name in ((queries, "query_bits"), (keys, "key_bits")):
        side[1, 0, 40] = 1 << 3
        assert (edited.arrays[name][1] == side[1]).all()
        side[2] = edited.arrays[name][2]
        assert not (side[2, 1, np.arange(LIMIT) != 55] & 1).any()
        assert side[2, 1, 55] == 1
    ids = torch.from_numpy(edited.arrays["token_ids"].astype(np.int64))[None]
    with torch.no_grad(), retrofit(loaded.model, ByHand(queries, keys)):
        nll = token_nll(loaded.model, ids)[0].numpy()
        logits = loaded.model(input_ids=ids, use_cache=False).logits[0]
    np.testing.assert_allclose(edited.arrays["nll"], nll, atol=2e-5)
    assert np.abs(edited.arrays["nll"] - plain.arrays["nll"]).max() > 1e-3
    np.testing.assert_array_equal(edited.arrays["dense_nll"], plain.arrays["dense_nll"])
    shares = logits.float().softmax(-1).topk(8)
    np.testing.assert_allclose(edited.arrays["top_p"], shares.values, atol=1e-3)
    pattern = GroupPattern(queries[1][None], keys[1][None], 9, FOCUS["window"], FOCUS["sinks"])
    assert edited.arrays["kept_pairs"][1, 0] == pytest.approx(pattern.density(0, 0))


def test_no_earlier_output_hears_of_an_edit(loaded, adapter):
    """A moved token changes what comes after it; with a cache, token by token, it is the same."""
    variant = Edited(make("focus", FOCUS), (Move(1, 1, 20, 4), Merge(0, 0, 1, 2)))
    only_move = Edited(make("focus", FOCUS), (Move(1, 1, 20, 4),))
    ids = torch.randint(VOCAB, (1, 40), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        with retrofit(loaded.model, make("focus", FOCUS), adapter):
            plain = loaded.model(input_ids=ids, use_cache=False).logits
        with retrofit(loaded.model, only_move, adapter):
            moved = loaded.model(input_ids=ids, use_cache=False).logits
        with retrofit(loaded.model, variant, adapter):
            whole = loaded.model(input_ids=ids, use_cache=False).logits
            pieces = in_chunks(loaded.model, ids, (15, 7, 18))
    assert torch.equal(plain[:, :20], moved[:, :20])
    assert not torch.equal(plain[:, 20:], moved[:, 20:])
    torch.testing.assert_close(pieces, whole, atol=2e-4, rtol=1e-4)
