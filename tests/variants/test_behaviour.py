"""One matrix that every registered variant runs through; a new file in focus_core/variants is picked up here."""

import numpy as np
import pytest
import torch

from focus_core import compat
from focus_core.errors import FocusError, InvalidInput
from focus_core.models.facts import facts_of
from focus_core.retrofit import retrofit
from focus_core.routing.sets import random_groups
from focus_core.variants import VARIANTS, AttentionCall, Shape
from focus_core.variants.groups import GroupedVariant
from focus_core.variants.sfa import FeatureCodes
from focus_core.variants.slim import Slim
from focus_core.variants.xattention import XAttention
from tests.retrofit.helpers import Watcher, far, in_chunks, positions_of, step, tokens
from tests.tiny import FAMILIES, LATENT_FAMILIES, tiny_model
from tests.variants.cases import ALL, ESTIMATES, EXACT, UNTRAINED, adapter_for, fields, model_for, small

TOLERANCE = 2e-5
CAUSAL = [label for label, variant in ALL.items() if not variant.leaks]
LEAKING = [label for label, variant in ALL.items() if variant.leaks]


@pytest.fixture
def model(request):
    """The one that the test's variant is run on."""
    label = getattr(request.node, "callspec", None) and request.node.callspec.params.get("label", "")
    return model_for((label or "").split(" ")[0])


@pytest.fixture
def facts(model):
    return facts_of(model)


def logits(model, variant, adapter, ids, **given):
    with torch.no_grad(), retrofit(model, variant, adapter):
        return model(ids, use_cache=False, **given).logits


def watched(model, variant, adapter, ids, **given) -> list[AttentionCall]:
    watcher = Watcher()
    with torch.no_grad(), retrofit(model, variant, adapter, recorder=watcher):
        model(ids, use_cache=False, **given)
    return watcher.calls


def test_every_variant_is_in_the_matrix():
    assert {v.name for v in ALL.values()} == set(VARIANTS)
    assert {cls.adapter_kind for cls in VARIANTS.values()} - {None} <= set(UNTRAINED)
    # Three published forms leak; what leaks or is soft is not served.
    assert {label.split()[0] for label in LEAKING} == {"focus", "routing", "xattention"}
    assert len(LEAKING) == 3
    assert not any(ALL[label].served for label in LEAKING)
    other = {label for label in ALL if any(word in label for word in ("gate=", "form=published", "voters=own"))}
    assert {label for label, v in ALL.items() if not v.served} == other


@pytest.mark.parametrize("family", FAMILIES + LATENT_FAMILIES)
@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_it_serves_a_model_or_says_why_not(name, family):
    tiny, ids = tiny_model(family), tokens(1, 20)
    about, variant = facts_of(tiny), small(name)
    support = variant.supports(about)
    if support.ok:
        assert family not in LATENT_FAMILIES or variant.serves_latent
        assert torch.isfinite(logits(tiny, variant, adapter_for(variant, about), ids)).all()
    else:
        assert support.reason
        assert family not in LATENT_FAMILIES or "latent" in support.reason
        with pytest.raises(FocusError):
            logits(tiny, variant, adapter_for(variant, about), ids)


@pytest.mark.parametrize(
    "label", [label for label in ALL if ALL[label].adapter_kind and not ALL[label].adapter_optional]
)
def test_it_refuses_to_run_without_its_adapter(label, model):
    with pytest.raises(InvalidInput, match="none was given"):
        logits(model, ALL[label], None, tokens(1, 8))


@pytest.mark.parametrize("label", CAUSAL)
def test_later_tokens_do_not_move_earlier_logits(label, model, facts):
    variant, ids = ALL[label], tokens(2, 40)
    adapter, other = adapter_for(variant, facts), ids.clone()
    other[:, 25:] = tokens(2, 15, seed=1)
    a, b = (logits(model, variant, adapter, x) for x in (ids, other))
    assert far(a[:, 25:], b[:, 25:]) > 0.1
    # The cpu backend cuts its work by groups, so that later tokens move how earlier sums are rounded.
    assert far(a[:, :25], b[:, :25]) < (TOLERANCE if getattr(variant, "backend", "") == "cpu" else 1e-6)
    exact = model_for(variant.name, torch.float64)
    a, b = (logits(exact, variant, adapter, x) for x in (ids, other))
    assert far(a[:, :25], b[:, :25]) < 1e-11


