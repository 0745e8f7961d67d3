"""SFA against its contract pair by pair, every backend against the reference, and the codes themselves."""

import math

import pytest
import torch

from focus_core.errors import InvalidInput, NotAvailable
from focus_core.kernels.dense import dense_attention
from focus_core.kernels.sfa import code_bytes, encode, pack, sfa_attention, sparsify, top_features, unpack
from focus_core.kernels.sfa.codes import _largest_sorted
from focus_core.kernels.sfa.tiled import postings, sfa_tiled
from tests.kernels.cases import make

SELECTS = ("features", "pairs", "first")


def qkv(**shape):
    return make(**shape)[:3]


def chosen(row: list[float], features: int, select: str) -> set[int]:
    """The survivors of one row, in Python numbers."""
    half = len(row) // 2
    if select == "first":
        return set(range(features))
    if select == "features":
        return set(sorted(range(len(row)), key=lambda u: (-abs(row[u]), u))[:features])
    pairs = sorted(range(half), key=lambda u: (-math.hypot(row[u], row[u + half]), u))[: features // 2]
    return {u for pair in pairs for u in (pair, pair + half)}


def brute_force(q, k, v, *, features, select, sparse, no_overlap, first_key=None, scale=None, softcap=None):
    """The contract of sfa_attention spelt out pair by pair; for tiny inputs."""
    batch, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1:3]
    out = torch.zeros(batch, heads, queries, v.shape[3], dtype=torch.float64)
    lse = torch.full((batch, heads, queries), -math.inf, dtype=torch.float64)
    scale = dim**-0.5 if scale is None else scale
    for b in range(batch):
        for h in range(heads):
            kv = h // (heads // kv_heads)
            for n in range(queries):
                i, scores, values = keys - queries + n, [], []
                query = q[b, h, n].tolist()
                wanted = set(range(dim)) if sparse == "keys" else chosen(query, features, select)
                for j in range(0 if first_key is None else int(first_key[b]), i + 1):
                    key = k[b, kv, j].tolist()
                    shared = wanted & chosen(key, features, select)
                    if not shared and no_overlap == "exclude":
                        continue
                    s = scale * sum(query[u] * key[u] for u in shared)
                    scores.append(s if softcap is None else softcap * math.tanh(s / softcap))
                    values.append(v[b, kv, j].double())
                if scores:
                    lse[b, h, n] = torch.tensor(scores, dtype=torch.float64).logsumexp(0)
                    out[b, h, n] = sum(math.exp(s - lse[b, h, n]) * x for s, x in zip(scores, values, strict=True))
    return out, lse


CASES = [
    {"select": "features"},
    {"select": "pairs", "scale": 0.7},
    {"select": "first", "softcap": 1.5},
    {"select": "features", "sparse": "keys"},
    {"select": "features", "no_overlap": "exclude", "first": [0, 5]},
    {"select": "pairs", "no_overlap": "exclude", "queries": 4, "first": [9, 0]},
    {"select": "features", "queries": 1, "first": [3, 0], "softcap": 2.0},
]


