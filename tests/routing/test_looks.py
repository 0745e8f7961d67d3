"""A router with a table of looks: every router of every layer has its own number of groups that queries look into."""

import json

import pytest
import torch

from focus_core.adapter import CONFIG_FILE, load_adapter
from focus_core.assets import DATA
from focus_core.errors import InvalidInput
from focus_core.evaluation.perplexity import weights_hash
from focus_core.evaluation.recorders import PairCounter
from focus_core.models.facts import facts_of
from focus_core.models.loading import load_model
from focus_core.retrofit import retrofit
from focus_core.routing.router import Router, RouterConfig
from focus_core.routing.sets import members, top_groups, top_groups_each
from focus_core.variants import make
from tests.retrofit.helpers import far, tokens
from tests.tiny import tiny_model

LOOKS = ((0, 4, 1), (2, 0, 0), (4, 4, 4))
"""None, all and some; a layer that is dense by its table, and none whose largest number is the mean."""
SERVED = {"groups": 4, "window": 4, "sinks": 1}


def router(looks=LOOKS, **given) -> Router:
    made = Router(RouterConfig(**({"layers": 3, "hidden_size": 144, "groups": 4, "dim": 8, "routers": 3} | given)))
    with torch.no_grad():
        made.query_projection.copy_(
            torch.randn(made.query_projection.shape, generator=torch.Generator().manual_seed(1))
        )
    return made.with_looks(looks)


def focus(adapter: Router, **given):
    return make("focus", SERVED | {"query_topk": adapter.config.usual_looks} | given)


def logits(model, variant, adapter, ids, recorder=None, **given):
    with torch.no_grad(), retrofit(model, variant, adapter, recorder=recorder):
        return model(ids, use_cache=False, **given).logits


def test_each_router_gets_the_sets_of_its_own_number():
    own = torch.randn(2, 3, 30, 6, generator=torch.Generator().manual_seed(0))
    for looks in (torch.tensor([0, 6, 2]), torch.tensor([[0, 6, 2], [1, 3, 0]])):
        sets = top_groups_each(own, looks, int(looks.max()))
        for b in range(2):
            for r in range(3):
                k = int(looks[r] if looks.dim() == 1 else looks[b, r])
                wanted = top_groups(own[b, r], k) if k else torch.zeros(30, dtype=torch.int64)
                assert torch.equal(sets[b, r], wanted)
    many = torch.randn(1, 1, 5, 64)
    assert torch.equal(top_groups_each(many, torch.tensor([64]), 64), torch.full((1, 1, 5), -1))


@pytest.mark.parametrize("given", [{}, {"key_topk": 2}, {"backend": "cpu"}, {"backend": "chunked"}])
def test_served_is_the_reference_with_padding(given):
    model, adapter, ids = tiny_model(), router(), tokens(2, 60)
    mask = torch.ones_like(ids)
    mask[0, :17] = 0
    found, pairs = PairCounter(), PairCounter()
    got = logits(model, focus(adapter, **given), adapter, ids, found, attention_mask=mask)
    plain = focus(adapter, **given | {"backend": "reference"})
    wanted = logits(model, plain, adapter, ids, pairs, attention_mask=mask)
    assert far(got[0, 17:], wanted[0, 17:]) < 2e-4
    assert far(got[1], wanted[1]) < 2e-4
    assert found.layers == pairs.layers
    assert found.kept(1)[2] == 1, "all groups are all pairs"
    assert found.kept(1)[1] < found.kept(1)[0] < 1


def test_none_is_the_window_and_all_is_dense():
    model, ids = tiny_model(), tokens(1, 50)
    none, every = (router(((n,) * 3,) * 3) for n in (0, 4))
    assert (
        far(logits(model, focus(none), none, ids), logits(model, make("window", {"window": 4, "sinks": 1}), None, ids))
        < 1e-4
    )
    assert far(logits(model, focus(every), every, ids), logits(model, make("dense"), None, ids)) < 1e-4


def test_another_query_topk_and_uniform_look_alike_everywhere():
    model, adapter, ids = tiny_model(), router(), tokens(1, 50)
    plain, usual = adapter.with_looks(None), adapter.config.usual_looks
    assert usual == 2 == adapter.serve["query_topk"]
    own = logits(model, focus(adapter), adapter, ids)
    for given in ({"query_topk": 3}, {"looks": "uniform"}):
        found = logits(model, focus(adapter, **given), adapter, ids)
        assert torch.equal(found, logits(model, make("focus", SERVED | {"query_topk": usual} | given), plain, ids))
        assert far(found, own) > 0.01


@pytest.mark.parametrize("gate", ["soft", "straight_through"])
def test_the_gates_that_train_keep_to_the_table(gate):
    model, adapter, ids = tiny_model(), router(), tokens(1, 50)
    served = logits(model, focus(adapter), adapter, ids)
    soft = logits(model, focus(adapter, gate=gate, temperature=1e-4), adapter, ids)
    assert (soft - served).abs().mean() < 0.02
    assert far(served, logits(model, focus(adapter, looks="uniform"), adapter, ids)) > 0.1