@pytest.mark.parametrize("label", LEAKING)
def test_a_form_that_says_it_leaks_is_found_leaking(label, model, facts):
    variant, ids = ALL[label], tokens(2, 40)
    adapter, other = adapter_for(variant, facts), ids.clone()
    other[:, 25:] = tokens(2, 15, seed=1)
    a, b = (logits(model, variant, adapter, x) for x in (ids, other))
    assert far(a[:, :25], b[:, :25]) > 0.01


@pytest.mark.parametrize("label", [label for label in ALL if ALL[label].name not in ESTIMATES])
def test_keeping_every_pair_near_is_dense(label, model, facts):
    variant, ids = ALL[label], tokens(2, 40)
    adapter, native = adapter_for(variant, facts), model(ids).logits
    exact = EXACT.get(variant.name, {})
    if "window" in fields(variant.name):
        exact = exact | {"window": 40}
    if exact:
        assert far(logits(model, variant, adapter, ids), native) > 0.01
        variant = small(variant.name, variant.to_dict() | exact)
        adapter = adapter_for(variant, facts)
    assert far(logits(model, variant, adapter, ids), native) < TOLERANCE


@pytest.mark.parametrize("label", [label for label in ALL if isinstance(ALL[label], GroupedVariant)])
def test_one_group_for_all_is_dense(label, model, facts):
    """Every token in every group: all agree under every gate but the paper's, which scales even those that do."""
    variant = ALL[label]
    if variant.leaks:
        assert far(logits(model, variant, adapter_for(variant, facts), tokens(2, 40)), model(tokens(2, 40)).logits) > 0
        return
    variant = small(variant.name, variant.to_dict() | {"query_topk": 4, "key_topk": 4} | EXACT.get(variant.name, {}))
    got = logits(model, variant, adapter_for(variant, facts), tokens(2, 40))
    assert far(got, model(tokens(2, 40)).logits) < TOLERANCE


@pytest.mark.parametrize("sizes", [(13, 1, 17, 9), (25,) + (1,) * 15], ids=["chunks", "decode"])
@pytest.mark.parametrize("label", CAUSAL)
def test_cached_runs_equal_one_forward(label, sizes, model, facts):
    variant, ids = ALL[label], tokens(2, 40)
    adapter = adapter_for(variant, facts)
    whole = logits(model, variant, adapter, ids)
    with torch.no_grad(), retrofit(model, variant, adapter):
        assert far(in_chunks(model, ids, sizes), whole) < TOLERANCE


@pytest.mark.parametrize("label", CAUSAL)
@pytest.mark.parametrize("sizes", [(40,), (5, 20, 15), (30,) + (1,) * 10], ids=["whole", "chunks", "decode"])
def test_rows_padded_on_the_left_equal_each_row_alone(label, sizes, model, facts):
    variant, ids, pads = ALL[label], tokens(3, 40), (0, 7, 23)
    adapter, mask = adapter_for(variant, facts), torch.ones(3, 40, dtype=torch.long)
    for row, pad in enumerate(pads):
        mask[row, :pad] = 0
    with torch.no_grad(), retrofit(model, variant, adapter):
        padded = in_chunks(model, ids, sizes, mask, positions_of(mask))
        for row, pad in enumerate(pads):
            alone = model(ids[row : row + 1, pad:]).logits
            assert far(padded[row : row + 1, pad:], alone) < TOLERANCE


@pytest.mark.parametrize("label", LEAKING)
def test_padded_rows_of_the_papers_gate_equal_each_row_alone(label, model, facts):
    variant, ids = ALL[label], tokens(2, 40)
    adapter, mask = adapter_for(variant, facts), torch.ones(2, 40, dtype=torch.long)
    mask[1, :15] = 0
    padded = logits(model, variant, adapter, ids, attention_mask=mask, position_ids=positions_of(mask))
    assert far(padded[1:, 15:], logits(model, variant, adapter, ids[1:, 15:])) < TOLERANCE


