"""XAttention in numpy: the same scores and cuts as the kernels, and what the page says of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from analysis.xattention import before, painted, recall, words
from analysis.xattention.head import Head, Setting
from analysis.xattention.scores import MODES, block_pairs, block_scores, kept_shares, sampled, select, served
from focus_core.kernels.xattention import (
    causal_block_mask,
    sampled_pairs,
    select_blocks,
    xattention_block_mask,
    xattention_scores,
)
from focus_core.pattern_blocks import BlockPattern
from focus_core.routing.threshold_programme import threshold_programme


def vectors(count, heads=4, kv_heads=2, dim=8, seed=0):
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((heads, count, dim)) * 2, rng.standard_normal((kv_heads, count, dim))
    return q.astype(np.float32), k.astype(np.float32)


def head_of(count, setting, seed=0):
    q, k = vectors(count, 1, 1, seed=seed)
    common = {"block": setting.block, "stride": setting.stride, "scale": 8**-0.5}
    scores, true = (block_scores(q, k, mode=mode, **common)[0] for mode in (setting.mode, "oracle"))
    return Head(q[0], k[0], 8**-0.5, None, setting, scores, true)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("count", "block", "stride"), [(1, 8, 4), (3, 16, 4), (67, 16, 8), (96, 16, 4), (129, 64, 16), (301, 128, 8)]
)
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_scores_and_masks_are_the_kernels(count, block, stride, mode, softcap):
    q, k = vectors(count)
    tq, tk = torch.from_numpy(q)[None], torch.from_numpy(k)[None]
    common = {"mode": mode, "scale": 0.3, "softcap": softcap, "seed": 2}
    found = block_scores(q, k, block=block, stride=stride, **common)
    wanted = xattention_scores(tq, tk, block_size=block, stride=stride, **common)
    assert np.abs(found - wanted.scores[0].numpy()).max() < 2e-4
    for threshold in (0.0, 0.7, 1.0):
        # The very same scores on both sides: rounding must not decide about a tie.
        kernels = select_blocks(torch.from_numpy(found)[None], wanted.possible, threshold, own=wanted.own)
        for h in range(4):
            own = select(found[h], threshold)
            assert np.array_equal(own.mask, kernels.mask[0, h].numpy())
            assert np.array_equal(own.kept, kernels.kept[0, h].numpy())
            assert np.array_equal(own.order, kernels.order[0, h].numpy())
            assert np.allclose(own.reached, kernels.reached[0, h].numpy())


@pytest.mark.parametrize("voters", ["before", "own"])
def test_what_is_served_is_what_the_variant_keeps(voters):
    q, k = vectors(157)
    tq, tk = torch.from_numpy(q)[None], torch.from_numpy(k)[None]
    settings = {"block_size": 16, "stride": 4, "threshold": 0.6, "scale": 0.3}
    if voters == "own":
        wanted = xattention_block_mask(tq, tk, **settings)[0].numpy()
    else:
        wanted = causal_block_mask(tq, tk, 157, **settings)[0].numpy()
    scores = block_scores(q, k, block=16, stride=4, mode="antidiagonal", scale=0.3)
    found = np.stack([served(select(one, 0.6).mask, voters) for one in scores])
    assert np.array_equal(found, np.tril(wanted))
    true = block_scores(q, k, block=16, stride=4, mode="oracle", scale=0.3)
    pairs, mass = kept_shares(found, true, 157, 16)
    pattern = BlockPattern(found[None], 16, 4, 157, 157)
    assert pairs == pytest.approx([pattern.density(0, h) for h in range(4)])
    for h in range(4):
        full = np.where(np.tri(157, dtype=bool), q[h] @ k[h // 2].T * 0.3, -np.inf)
        full = np.exp(full - full.max(1, keepdims=True))
        full /= full.sum(1, keepdims=True)
        kept = pattern.tile(0, h, slice(0, 157), slice(0, 157))
        assert mass[h] == pytest.approx((full * kept).sum() / 157, abs=1e-5)


def test_random_places_are_the_kernels():
    for stride in (4, 8, 16):
        assert [sampled(stride, "random", s) for s in range(9)] == [
            sampled_pairs(stride, "random", s) for s in range(9)
        ]


@pytest.mark.parametrize("voters", ["before", "own"])
def test_every_block_is_told_why_and_the_reasons_agree_with_the_mask(voters):
    head = head_of(150, Setting(stride=4, block=16, threshold=0.6, voters=voters))
    seen = set()
    for row in range(head.blocks):
        for column in range(row + 1):
            found = words.place(head.selection, row, column, voters, 0.6)
            assert found.kept == head.kept[row, column]
            seen.add(found.why)
            said = words.why(found, row, 0.6, voters)
            assert ("Dropped" in said) != found.kept
            if found.why == "taken":
                assert found.before < 0.6
            if found.why == "dropped":
                assert found.before >= 0.6 - 1e-9
            if found.why != "own":
                assert found.share == pytest.approx(head.share[row, column], abs=1e-6)
    assert seen == {"own", "sink", "taken", "dropped"} | ({"neighbour"} if voters == "before" else set())
    row, column = head.telling_block()
    assert words.place(head.selection, row, column, voters, 0.6).why == "taken"
    row, column = head.worst_dropped()
    assert not head.kept[row, column]
    assert head.real[row, column] == head.real[~head.kept].max()
    assert len(head.table()) == 10 * 11 // 2


def test_a_block_from_near_holds_its_true_scores_and_its_tiles_add_up():
    head = head_of(150, Setting(stride=4, block=16, threshold=0.6))
    near = head.near(9, 3)
    assert near.cells.shape == (6, 16)
    assert near.cells[2, 5] == pytest.approx(head.query[146] @ head.key[53] * 8**-0.5, abs=1e-5)
    for column in range(10):
        assert head.near(8, column).tiles.sum() == pytest.approx(head.scores[8, column], abs=1e-5)


def test_recall_rises_with_the_pairs_and_the_oracle_is_never_beaten():
    q, k = vectors(200, heads=3, kv_heads=3)
    scores = {m: block_scores(q, k, block=16, stride=4, mode=m, scale=0.4) for m in MODES}
    found = recall.compare(scores, 200, 16, "own")
    for mode in MODES:
        assert (np.diff(found.density[mode]) >= 0).all()
        assert (np.diff(found.recall[mode]) >= -1e-12).all()
        assert found.recall[mode][-1] == found.density[mode][-1] == pytest.approx(1)
    assert found.gap["antidiagonal"] == pytest.approx(0, abs=1e-9)
    # The oracle cuts by its own scores at other numbers of blocks: between its thresholds it is a chord.
    assert (found.gap["oracle"] > -0.02).all()
    assert found.gap["oracle"][5] > 0.01
    again = recall.Comparison.from_json(found.to_json())
    assert recall.sentence(again, 0.9) == recall.sentence(found, 0.9)
    assert "the best blocks" in recall.sentence(found, 0.9)
    for gap, word in ((0.0, "no better"), (0.1, "worse"), (-0.1, "better")):
        random = {**found.gap, "random": np.full(len(found.thresholds), gap)}
        said = recall.sentence(replace(found, gap=random, error={m: 0 * e for m, e in found.error.items()}), 0.9)
        assert said.startswith(f"Here antidiagonals are {word} than random places. At threshold 0.9 the antidiagonals")
    assert len(recall.table(found)) == 4 * len(recall.THRESHOLDS)
    assert len(recall.figure(found, 0.85).data) == 5


@pytest.mark.parametrize(
    ("name", "stride", "ours", "diagonal"),
    [
        ("vertical", 4, True, True),
        ("slash", 4, True, False),
        ("spot", 8, True, True),
        ("sink", 8, True, True),
        ("even", 4, False, True),
        ("even", 8, False, False),
        ("checkerboard", 4, False, True),
        ("signs", 4, False, False),
    ],
)
def test_patterns_that_the_antidiagonals_find_and_miss(name, stride, ours, diagonal):
    judged, real, pairs = painted.judge(painted.paint(name), stride, 3)
    held = {one.mode: one.recall for one in judged}
    for mode, finds in (("antidiagonal", ours), ("diagonal", diagonal)):
        assert (held[mode] > held["oracle"] - 0.01) == finds
    assert all(one.kept.sum(1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3] for one in judged)
    assert real.sum(1) == pytest.approx(1)
    assert ("miss" in painted.verdict(judged, pairs)) == (not ours)
    assert painted.verdict(judged, pairs, painted=False).startswith("Nothing is painted")


def test_an_even_slash_leaves_the_antidiagonals_without_any_rank():
    judged, _, _ = painted.judge(painted.paint("even"), 4, 3)
    ours, truth = judged[0], judged[-1]
    # All tie but the row's own block, whose later pairs are hidden.
    assert (ours.rank[7, :7] == 1).all()
    assert truth.rank[7].argmin() in (4, 5)


def test_blocks_by_place_are_as_many_as_those_by_content():
    head = head_of(203, Setting(stride=4, block=16, threshold=0.6))
    found = {one.title: one for one in before.patterns(head)}
    assert list(found) == list(before.MEANING)
    for one in found.values():
        assert (one.kept.sum(1) == head.kept.sum(1)).all()
        assert not np.triu(one.kept, 1).any()
        assert one.mass <= found["Best blocks"].mass + 1e-9
    assert found["XAttention"].mass == pytest.approx(head.mass)
    window = found["Sliding window"].kept
    assert all(row[: i + 1][-int(row.sum()) :].all() for i, row in enumerate(window))
    assert found["Longformer"].kept[3:, 0].all()
    assert "By place alone" in before.sentence(list(found.values()))


def test_pairs_of_blocks_are_all_causal_pairs():
    assert block_pairs(37, 8).sum() == 37 * 38 // 2


def test_the_programme_is_told_step_by_step():
    from analysis.xattention import thresholds

    gain = [0.3, -0.2, 0.5]
    found = threshold_programme(lambda state: -3 + sum(gain[u] for u in state), 3, 2)
    kept = [[None if v is None else 0.5 - 0.1 * m for m, v in enumerate(row)] for row in found.table]
    units = [[0, None], [1, None], [2, None]]
    programme = {"table": found.table, "taken": found.taken, "kept": kept, "units": units}
    rows = thresholds.steps(programme)
    assert rows["Which"].tolist() == ["none", "layer 2", "layer 0, layer 2"]
    assert rows["Perplexity"].tolist() == pytest.approx(np.exp([3, 2.5, 2.2]).tolist())
    record = {"programme": programme, "start": 0.9, "factor": 0.9, "evaluations": found.evaluations}
    assert "layer 0, layer 2 from 0.9 to 0.81" in thresholds.programme_sentence(record)
    assert thresholds.programme_figure(record).data[1].x == (3, 2, 1, 0)


def test_a_fit_is_called_better_only_beyond_its_spread():
    from analysis.xattention import thresholds

    def result(nll, kept):
        rows = [{"nll": x, "tokens": 10} for x in nll]
        ppl = float(np.exp(sum(nll) / 10 / len(nll)))
        common = {"windows": len(nll), "context": 11, "dense_ppl": 5.0, "config": {"threshold": 0.9}}
        return {"ppl": ppl, "kept_pairs": kept, "per_window": rows, **common}

    plain = result([20.0, 21.0, 22.0], 0.4)
    assert "cannot be told apart" in thresholds.judged(result([20.1, 20.9, 22.05], 0.4), plain)
    assert "worse" in thresholds.judged(result([20.5, 21.5, 22.51], 0.4), plain)
    assert "though it keeps more" in thresholds.judged(result([19.5, 20.5, 21.51], 0.5), plain)