def test_memberships_of_the_gates_are_the_tables():
    adapter = router()
    hidden = torch.randn(1, 20, 144, generator=torch.Generator().manual_seed(3))
    variant = focus(adapter, gate="straight_through", temperature=0.3)
    adapter.requires_grad_(True)
    for layer in range(3):
        prepared = variant.prepare(hidden, layer, None, adapter, None)
        sets = focus(adapter).prepare(hidden, layer, None, adapter, None)
        assert torch.equal(prepared.fresh > 0.5, members(sets.fresh, 4))
        # Nothing decides about all of the groups.
        assert prepared.fresh.requires_grad == (layer < 2)


def test_prefill_chunks_and_single_tokens_agree_in_the_small_shipped_model():
    """To rounding: that the sets agree is asked of the logits, which a moved set would move by far more."""
    loaded = load_model(str(DATA / "models" / "tiny-novels"), device="cpu", dtype="float32")
    model, facts = loaded.model, loaded.facts
    looks = tuple(tuple((layer + 2 * r) % 5 for r in range(facts.kv_heads)) for layer in range(facts.layers))
    adapter = router(looks, layers=facts.layers, hidden_size=facts.hidden_size, routers=facts.kv_heads)
    ids = tokens(1, 70) % facts.vocab
    with torch.no_grad(), retrofit(model, focus(adapter), adapter):
        whole = model(ids, use_cache=True).logits
        for cuts in ((33, 61, 70), (40, *range(41, 71))):
            cache, parts, start = None, [], 0
            for end in cuts:
                out = model(ids[:, start:end], past_key_values=cache, use_cache=True)
                cache, start = out.past_key_values, end
                parts.append(out.logits)
            assert far(torch.cat(parts, 1), whole) < 1e-4


def test_later_tokens_change_nothing_before_them():
    model, adapter, ids = tiny_model(), router(), tokens(1, 50)
    changed = ids.clone()
    changed[:, 30:] = (changed[:, 30:] + 7) % 300
    one, other = (logits(model, focus(adapter), adapter, x) for x in (ids, changed))
    assert torch.equal(one[:, :30], other[:, :30])
    assert not torch.equal(one[:, 30:], other[:, 30:])


def test_a_table_is_saved_and_read_and_told_apart(tmp_path):
    model, adapter = tiny_model(), router()
    adapter.serve = SERVED | {"query_topk": 2}
    again = load_adapter(adapter.save_pretrained(tmp_path, model), model)
    assert again.config == adapter.config
    assert again.config.looks == LOOKS
    assert torch.equal(again.looks, torch.tensor(LOOKS, dtype=torch.int32))
    assert (tmp_path / CONFIG_FILE).stat().st_size < 2000
    ids = tokens(1, 40)
    assert torch.equal(logits(model, focus(adapter), adapter, ids), logits(model, focus(again), again, ids))
    assert len({weights_hash(a) for a in (adapter, again)}) == 1
    assert weights_hash(adapter) != weights_hash(adapter.with_looks(None))
    assert weights_hash(adapter) != weights_hash(adapter.with_looks(((1, 1, 1),) * 3))


def test_an_adapter_of_before_has_no_table(tmp_path):
    model, adapter = tiny_model(), router(None)
    path = adapter.save_pretrained(tmp_path, model) / CONFIG_FILE
    document = json.loads(path.read_text())
    del document["config"]["looks"]
    path.write_text(json.dumps(document))
    again = load_adapter(tmp_path, model)
    assert again.config.looks is None
    assert not make("focus", SERVED).has_looks(again)
    with pytest.raises(TypeError, match="no table"):
        again.looks_of(0)


@pytest.mark.parametrize(
    "looks, reason",
    [
        (((1, 2, 3),), "has 1 rows of 3 numbers.*has 3 layers of 3 routers"),
        (((1, 2), (1, 2), (1, 2)), "has 3 rows of 2 numbers"),
        (((1, 2, 3), (1, 2), (1, 2, 3)), "has 3 rows of 2 or 3 numbers"),
        ((), "has 0 rows of 0 numbers"),
        (((1, 5, 1),) * 3, "Router 1 of layer 0 looks into 5 groups.*0 to 4"),
        (((1, 1, 1), (1, 1, -1), (1, 1, 1)), "Router 2 of layer 1 looks into -1"),
        (((1, 1.0, 1),) * 3, "looks into 1.0 groups"),
        (((1, True, 1),) * 3, "looks into True groups"),
        ("444", "are no table"),
        ({"0": [1]}, "are no table"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(looks, reason):
    with pytest.raises(InvalidInput, match=reason):
        router(looks)


def test_what_attention_is_told_of_members_is_no_less_than_there_are():
    model, adapter = tiny_model(), router()
    seen = {}

    class Watch:
        def record(self, call, variant):
            most = members(call.fresh, 4).sum(-1).max().item()
            seen[call.layer] = most, variant.members(call)

    logits(model, focus(adapter), adapter, tokens(1, 40), Watch())
    assert seen == {0: (4, (4, 1)), 1: (2, (2, 1)), 2: (4, (4, 1))}
    assert facts_of(model).layers == len(seen)