def changed_by(variant, call: AttentionCall, key: int) -> np.ndarray:
    """(B, Hq, Nq): whether the output moves when that key's value does, or what it is made from, by however little."""
    value, hidden = call.value.clone(), call.hidden.clone()
    value[:, :, key] += 1e6
    hidden[:, key] += 1e6
    with torch.no_grad():
        before = variant.attend(call)
        after = variant.attend(AttentionCall(**{**vars(call), "value": value, "hidden": hidden}))
    return ((after - before).abs() > 0).any(-1).numpy()


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("label", ALL)
def test_the_pattern_is_what_was_computed(label, padded, model, facts):
    variant, ids, mask = ALL[label], tokens(2, 40), torch.ones(2, 40, dtype=torch.long)
    if padded:
        mask[1, :11] = 0
    adapter = adapter_for(variant, facts)
    call = watched(model, variant, adapter, ids, attention_mask=mask, position_ids=positions_of(mask))[1]
    pattern = variant.pattern(call)
    kept = np.stack([[pattern.tile(b, h, slice(0, 40), slice(0, 40)) for h in range(pattern.heads)] for b in range(2)])
    for key in (0, 1, 12, 20, 39):
        moved = changed_by(variant, call, key)
        assert np.array_equal(moved, kept[..., key])
    pads = (0, 11 if padded else 0)
    possible = sum((40 - p) * (41 - p) // 2 for p in pads)
    assert pattern.density() == pytest.approx(kept.sum() / (possible * 9), abs=1e-12)
    for b, pad in enumerate(pads):
        assert pattern.density(b) == pytest.approx(kept[b].sum() / ((40 - pad) * (41 - pad) // 2 * 9), abs=1e-12)
    every = variant.name in ("dense", "performer", "temperature", "sfa", "slim", "mla")
    assert every or not variant.served or kept.sum() < possible * 9


@pytest.mark.parametrize("label", CAUSAL)
def test_the_pattern_of_a_decoded_token_is_the_last_row(label, model, facts):
    variant, ids, watcher = ALL[label], tokens(2, 40), Watcher()
    adapter = adapter_for(variant, facts)
    whole = variant.pattern(watched(model, variant, adapter, ids)[1])
    with torch.no_grad(), retrofit(model, variant, adapter):
        _, cache = step(model, ids[:, :39])
    with torch.no_grad(), retrofit(model, variant, adapter, recorder=watcher):
        model(ids[:, 39:], use_cache=True, **{compat.cache_keyword(model): cache})
    last = variant.pattern(watcher.calls[1])
    assert (last.queries, last.keys) == (1, 40)
    for b in range(2):
        for h in range(9):
            row = last.tile(b, h, slice(0, 1), slice(0, 40))
            assert np.array_equal(row, whole.tile(b, h, slice(39, 40), slice(0, 40)))


def balanced_call(variant, shape: Shape) -> AttentionCall:
    """A call without contents, whose sets, where the variant has any, are drawn evenly."""
    queries = shape.length if shape.queries is None else shape.queries
    q = torch.zeros(shape.batch, shape.heads, 1, 1).expand(-1, -1, queries, shape.head_dim)
    k = torch.zeros(shape.batch, shape.kv_heads, 1, 1).expand(-1, -1, shape.length, shape.head_dim)
    cached = fresh = None
    if isinstance(variant, GroupedVariant):
        position = torch.arange(shape.length).expand(shape.batch, -1)
        cached = random_groups(position, 0, 0, variant.groups, variant.key_topk, 0)[:, None]
        fresh = random_groups(position, 1, 0, variant.groups, variant.query_topk, 0)[:, None, -queries:]
    if isinstance(variant, XAttention):
        cached = torch.zeros(shape.batch, shape.heads, shape.length, shape.head_dim)
    layer = getattr(variant, "dense_layers", 0)
    return AttentionCall(q, k, k, q[:, 0], layer, 1.0, cached=cached, fresh=fresh)


@pytest.mark.parametrize("queries", [None, 1, 100], ids=["prefill", "decode", "chunk"])
@pytest.mark.parametrize("length", [3, 700])
# What a latent's products cost depends on its rank: test_mla.py counts them.
@pytest.mark.parametrize("label", [label for label in ALL if ALL[label].name not in ESTIMATES | {"mla"}])
def test_the_cost_is_that_of_the_patterns_pairs(label, length, queries, model):
    if queries is not None:
        queries = min(queries, length)
    variant = ALL[label]
    kv_heads = 9 if isinstance(variant, Slim) else 3
    shape = Shape(2, 9, kv_heads, 64, length, queries)
    pattern = variant.pattern(balanced_call(variant, shape))
    pairs = sum(int(pattern.kept_per_query(b, h).sum()) for b in range(2) for h in range(9))
    cached = 2 * 64 * 4
    counted = variant.cost(shape).flops / (4 * 64)
    shared, query = 64, 64 * 4
    if isinstance(variant, FeatureCodes):
        shared = variant.shared(shape)
        assert shared == (4 if variant.sparse == "keys" or variant.select == "first" else 4 * 4 / 64)
        counted *= 2 * 64 / (shared + 64)
        code = 4 * 4 + {"features": 4, "pairs": 2, "first": 0}[variant.select]
        cached, query = 64 * 4 + code, query if variant.sparse == "keys" else code
    grouped = isinstance(variant, GroupedVariant) and (variant.served or variant.name == "routing")
    if grouped and length > 5:
        # One decoded token draws few pairs: their share is binomial.
        far_pairs = pattern.possible_per_query(0).sum() - 5 * pattern.queries
        share = variant.share_of_far_pairs()
        spread = 18 * 5 * (far_pairs * share * (1 - share)) ** 0.5
        assert abs(counted - pairs) <= min(spread, 0.5 * pairs)
        assert length < 600 or queries == 1 or abs(counted - pairs) < 0.05 * pairs
    elif isinstance(variant, XAttention):
        # Of equal scores, which block crosses the threshold is a matter of rounding.
        counted -= 2 * 9 * variant.scored_pairs(shape) * shared / (shared + 64)
        assert counted == pytest.approx(pairs, rel=0.02)
        cached += 3 * query * (variant.voters == "before")
    elif isinstance(variant, Slim) and (queries not in (None, length) or variant.prompt == "rebuilt"):
        # What is read back has to be multiplied by a matrix first; test_slim.py counts it.
        assert counted > pairs
    else:
        assert counted == pytest.approx(pairs, rel=1e-12)
    cost = variant.cost(shape)
    read = whole = kv_heads * cached
    if isinstance(variant, Slim):
        whole = read / 2
    assert whole <= cost.kv_bytes_per_token <= whole + 3 * 8
    n = length if queries is None else queries
    assert cost.bytes <= 2 * (2 * n * 9 * 64 * 4 + length * (read + 3 * 8))
    assert cost.bytes >= 2 * 2 * n * 9 * 64 * 4


@pytest.mark.parametrize("label", CAUSAL)
def test_gradients_reach_the_hidden_states_and_nothing_else_trains(label, model, facts):
    """Whatever trains beneath a variant (an adapter, a LoRA) sees a gradient through it."""
    variant = ALL[label]
    embedded = model.get_input_embeddings()(tokens(1, 20)).detach().requires_grad_()
    with retrofit(model, variant, adapter_for(variant, facts)):
        if getattr(variant, "backend", "") == "cpu":
            with pytest.raises(InvalidInput, match="has no backward"):
                model(inputs_embeds=embedded, use_cache=False)
            return
        model(inputs_embeds=embedded, use_cache=False).logits.square().sum().backward()
    assert embedded.grad.abs().amax(-1).gt(0).all()
    assert all(p.grad is None for p in model.parameters())
