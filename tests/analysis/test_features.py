"""Codes, their overlap and the tile's steps in numpy are those of ``focus_core.kernels.sfa``."""

import numpy as np
import pytest
import torch

from analysis.features import codes as numpy_codes
from analysis.features import tiles
from analysis.features.codes import Codes, Head
from focus_core.evaluation.feature_error import use_entropy
from focus_core.kernels.sfa import sfa_attention, top_features
from focus_core.kernels.sfa.tiled import sfa_tiled

N, D = 23, 8
WAYS = [
    Codes(3),
    Codes(4, select="pairs"),
    Codes(3, sparse="keys"),
    Codes(2, no_overlap="exclude"),
    Codes(3, select="first"),
]


@pytest.fixture(params=[None, 4.0], ids=["plain", "softcap"])
def head(request) -> Head:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2, N, D)).astype(np.float16).astype(np.float32)
    rows[:, 3] = 0
    rows[:, 5, :4] = 1.0
    return Head(*rows, scale=D**-0.5, softcap=request.param)


def tensors(head: Head):
    """q, k, and values that make the output the attention itself."""
    q, k = (torch.from_numpy(x)[None, None].double() for x in (head.queries, head.keys))
    return q, k, torch.eye(N, dtype=torch.float64)[None, None]


def given(codes: Codes) -> dict:
    return {"features": codes.features, "select": codes.select, "sparse": codes.sparse, "no_overlap": codes.no_overlap}


@pytest.mark.parametrize("codes", WAYS, ids=str)
def test_what_survives_and_what_it_does_is_the_kernels(codes, head):
    chosen = top_features(torch.from_numpy(head.keys), codes.features, codes.select).sort(-1).values.numpy()
    assert np.array_equal(numpy_codes.support(head.keys, codes).nonzero()[1].reshape(chosen.shape), chosen)
    q, k, v = tensors(head)
    options = {"scale": head.scale, "softcap": head.softcap, "backend": "reference"}
    wanted = sfa_attention(q, k, v, **given(codes), **options)[0, 0].numpy()
    dense = sfa_attention(q, k, v, features=D, **options)[0, 0].numpy()
    for query in (0, 3, 5, N - 1):
        found = numpy_codes.row(head, query, codes)
        assert np.allclose(found.sparse, wanted[query, : query + 1], atol=1e-6)
        assert np.allclose(found.dense, dense[query, : query + 1], atol=1e-6)
        one = numpy_codes.overlap(head, query, 2, codes)
        assert one.shared.sum() == numpy_codes.supports(head, codes)[1][2][one.query_kept].sum()
        assert one.dense_score == pytest.approx(head.scale * float(head.queries[query] @ head.keys[2]), abs=1e-5)
        if query >= 2:
            assert one.shared.sum() == found.shared[2]
    moved = numpy_codes.change(head, codes, rows=N)
    assert moved.moved == pytest.approx(np.abs(wanted - dense).sum(1).mean() / 2, abs=1e-6)
    assert moved.rows == N


@pytest.mark.parametrize("codes", WAYS[:4], ids=str)
def test_every_step_of_a_tile_is_flash_sfas_and_ends_as_a_plain_softmax(codes, head):
    found = tiles.walk(head, range(N - 4, N), range(N), 5, codes)
    q, k, v = tensors(head)
    wanted = numpy_codes.support(head.queries, codes) if codes.sparse == "both" else np.ones((N, D), bool)
    held = numpy_codes.support(head.keys, codes)
    seen: list = []
    out, _ = sfa_tiled(
        q[:, :, N - 4 :],
        k,
        v,
        torch.from_numpy(wanted)[None, None, N - 4 :],
        torch.from_numpy(held)[None, None],
        exclude=codes.no_overlap == "exclude",
        first_key=None,
        scale=head.scale,
        softcap=head.softcap,
        tile=(4, 5),
        watch=seen.append,
    )
    assert len(found.tiles) == len(seen) == 5
    total = np.zeros(4)
    for ours, theirs in zip(found.tiles, seen, strict=True):
        assert (ours.cols.start, ours.cols.stop) == (theirs.cols.start, theirs.cols.stop)
        assert [hit[1:3] for hit in ours.hits] == [hit[1:3] for hit in theirs.hits]
        for name in ("scores", "maximum", "total", "output"):
            assert np.allclose(getattr(ours, name), getattr(theirs, name).numpy(), atol=1e-6)
        assert sum(map(len, ours.postings.values())) == held[ours.cols.start : ours.cols.stop].sum()
        total = total * ours.faded + ours.added
        assert np.array_equal(ours.total, total)
    assert np.allclose(found.attention, out[0, 0].numpy(), atol=1e-6)
    plain = np.stack(
        [
            np.pad(r.sparse, (0, N - len(r.sparse)))
            for r in (numpy_codes.row(head, query, codes) for query in range(N - 4, N))
        ]
    )
    assert np.allclose(found.attention, plain, atol=1e-6)


def test_dense_attention_is_the_models_own_under_any_maps(head):
    rng = np.random.default_rng(1)
    query_map, key_map = rng.standard_normal((2, D, D)).astype(np.float32)
    mapped = head.mapped(query_map, key_map)
    plain, found = (numpy_codes.row(h, 9, Codes(3)) for h in (head, mapped))
    assert np.array_equal(plain.dense, found.dense)
    assert not np.allclose(plain.sparse, found.sparse, atol=1e-2)
    one = numpy_codes.overlap(mapped, 9, 4, Codes(3))
    assert one.dense_score == pytest.approx(numpy_codes.overlap(head, 9, 4, Codes(3)).dense_score)
    assert one.dense_products.sum() == pytest.approx(
        head.scale * float(head.queries[9] @ query_map @ (head.keys[4] @ key_map)), abs=1e-4
    )


def test_the_strongest_pair_is_of_words_that_are_no_neighbours(head):
    words = np.zeros(N, bool)
    words[[0, 4, 6, 9, 14, 15, 20]] = True
    query, key = numpy_codes.strongest_pair(head, words)
    dense = {q: numpy_codes.row(head, q, Codes(3)).dense for q in (9, 14, 15, 20)}
    pairs = {(q, k): w[k] for q, w in dense.items() for k in (4, 6, 9, 14, 15) if k < q - 1}
    assert (query, key) == max(pairs, key=pairs.__getitem__)
    assert numpy_codes.strongest_pair(head, np.zeros(N, bool)) is None


def test_entropy_of_use_is_one_where_all_dimensions_are_used_alike(head):
    even = np.tile(np.eye(4, dtype=bool), (3, 1))
    assert numpy_codes.use_entropy(even) == pytest.approx(1)
    assert numpy_codes.use_entropy(even[:1].repeat(5, 0)) == 0
    kept = numpy_codes.support(head.keys, Codes(3))
    assert numpy_codes.use_entropy(kept) == pytest.approx(float(use_entropy(torch.from_numpy(kept).double().mean(0))))
