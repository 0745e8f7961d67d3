"""Every backend that saves something against the reference, over shapes, paddings, types and group structures."""

import itertools

import pytest
import torch

from focus_core.kernels.focus import blocks, focus_attention
from tests.kernels.cases import make, random_sets

BACKENDS = ["cpu", "chunked", "auto"]


def check(backend, call, **settings):
    """Compare output and log-sum-exp with the reference; gives both outputs."""
    exact = [x.double() if x.is_floating_point() else x for x in call]
    wanted, wanted_lse = focus_attention(*exact, **settings, backend="reference", return_lse=True)
    out, lse = focus_attention(*call, **settings, backend=backend, return_lse=True)
    plain = focus_attention(*call, **settings, backend=backend)
    assert out.dtype == plain.dtype == call[0].dtype
    assert lse.dtype == (torch.float64 if out.dtype == torch.float64 else torch.float32)
    assert out.shape == wanted.shape
    low = out.dtype == torch.bfloat16
    slack = {"rtol": 2e-2, "atol": 2e-2} if low else {"rtol": 1e-4, "atol": 5e-6}
    torch.testing.assert_close(out.double(), wanted, **slack)
    torch.testing.assert_close(plain.double(), wanted, **slack)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-4, atol=2e-2 if low else 1e-5)
    return out, wanted


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("keys", [1, 2, 63, 127, 129, 333, 1000])
def test_lengths(backend, keys):
    check(backend, make(keys=keys), window=32, sinks=4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("heads, kv_heads", [(9, 3), (4, 4), (8, 1)])
@pytest.mark.parametrize("dim, dtype", [(64, torch.float32), (80, torch.bfloat16), (96, torch.float32)])
def test_heads_and_dims(backend, heads, kv_heads, dim, dtype):
    for routers in {1, kv_heads}:
        call = make(batch=2, heads=heads, kv_heads=kv_heads, routers=routers, keys=150, dim=dim, dtype=dtype, groups=4)
        check(backend, call, window=16, sinks=2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dim", [8, 128])
def test_fp64_and_other_dims(backend, dim):
    call = make(keys=140, dim=dim, dtype=torch.float64, groups=4)
    out, wanted = check(backend, call, window=16, sinks=2)
    torch.testing.assert_close(out, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_may_have_another_size(backend):
    q, k, v, *bits = make(keys=150)
    check(backend, (q, k, torch.cat([v, v[..., :16]], -1), *bits), window=16, sinks=2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window, sinks", [(1, 0), (1, 3), (64, 0), (65, 1), (128, 4), (300, 4), (1000, 0), (8, 1000)])
def test_windows_and_sinks(backend, window, sinks):
    check(backend, make(keys=300, groups=4), window=window, sinks=sinks)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "groups, query_groups, key_groups",
    [(16, 4, 1), (16, 1, 4), (8, 3, 2), (64, 10, 10), (5, 5, 1), (5, 0, 1), (5, 1, 0)],
)
def test_two_sided_top_k_counts_every_pair_once(backend, groups, query_groups, key_groups):
    call = make(keys=260, groups=groups, query_groups=query_groups, key_groups=key_groups)
    check(backend, call, window=16, sinks=2)
    check(backend, call, window=16, sinks=2, softcap=2.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_64_groups_and_bit_63(backend):
    q, k, v, _, _ = make(keys=640)
    one = torch.ones(640, dtype=torch.int64) << (torch.arange(640) % 64)
    check(backend, (q, k, v, one.expand(1, 3, -1), one.flip(0).expand(1, 3, -1)), window=8)
    last = torch.where(torch.arange(640) % 3 == 0, torch.tensor(-(1 << 63)), torch.tensor(0)).expand(1, 1, -1)
    check(backend, (q, k, v, last, last), window=8)
    check(backend, (q, k, v, torch.full((1, 1, 640), -1), last), window=8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_unbalanced_and_empty_groups(backend):
    q, k, v, query_bits, key_bits = make(keys=400, groups=3)
    key_bits = torch.where(torch.arange(400) < 390, torch.tensor(1), key_bits)
    check(backend, (q, k, v, query_bits, key_bits), window=16, sinks=2)
    check(backend, (q, k, v, query_bits << 10, key_bits), window=16, sinks=2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("first", [[0, 40, 299], [0, 150, 300]])
@pytest.mark.parametrize("queries", [300, 100, 3, 1])
def test_left_padding(backend, first, queries):
    first_key = torch.tensor(first)
    call = make(batch=3, keys=300, queries=queries, groups=4, query_groups=2)
    out, _wanted = check(backend, call, window=16, sinks=4, first_key=first_key)
    position = torch.arange(300 - queries, 300)
    for b in range(3):
        assert not out[b, :, position < first[b]].any()
    if first[2] == 300:
        assert not out[2].any()
        _, lse = focus_attention(*call, window=16, first_key=first_key, backend=backend, return_lse=True)
        assert bool((lse[2] == float("-inf")).all())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("queries", [1, 2, 8, 9, 40, 128, 299])
def test_fewer_queries_than_keys(backend, queries):
    check(backend, make(batch=2, keys=300, queries=queries, groups=4, query_groups=2), window=16, sinks=2)
    check(backend, make(keys=300, queries=queries, groups=4, key_groups=2, routers=1), window=16, sinks=2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_layouts(backend):
    q, k, v, *bits = make(batch=2, keys=200, groups=4)
    wanted = focus_attention(q, k, v, *bits, window=16, sinks=2, backend=backend)
    by_token = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    fused = torch.cat(by_token, 1).transpose(1, 2).contiguous().transpose(1, 2).split([9, 3, 3], dim=1)
    odd = [torch.cat([x, x[..., :3]], -1)[..., :64] for x in (q, k, v)]
    swapped = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
    repeated = [x[:1].expand(2, -1, -1, -1) for x in (q, k, v)]
    for parts in (by_token, fused, odd, swapped):
        assert not parts[0].is_contiguous()
        torch.testing.assert_close(
            focus_attention(*parts, *bits, window=16, sinks=2, backend=backend), wanted, rtol=1e-5, atol=1e-6
        )
    check(backend, (*repeated, *bits), window=16, sinks=2)
    flipped = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in bits]
    check(backend, (q, k, v, *flipped), window=16, sinks=2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_softcap_and_scale(backend):
    check(backend, make(keys=300, groups=4), window=16, sinks=2, softcap=0.8, scale=0.5)
    check(backend, make(keys=300, queries=2, groups=4), window=16, sinks=2, softcap=0.8, scale=0.5)


def test_without_the_private_operation(monkeypatch):
    monkeypatch.setattr("focus_core.kernels.focus.blocks.fused_works", lambda dtype: False)
    check("cpu", make(keys=333, groups=4, query_groups=2, key_groups=2), window=16, sinks=2)
    check("cpu", make(keys=333, dtype=torch.bfloat16), window=16, sinks=2)


@pytest.mark.parametrize("keys, queries", [(333, 333), (333, 4)])
def test_uninitialised_memory_is_never_read(keys, queries):
    call = make(batch=2, keys=keys, queries=queries, groups=4, query_groups=2, key_groups=2)
    first_key = torch.tensor([0, 50])
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        assert bool(torch.empty(4).isnan().all())
        check("cpu", call, window=16, sinks=2, first_key=first_key)
        check("chunked", call, window=16, sinks=2, first_key=first_key)
    finally:
        torch.use_deterministic_algorithms(False)


def test_small_budgets_cut_the_work_and_change_nothing(monkeypatch):
    call = make(batch=2, keys=500, groups=4, query_groups=2, key_groups=2)
    wanted = focus_attention(*call, window=40, sinks=2, backend="cpu")
    monkeypatch.setattr(blocks, "BLOCK_SCORES", 1 << 14)
    monkeypatch.setattr("focus_core.kernels.masked._STRIPE_SCORES", 1 << 17)
    torch.testing.assert_close(focus_attention(*call, window=40, sinks=2, backend="cpu"), wanted, rtol=1e-5, atol=1e-6)
    check("chunked", call, window=40, sinks=2)


def test_random_structures():
    generator = torch.Generator().manual_seed(5)
    for seed in range(25):

        def draw(low, high):
            return int(torch.randint(low, high + 1, (), generator=generator))

        keys, groups = draw(9, 220), draw(1, 64)
        queries = draw(1, keys)
        call = make(
            batch=2,
            heads=4,
            kv_heads=2,
            routers=draw(1, 2),
            keys=keys,
            queries=queries,
            dim=16,
            groups=groups,
            query_groups=draw(0, min(groups, 5)),
            key_groups=draw(0, min(groups, 5)),
            seed=seed,
        )
        first_key = torch.tensor([draw(0, keys), draw(0, keys // 2)])
        check("cpu", call, window=draw(1, 40), sinks=draw(0, 6), first_key=first_key)


def test_one_set_for_many_lengths():
    """Neighbouring lengths hit every remainder of the block sizes."""
    for keys, window in itertools.product((64, 65, 191, 192, 193), (63, 64)):
        q, k, v, _, _ = make(keys=keys, heads=2, kv_heads=1, dim=16)
        bits = random_sets((1, 1, keys), 2, 1)
        check("cpu", (q, k, v, bits, bits), window=window, sinks=1)