@pytest.mark.parametrize("backend", ["reference", "tiled", "scatter", "codes", "auto"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_backend_is_the_contract(case, backend):
    case = {"sparse": "both", "no_overlap": "zero", "features": 2, **case}
    first = case.pop("first", None)
    q, k, v = qkv(batch=2, heads=4, kv_heads=2, keys=11, queries=case.pop("queries", None), dim=8, dtype=torch.float64)
    case["first_key"] = None if first is None else torch.tensor(first)
    out, lse = sfa_attention(q, k, v, **case, backend=backend, return_lse=True)
    wanted, wanted_lse = brute_force(q, k, v, **case)
    torch.testing.assert_close(out, wanted, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(lse, wanted_lse, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(sfa_attention(q, k, v, **case, backend=backend), wanted, rtol=1e-11, atol=1e-11)


def test_the_cases_have_pairs_without_a_shared_feature():
    q, k, v = qkv(heads=4, kv_heads=2, keys=11, dim=8, dtype=torch.float64)
    zero, exclude = (sfa_attention(q, k, v, features=2, no_overlap=x) for x in ("zero", "exclude"))
    assert (zero - exclude).abs().max() > 0.1


@pytest.mark.parametrize("backend", ["scatter", "codes"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [64, 80, 96, 128])
@pytest.mark.parametrize("queries", [1, 37, 97])
def test_backends_agree_with_the_reference(backend, dtype, dim, queries):
    q, k, v = qkv(batch=2, keys=97, queries=queries, dim=dim, dtype=dtype)
    # Views whose strides are no whole rows.
    q, k, v = (torch.stack([x, x], -1)[..., 0] for x in (q, k, v))
    options = {"features": 16, "first_key": torch.tensor([0, 40]), "return_lse": True}
    out, lse = sfa_attention(q, k, v, **options, backend=backend)
    wanted, wanted_lse = sfa_attention(q, k, v, **options, backend="reference")
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    slack = {torch.float32: 2e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(out.float(), wanted.float(), rtol=slack, atol=slack)
    torch.testing.assert_close(lse, wanted_lse, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("select", SELECTS)
@pytest.mark.parametrize("backend", ["reference", "scatter", "codes"])
def test_all_features_are_dense_attention(select, backend):
    q, k, v = qkv(keys=33, dim=64)
    out = sfa_attention(q, k, v, features=64, select=select, backend=backend)
    torch.testing.assert_close(out, dense_attention(q, k, v), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("select", SELECTS)
def test_keys_may_be_codes(select):
    q, k, v = qkv(keys=40, queries=3)
    packed = pack(encode(k, 8, select))
    assert packed.dtype == torch.uint8
    assert packed.shape == (1, 3, 40, code_bytes(8, 4, select))
    codes = unpack(packed, 64, 8, torch.float32, select)
    for backend in ("reference", "scatter", "codes"):
        got = sfa_attention(q, codes, v, features=8, select=select, backend=backend)
        torch.testing.assert_close(got, sfa_attention(q, k, v, features=8, select=select, backend="reference"))


@pytest.mark.parametrize("features, select, bytes16", [(16, "features", 48), (16, "pairs", 40), (16, "first", 32)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_code_takes_its_bytes_and_comes_back(features, select, bytes16, dtype):
    x = torch.randn(2, 3, 7, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    codes = encode(x, features, select)
    packed = pack(codes)
    assert packed.nbytes == 2 * 3 * 7 * code_bytes(features, dtype.itemsize, select)
    assert code_bytes(features, 2, select) == bytes16
    back = unpack(packed, 64, features, dtype, select)
    assert torch.equal(back.values, codes.values)
    assert torch.equal(back.dense(), sparsify(x, features, select))


def test_odd_code_widths_are_unpacked_too():
    x = torch.randn(1, 1, 5, 64, generator=torch.Generator().manual_seed(0))
    codes = encode(x, 7)
    assert torch.equal(unpack(pack(codes), 64, 7, torch.float32).values, codes.values)
    with pytest.raises(InvalidInput, match="take 35 bytes"):
        unpack(pack(encode(x, 8)), 64, 7, torch.float32)


def test_exactly_k_survive_ties_and_zeros_and_the_lowest_come_first():
    x = torch.tensor([[1.0, -1, 1, 1, 0, 0], [0, 0, 0, 2, 0, 0], [0, 0, 0, 0, 0, 0], [-3, 1, 2, -2, 2, 0]])
    assert top_features(x, 3).tolist() == [[0, 1, 2], [0, 1, 3], [0, 1, 2], [0, 2, 3]]
    assert encode(x, 3).support().sum(-1).tolist() == [3] * 4
    assert top_features(x, 2, "pairs").tolist() == [[0, 3], [0, 3], [0, 3], [0, 3]]


def test_the_choice_is_by_magnitude_and_signs_stay():
    x = torch.tensor([[0.1, -5.0, 2.0, -0.2]])
    assert encode(x, 2).values.tolist() == [[-5.0, 2.0]]


def test_prefill_and_decode_choose_alike_in_bf16():
    x = torch.randn(1, 3, 200, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    alone = torch.cat([top_features(x[:, :, i : i + 1], 8) for i in range(200)], 2)
    # 8 bits make many equal magnitudes.
    sizes = x.abs().sort(-1, descending=True).values
    assert (sizes[..., 7] == sizes[..., 8]).any()
    assert torch.equal(top_features(x, 8), alone)


def test_a_gpu_s_way_to_choose_is_the_same_choice():
    x = torch.randn(2, 3, 100, 64, generator=torch.Generator().manual_seed(0)).bfloat16().float().round(decimals=1)
    x[0, 0, :5] = 0
    assert torch.equal(_largest_sorted(x.abs(), 8), top_features(x, 8))
    # Where most are equal, no order of the usual way's own may show.
    even = torch.randint(-2, 3, (200, 256), generator=torch.Generator().manual_seed(1)).float()
    assert torch.equal(_largest_sorted(even.abs(), 32), top_features(even, 32))


def test_dimensions_up_to_256_fit_a_byte():
    x = torch.zeros(1, 1, 1, 256)
    x[..., 255] = 1
    assert encode(x, 1).features().item() == 255
    with pytest.raises(InvalidInput, match="257 dimensions"):
        encode(torch.zeros(1, 1, 1, 257), 1)


def test_the_gradient_is_zero_off_the_support_unless_it_leaks():
    q, k, v = (x.requires_grad_() for x in qkv(keys=20, dim=16, dtype=torch.float64))
    support = [encode(x.detach(), 4).support() for x in (q, k)]
    plain = sfa_attention(q, k, v, features=4)
    plain.square().sum().backward()
    for x, kept in zip((q, k), support, strict=True):
        assert (x.grad[~kept] == 0).all()
        assert (x.grad[:, :, 1:][kept[:, :, 1:]] != 0).any()
    reference = torch.autograd.grad(sfa_attention(q, k, v, features=4, backend="reference").square().sum(), (q, k, v))
    for x, wanted in zip((q, k, v), reference, strict=True):
        torch.testing.assert_close(x.grad, wanted)
    leaked = sfa_attention(q, k, v, features=4, leak=True)
    assert torch.equal(leaked, plain)
    grads = torch.autograd.grad(leaked.square().sum(), (q, k))
    assert all((g[~kept] != 0).any() for g, kept in zip(grads, support, strict=True))


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    angle = positions[:, None] * 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1)


@pytest.mark.parametrize("select, invariant", [("pairs", True), ("features", False)])
def test_a_shift_of_all_positions_moves_scores_only_where_the_choice_depends_on_them(select, invariant):
    """Pairs are the choice before the rotation: rotating keeps their lengths."""
    q, k, v = qkv(keys=30, dtype=torch.float64)
    position = torch.arange(30, dtype=torch.float64)
    outs = [
        sfa_attention(rotate(q, position + s), rotate(k, position + s), v, features=8, select=select) for s in (0, 1000)
    ]
    assert torch.equal(top_features(k, 8, "pairs"), top_features(rotate(k, position), 8, "pairs"))
    moved = (outs[0] - outs[1]).abs().max()
    assert moved < 1e-9 if invariant else moved > 0.01


def test_later_tokens_do_not_move_earlier_outputs():
    q, k, v = qkv(keys=30, dtype=torch.float64)
    other = [torch.cat([x[:, :, :20], torch.randn_like(x[:, :, 20:])], 2) for x in (q, k, v)]
    for backend in ("reference", "tiled", "scatter"):
        a, b = (sfa_attention(*x, features=8, backend=backend) for x in ((q, k, v), other))
        torch.testing.assert_close(a[:, :, :20], b[:, :, :20], rtol=1e-12, atol=1e-12)


def test_each_kv_head_and_each_query_head_has_its_own_support():
    q, k, _ = qkv(keys=12)
    assert not torch.equal(top_features(q[:, 0], 8), top_features(q[:, 1], 8))
    assert top_features(k, 8).shape == (1, 3, 12, 8)


def test_the_tiles_show_the_intersection_and_the_running_softmax():
    q, k, v = qkv(heads=2, kv_heads=1, keys=10, dim=8, dtype=torch.float64)
    supports = [encode(x, 3).support() for x in (q, k)]
    steps = []
    options = {"exclude": False, "first_key": None, "scale": 0.5, "softcap": None}
    out, lse = sfa_tiled(q, k, v, *supports, **options, tile=(4, 3), watch=steps.append)
    for step in steps:
        shared = supports[0][0, step.head, step.rows.start : step.rows.stop, None]
        shared = shared & supports[1][0, 0, None, step.cols.start : step.cols.stop]
        assert len(step.hits) == int(shared.sum())
        for i, j, u, product in step.hits:
            assert product == pytest.approx(0.5 * float(q[0, step.head, i, u] * k[0, 0, j, u]))
        causal = torch.tensor(step.cols)[None] <= torch.tensor(step.rows)[:, None]
        assert (step.scores[causal & ~shared.any(-1)] == 0).all()
        assert step.scores[~causal].isinf().all()
    last = [step for step in steps if step.head == 1 and step.rows.stop == 10][-1]
    torch.testing.assert_close(last.output / last.total[:, None], out[0, 1, 8:])
    torch.testing.assert_close(last.maximum + last.total.log(), lse[0, 1, 8:])


def test_posting_lists_hold_ascending_keys_that_no_byte_could():
    k = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    lists = postings(k, encode(k, 2).support())
    assert lists.keys.dtype == torch.int32
    assert int(lists.start[-1]) == 600
    for u in range(8):
        keys = lists.keys[lists.start[u] : lists.start[u + 1]]
        assert (keys.diff() > 0).all()
        assert torch.equal(lists.values[lists.start[u] : lists.start[u + 1]], k[keys, u])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"features": 0}, "0 features of 64"),
        ({"features": 65}, "65 features of 64"),
        ({"features": 7, "select": "pairs"}, "no whole pairs"),
        ({"select": "largest"}, "no selection 'largest'"),
        ({"sparse": "values"}, "no sparse 'values'"),
        ({"no_overlap": "mask"}, "no no_overlap 'mask'"),
        ({"backend": "fast"}, "no backend 'fast'"),
        ({"softcap": 0.0}, "softcap is 0.0"),
        ({"first_key": torch.zeros(2, dtype=torch.long)}, r"\(1,\) integers"),
        ({"q": torch.zeros(1, 8, 20, 64)}, "8 query heads cannot share 3"),
        ({"v": torch.zeros(1, 3, 19, 64)}, r"value \(1, 3, 19, 64\)"),
        ({"k": encode(torch.zeros(1, 3, 20, 64), 4)}, "hold 4 features, and 8 features"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    call = dict(zip("qkv", qkv(keys=20), strict=True)) | {"features": 8} | change
    with pytest.raises(InvalidInput, match=message):
        sfa_attention(call.pop("q"), call.pop("k"), call.pop("v"), **call)


@pytest.mark.parametrize("backend", ["triton", "flash"])
def test_a_backend_that_is_not_here_says_so(backend):
    with pytest.raises(NotAvailable, match=backend):
        sfa_attention(*qkv(keys=9), features=8, backend=backend)


@pytest.mark.parametrize("backend", ["tiled", "codes"])
def test_a_backend_without_a_backward_says_so(backend):
    q, k, v = qkv(keys=9)
    with pytest.raises(InvalidInput, match="has no backward"):
        sfa_attention(q.requires_grad_(), k, v, features=8, backend=backend)
