"""Soft attention against the plain N x N formula, forward and backward."""

import math

import pytest
import torch

from focus_core.errors import InvalidInput
from focus_core.kernels.dense import dense_attention
from focus_core.kernels.focus import focus_attention, soft
from focus_core.kernels.focus.soft import agreement, log_agreement_gate, paper_gate, soft_attention
from focus_core.routing.sets import members
from tests.kernels.cases import make

GATES = ("add", "multiply")


def plain(q, k, v, *, add=None, multiply=None, window, sinks=0, first_key=None, scale=None, softcap=None):
    """The docstring as one formula on whole N x N arrays; gates are (B or 1, R, Nq, Nk) tensors."""
    batch, heads, queries, dim = q.shape
    keys = k.shape[2]
    k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT) * (dim**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    first = torch.zeros(batch, dtype=torch.long) if first_key is None else first_key
    i = torch.arange(keys - queries, keys)[None, :, None]
    j = torch.arange(keys)[None, None] - first[:, None, None]
    near = ((i - torch.arange(keys) < window) | (j < sinks))[:, None]
    kept = ((torch.arange(keys) <= i) & (j >= 0))[:, None]
    if add is not None:
        scores = torch.where(near, scores, scores + add.repeat_interleave(heads // add.shape[1], 1))
    if multiply is not None:
        scores = torch.where(near, scores, scores * multiply.repeat_interleave(heads // multiply.shape[1], 1))
    real = kept.any(-1, keepdim=True)
    scores = scores.masked_fill(~kept, -torch.inf).masked_fill(~real, 0)
    return (torch.softmax(scores, -1) @ v) * real


def gate_of(kind, batch, routers, queries, keys, seed=5):
    drawn = torch.rand(batch, routers, queries, keys, generator=torch.Generator().manual_seed(seed))
    return torch.log(drawn + 1e-3) if kind == "add" else 0.5 + drawn


def rows_of(gate):
    return lambda rows: gate[:, :, rows]


CASES = {
    "gqa, a gate a key head": {},
    "one gate for all": {"routers": 1},
    "as many key heads as heads": {"heads": 4, "kv_heads": 4},
    "one key head": {"heads": 4, "kv_heads": 1},
    "padded": {"batch": 3, "first": [0, 5, 31]},
    "a row of pads alone": {"batch": 2, "first": [0, 40]},
    "capped": {"softcap": 1.5},
    "capped and padded": {"softcap": 1.5, "batch": 2, "first": [0, 9]},
    "last queries": {"queries": 7},
    "last queries of padded rows": {"queries": 7, "batch": 2, "first": [2, 35]},
    "one token": {"queries": 1},
    "scaled": {"scale": 0.7, "routers": 1},
    "no sinks": {"sinks": 0, "window": 1},
    "all near": {"window": 40},
}


def case(name, kind, dtype=torch.float32):
    given = {"batch": 1, "routers": None, "first": None, "window": 4, "sinks": 2} | CASES[name]
    first, shape = given.pop("first"), {"keys": 40, "dim": 16, "dtype": dtype}
    options = {n: given.pop(n) for n in ("window", "sinks", "softcap", "scale") if n in given}
    q, k, v, query_bits, key_bits = make(**given, **shape)
    gate = gate_of(kind, given["batch"], key_bits.shape[1], query_bits.shape[2], 40).to(torch.float32)
    options["first_key"] = None if first is None else torch.tensor(first)
    return (q, k, v), gate, options


@pytest.mark.parametrize("cells", [1 << 26, 3000, 1], ids=["whole", "chunks", "rows"])
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_plain_formula(name, kind, cells, monkeypatch):
    monkeypatch.setattr(soft, "_CHUNK_CELLS", cells)
    qkv, gate, options = case(name, kind)
    got = soft_attention(*qkv, **{kind: rows_of(gate)}, **options)
    wanted = plain(*(x.double() for x in qkv), **{kind: gate.double()}, **options)
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("wants", ["everything", "the gate alone", "all but the gate"])
@pytest.mark.parametrize("cells", [1 << 26, 3000], ids=["whole", "chunks"])
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_plain_formulas(name, kind, cells, wants, monkeypatch):
    """In the first layer only the router trains, so q, k and v want no gradient there."""
    monkeypatch.setattr(soft, "_CHUNK_CELLS", cells)
    qkv, gate, options = case(name, kind)
    chosen = {"everything": (1, 1, 1, 1), "the gate alone": (0, 0, 0, 1), "all but the gate": (1, 1, 1, 0)}[wants]

    def gradients(function, dtype, wrap):
        inputs = [x.to(dtype).requires_grad_(bool(on)) for x, on in zip((*qkv, gate), chosen, strict=True)]
        out = function(*inputs[:3], **{kind: wrap(inputs[3])}, **options)
        pull = torch.randn(out.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
        wanting = [x for x in inputs if x.requires_grad]
        return torch.autograd.grad((out * pull.to(dtype)).sum(), wanting)

    got = gradients(soft_attention, torch.float32, rows_of)
    wanted = gradients(plain, torch.float64, lambda gate: gate)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)
    # Where everything is near, the gate has no say.
    assert CASES[name].get("window") == 40 or wanted[-1].abs().max() > 1e-3


@pytest.mark.parametrize("kind", GATES)
def test_bf16_is_as_close_as_bf16_is(kind):
    qkv, gate, options = case("gqa, a gate a key head", kind, torch.bfloat16)
    got = soft_attention(*qkv, **{kind: rows_of(gate)}, **options)
    assert got.dtype == torch.bfloat16
    wanted = plain(*(x.double() for x in qkv), **{kind: gate.double()}, **options)
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=3e-2)


@pytest.mark.parametrize("first", [None, [0, 13]])
@pytest.mark.parametrize("kind", GATES)
def test_a_gate_of_one_is_dense(kind, first):
    q, k, v, *_ = make(batch=2, keys=60)
    gate = torch.zeros(2, 1, 60, 60) if kind == "add" else torch.ones(2, 1, 60, 60)
    first = None if first is None else torch.tensor(first)
    got = soft_attention(q, k, v, **{kind: rows_of(gate)}, window=4, sinks=1, first_key=first)
    torch.testing.assert_close(got, dense_attention(q, k, v, first_key=first), rtol=0, atol=2e-6)


def test_a_single_number_scales_every_far_pair():
    q, k, v, *_ = make(keys=30)
    got = soft_attention(q, k, v, multiply=lambda rows: torch.tensor(1.7), window=3, sinks=1)
    wanted = plain(q, k, v, multiply=torch.full((1, 1, 30, 30), 1.7), window=3, sinks=1)
    torch.testing.assert_close(got, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("key_topk", [1, 2, 3])
def test_agreement_is_the_chance_of_a_shared_group(key_topk):
    """Against counting: groups are joined independently with the given probabilities."""
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.rand(2, 3, n, 5, generator=generator) / 3 for n in (4, 7))
    got = agreement(query, key, key_topk)
    assert got.shape == (2, 3, 4, 7)
    for b, r, i, j in ((0, 0, 0, 0), (1, 2, 3, 6), (0, 1, 2, 5)):
        both = [float(query[b, r, i, c]) * float(key[b, r, j, c]) for c in range(5)]
        wanted = sum(both) if key_topk == 1 else 1 - math.prod(1 - p for p in both)
        assert got[b, r, i, j].item() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("query_topk, key_topk", [(1, 1), (4, 1), (2, 2), (3, 4)])
@pytest.mark.parametrize("routers", [1, 3])
@pytest.mark.parametrize("padded", [False, True])
def test_hard_memberships_are_the_served_mask(query_topk, key_topk, routers, padded):
    first = torch.tensor([0, 17]) if padded else None
    given = make(batch=2, keys=80, routers=routers, query_groups=query_topk, key_groups=key_topk)
    q, k, v, query_bits, key_bits = given
    served = focus_attention(*given, window=5, sinks=2, first_key=first, backend="reference")
    memberships = (members(bits, 16).float() for bits in (query_bits, key_bits))
    gate = log_agreement_gate(*memberships, key_topk, soft.STRAIGHT_THROUGH_FLOOR)
    got = soft_attention(q, k, v, add=gate, window=5, sinks=2, first_key=first)
    # A key outside the mask keeps 1e-6 of its weight; 80 of them, with weights apart by e^4, move 1e-2 at the most.
    assert (got - served).abs().max() < 2e-3
    assert (dense_attention(q, k, v, first_key=first) - served).abs().max() > 0.1
    pairs = gate(slice(0, 80)).exp()
    assert ((pairs - 1).abs().lt(1e-6) | (pairs - 1e-6).abs().lt(1e-9)).all()


def test_the_floor_lets_an_ungrouped_pair_be_learned():
    query = torch.tensor([[[[1.0, 0.0]]]], requires_grad=True)
    key = torch.tensor([[[[0.0, 1.0]]]], requires_grad=True)
    value = log_agreement_gate(query, key, 1)(slice(0, 1))
    assert value.item() == pytest.approx(math.log(1e-4), rel=1e-5)
    value.sum().backward()
    assert query.grad[0, 0, 0, 1] > 1000
    assert key.grad[0, 0, 0, 0] > 1000


def test_the_papers_gate_by_hand():
    shares = torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]])
    got = paper_gate(shares, torch.tensor(5.0))(slice(0, 2))
    wanted = [[[[1, 0.25], [0.25, 0.625]]]]
    torch.testing.assert_close(got, torch.sigmoid(5 * torch.tensor(wanted)))
    assert got.min() >= 0.5


def test_heads_that_do_not_divide_are_refused():
    q, k, v, *_ = make(heads=4, kv_heads=4, keys=8)
    with pytest.raises(InvalidInput, match="4 query heads cannot share 3 key heads"):
        soft_attention(q, k[:, :3], v[:, :3], add=lambda rows: 0, window=2)


def test_the_fused_kernel_is_asked_for_what_the_gates_gradient_needs(monkeypatch):
    """On a GPU it keeps its log-sum-exp only when q, k or v want a gradient; a CPU forgives that."""
    asked, real = [], torch.nn.functional.scaled_dot_product_attention

    def spy(q, k, v, *, attn_mask, **options):
        asked.append((attn_mask.requires_grad, any(x.requires_grad for x in (q, k, v))))
        return real(q, k, v, attn_mask=attn_mask, **options)

    monkeypatch.setattr(soft.F, "scaled_dot_product_attention", spy)
    (q, k, v), gate, options = case("gqa, a gate a key head", "add")
    for wants in (True, False):
        soft_attention(q, k, v, add=rows_of(gate.requires_grad_(wants)), **options)
    assert asked == [(True, True), (False, False)]
