"""XAttention's block scores and masks; every fault that the notes list of the reference has its test here."""

import pytest
import torch

from focus_core.errors import InvalidInput
from focus_core.kernels.block_sparse import block_sparse_attention
from focus_core.kernels.dense import dense_attention
from focus_core.kernels.xattention import (
    MODES,
    causal_block_mask,
    sampled_pairs,
    select_blocks,
    xattention_block_mask,
    xattention_scores,
    xattention_warmed,
)


def made(*, batch=1, heads=4, kv_heads=2, queries=None, keys=100, dim=16, first=None, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, heads, keys, dim, generator=generator) * 3
    k = torch.randn(batch, kv_heads, keys, dim, generator=generator)
    return q[:, :, keys - (queries or keys) :].to(dtype), k.to(dtype), None if first is None else torch.tensor(first)


@pytest.mark.parametrize("stride", [4, 8, 16])
def test_x1_a_tile_is_the_mean_of_its_antidiagonal(stride):
    """One tile a block and one block a row: the score of each block is the softmax of the tiles' means."""
    q, k, _ = made(heads=2, kv_heads=1, keys=4 * stride)
    found = xattention_scores(q, k, block_size=stride, stride=stride).scores
    pairs = q.double() @ k.double().transpose(-1, -2) / 4
    for h in range(2):
        for r in range(4):
            means = [
                sum(pairs[0, h, r * stride + stride - 1 - i, c * stride + i] for i in range(stride)) / stride
                for c in range(r + 1)
            ]
            wanted = torch.stack(means).softmax(0)
            assert (found[0, h, r, : r + 1].double() - wanted).abs().max() < 1e-5
            assert not found[0, h, r, r + 1 :].any()


SHAPES = {
    "odd length": {"keys": 101},
    "one token": {"keys": 1},
    "shorter than a stride": {"keys": 3},
    "shorter than a block": {"keys": 13},
    "whole blocks": {"keys": 96},
    "suffix on a block": {"keys": 101, "queries": 37},
    "suffix inside a block": {"keys": 101, "queries": 30},
    "suffix inside a tile": {"keys": 101, "queries": 3},
    "padded batch": {"keys": 70, "batch": 4, "first": [0, 11, 66, 70]},
    "padded suffix": {"keys": 70, "queries": 20, "batch": 3, "first": [0, 11, 60]},
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SHAPES)
def test_the_fast_scores_are_those_of_the_reference(name, mode, causal):
    q, k, first = made(**SHAPES[name])
    settings = {"block_size": 16, "stride": 4, "mode": mode, "causal": causal, "first_key": first, "softcap": 4.0}
    wanted = xattention_scores(q, k, **settings, backend="reference")
    for rows in (None, 1, 5):
        found = xattention_scores(q, k, **settings, rows_at_once=rows)
        assert (found.scores - wanted.scores).abs().max() < 2e-5
    assert torch.equal(found.possible, wanted.possible)
    whole = wanted.scores.sum(-1)
    # A row of scores sums to its strided rows (or queries) that have anything to attend to.
    assert (whole < (16 if mode == "oracle" else 4) + 1e-3).all()


def test_scores_of_fp64_keep_its_digits_where_tiles_are_cut():
    q, k, first = made(**SHAPES["padded batch"], dtype=torch.float64)
    settings = {"block_size": 16, "stride": 4, "first_key": first}
    found, wanted = (xattention_scores(q, k, **settings, backend=backend).scores for backend in ("cpu", "reference"))
    assert (found - wanted).abs().max() < 1e-13


def test_the_oracle_is_the_mass_of_dense_attention():
    q, k, _ = made(keys=50)
    found = xattention_scores(q, k, block_size=16, stride=4, mode="oracle").scores
    pairs = (q @ k.repeat_interleave(2, 1).transpose(-1, -2) / 4).masked_fill(torch.ones(50, 50).triu(1).bool(), -1e30)
    mass = torch.nn.functional.pad(pairs.softmax(-1), (0, 14, 0, 14)).view(1, 4, 4, 16, 4, 16)
    mass[:, :, 3, 2:] = 0
    assert (found - mass.sum((3, 5))).abs().max() < 1e-4


@pytest.mark.parametrize("length", [1, 127, 128, 129, 4095])
def test_x4_the_mask_does_not_depend_on_the_chunks(length):
    q, k, _ = made(keys=length, heads=2, kv_heads=1, dim=8)
    masks = [xattention_block_mask(q, k, threshold=0.6, rows_at_once=rows) for rows in (None, 8, 64, 1000)]
    assert all(torch.equal(masks[0], other) for other in masks[1:])


def test_f2_a_long_length_of_whole_chunks_sees_the_past():
    """The published torch path masks all earlier chunks where no padding is needed."""
    q, k, _ = made(keys=32768, heads=1, kv_heads=1, dim=8)
    k[:, :, 1000] = q[:, :, 32000] * 4
    k[:, :, 1001] = q[:, :, 32000] * 4
    mask = xattention_block_mask(q, k, threshold=0.5, mode="antidiagonal")
    assert mask[0, 0, -1, :-1].sum() > 20
    found = xattention_scores(q, k)
    assert (found.scores[0, 0].sum(-1) - 8).abs().max() < 1e-3


@pytest.mark.parametrize("mode", MODES)
def test_x5_f3_rows_of_a_suffix_are_those_of_the_whole(mode):
    q, k, _ = made(keys=203)
    whole = xattention_scores(q, k, block_size=16, stride=4, mode=mode).scores
    part = xattention_scores(q[:, :, 96:], k, block_size=16, stride=4, mode=mode).scores
    assert (whole[:, :, 6:] - part).abs().max() < 1e-5


def test_f3_a_suffix_inside_a_block_lies_where_its_tokens_lie():
    """Only the suffix's own queries vote in its first block, and every block is counted from the first key."""
    q, k, _ = made(keys=203)
    silent = q.clone()
    part = xattention_scores(q[:, :, 100:], k, block_size=16, stride=4, mode="oracle").scores
    whole = xattention_scores(silent, k, block_size=16, stride=4, mode="oracle").scores
    assert part.shape[2] == 7
    assert (part[:, :, 1:] - whole[:, :, 7:]).abs().max() < 1e-5
    assert (part[:, :, 0].sum(-1) - 12).abs().max() < 1e-4


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_f4_f5_f8_padded_rows_are_each_row_alone(mode, causal):
    """Batches work, padded keys take no part in the softmax, and a half-filled tile is the mean of what is there."""
    q, k, first = made(keys=75, batch=3, first=[0, 7, 42])
    settings = {"block_size": 16, "stride": 8, "mode": mode, "causal": causal}
    found = xattention_scores(q, k, first_key=first, **settings).scores
    for b, pad in enumerate(first.tolist()):
        alone = xattention_scores(q[b : b + 1, :, pad:], k[b : b + 1, :, pad:], **settings).scores[0]
        assert (found[b, :, : alone.shape[1], : alone.shape[2]] - alone).abs().max() < 1e-5
        assert not found[b, :, alone.shape[1] :].any()


def test_x7_f4_keys_that_end_inside_a_block_do_not_compete():
    """Not causal: were the zeros after the last key counted, each would weigh as much as a real key."""
    q, k, _ = made(keys=65, heads=1, kv_heads=1)
    q = q.abs()
    k = -k.abs()
    found = xattention_scores(q, k, block_size=64, stride=4, causal=False).scores
    # Of 17 tiles a row the last holds one key: nothing can give it most of the mass but padding.
    assert found[0, 0, 0, 1] < 0.5 * found[0, 0, 0].sum()
    assert (found[0, 0].sum(-1) - torch.tensor([16.0, 1.0])).abs().max() < 1e-4


@pytest.mark.parametrize("threshold", [0.3, 0.7, 0.9])
def test_x3_a_row_keeps_the_fewest_blocks_that_reach_the_threshold(threshold):
    q, k, _ = made(keys=400)
    found = xattention_scores(q, k, block_size=16, stride=4)
    chosen = select_blocks(found.scores, found.possible, threshold, own=found.own)
    held = (found.scores.double() * chosen.mask).sum(-1)
    wanted = threshold * found.scores.double().sum(-1)
    assert (held >= wanted - 1e-12).all()
    free = found.scores.masked_fill(~chosen.mask | chosen.forced, float("inf")).amin(-1).double()
    more = ~free.isinf()
    assert more.any()
    assert ((held - free)[more] < wanted[more]).all()
    # No dropped block scores above a kept one that was not forced.
    dropped = found.scores.masked_fill(chosen.mask | ~found.possible, -1.0).amax(-1).double()
    assert (dropped <= free)[more].all()


def walk(scores, possible, threshold, forced):
    """The published walk, one block after the other."""
    kept = [c for c in range(len(scores)) if forced[c] and possible[c]]
    held, total = sum(scores[c] for c in kept), sum(s for s, p in zip(scores, possible, strict=True) if p)
    for c in sorted(range(len(scores)), key=lambda c: (-scores[c], c)):
        if possible[c] and c not in kept and held < threshold * total:
            kept.append(c)
            held += scores[c]
    return kept


@pytest.mark.parametrize("causal", [True, False])
def test_f6_f11_the_selection_is_the_walk_block_by_block(causal):
    """The sink is a column, not the first row; both forced blocks count, and no block too many is taken."""
    q, k, _ = made(keys=330, batch=2, first=[0, 40])
    found = xattention_scores(q, k, block_size=16, stride=4, causal=causal, first_key=torch.tensor([0, 40]))
    chosen = select_blocks(found.scores, found.possible, 0.8, own=found.own if causal else None)
    for b in range(2):
        for r in range(found.scores.shape[2]):
            possible = found.possible[b, 0, r].tolist()
            forced = [causal and c in (0, int(found.own[b, r])) for c in range(len(possible))]
            for h in range(4):
                wanted = walk(found.scores[b, h, r].double().tolist(), possible, 0.8, forced)
                assert sorted(wanted) == chosen.mask[b, h, r].nonzero()[:, 0].tolist()
                assert chosen.order[b, h, r, : len(wanted)].tolist() == wanted
                assert chosen.kept[b, h, r] == len(wanted)
                if wanted:
                    share = found.scores[b, h, r, wanted].double().sum() / found.scores[b, h, r].double().sum()
                    assert chosen.reached[b, h, r, len(wanted) - 1] == pytest.approx(float(share))
    if causal:
        assert chosen.mask[:, :, :, 0][found.possible[:, :, :, 0].expand(-1, 4, -1)].all()
    else:
        assert not chosen.mask[..., 0].all()


def test_f9_blocks_may_be_of_any_size_that_strides_divide():
    q, k, _ = made(keys=200)
    for block, stride in ((64, 16), (128, 8), (32, 4), (8, 8), (24, 8)):
        mask = xattention_block_mask(q, k, block_size=block, stride=stride)
        assert mask.shape[2:] == (-(-200 // block),) * 2
    with pytest.raises(InvalidInput, match="128 tokens does not divide into strides of 12"):
        xattention_block_mask(q, k, stride=12)


@pytest.mark.parametrize("threshold", [1.0, 1.5])
def test_x2_a_threshold_of_one_is_dense(threshold):
    q, k, first = made(keys=203, batch=2, first=[0, 31])
    # Scores that round to nothing are kept too.
    q[:, :, 100:] *= 100
    mask = xattention_block_mask(q, k, block_size=16, stride=4, threshold=threshold, first_key=first)
    out = block_sparse_attention(q, k, k, mask, block_size=16, first_key=first)
    assert (out - dense_attention(q, k, k, first_key=first)).abs().max() < 1e-5


def test_x6_heads_of_a_group_choose_for_themselves():
    q, k, _ = made(heads=32, kv_heads=8, keys=300)
    mask = xattention_block_mask(q, k, block_size=16, stride=4, threshold=0.6)
    alone = xattention_block_mask(q, k.repeat_interleave(4, 1), block_size=16, stride=4, threshold=0.6)
    assert torch.equal(mask, alone)
    assert (mask[:, 0] != mask[:, 1]).any()


def test_x8_bf16_inputs_are_scored_in_fp32():
    q, k, _ = made(keys=300, dtype=torch.bfloat16)
    settings = {"block_size": 16, "stride": 4, "threshold": 0.8}
    found = xattention_scores(q, k, block_size=16, stride=4).scores
    assert found.dtype == torch.float32
    assert torch.equal(xattention_block_mask(q, k, **settings), xattention_block_mask(q.float(), k.float(), **settings))


def test_thresholds_are_compared_in_double_precision():
    """Cast to half, 0.8 is 0.799805: a block too few."""
    scores = torch.tensor([[[[0.4, 0.39990, 0.2001, 0.0]]]], dtype=torch.float64)
    possible = torch.ones(1, 1, 1, 4, dtype=torch.bool)
    assert select_blocks(scores, possible, 0.8).kept.item() == 3
    assert select_blocks(scores, possible, 0.799805).kept.item() == 2
    # Sums too: three quarters of equal scores are three quarters of the blocks, none more for rounding.
    for quarter in range(1, 100):
        scores = torch.full((1, 1, 1, 4 * quarter), 0.1)
        assert select_blocks(scores, torch.ones_like(scores).bool(), 0.75).kept.item() == 3 * quarter


def test_thresholds_one_a_head():
    q, k, _ = made(keys=300)
    each = torch.tensor([0.0, 0.5, 0.9, 1.0])
    mask = xattention_block_mask(q, k, block_size=16, stride=4, threshold=each)
    for h, threshold in enumerate(each.tolist()):
        alone = xattention_block_mask(q, k, block_size=16, stride=4, threshold=threshold)
        assert torch.equal(mask[:, h], alone[:, h])
    # A threshold of 0 keeps the forced blocks alone.
    assert (mask[0, 0].sum(-1) == torch.tensor([1] + [2] * 18)).all()
    with pytest.raises(InvalidInput, match="for 4 heads"):
        xattention_block_mask(q, k, block_size=16, stride=4, threshold=each[:3])
    for wrong in (-0.1, float("nan")):
        with pytest.raises(InvalidInput, match="0 or more"):
            xattention_block_mask(q, k, block_size=16, stride=4, threshold=wrong)


def test_x9_a_planted_needle_is_kept():
    q, k, _ = made(keys=512, heads=1, kv_heads=1)
    direction = torch.randn(16, generator=torch.Generator().manual_seed(5))
    k[0, 0, 80:96] += 4 * direction
    q[0, 0, 400:] += 4 * direction
    mask = xattention_block_mask(q, k, block_size=16, stride=8, threshold=0.5)
    assert mask[0, 0, 25:, 5].all()
    assert mask[0, 0].float().mean() < 0.4


def test_the_modes_sample_one_key_and_one_query_of_every_offset():
    for mode in ("antidiagonal", "diagonal", "random"):
        assert sorted(sampled_pairs(16, mode)) == list(range(16))
    assert sampled_pairs(4, "antidiagonal") == [3, 2, 1, 0]
    assert sampled_pairs(16, "random", 0) != sampled_pairs(16, "random", 1)
    with pytest.raises(InvalidInput, match="samples no pairs"):
        sampled_pairs(16, "oracle")


def test_antidiagonals_see_a_vertical_line_and_a_slash_and_diagonals_miss_a_slash():
    """Each vertical line and each slash crosses every antidiagonal of the tiles it passes; diagonals run beside one."""
    eye = torch.eye(64)
    k = eye[None, None].repeat(1, 1, 4, 1) * 8
    q = torch.roll(eye, 3, 0)[None, None].repeat(1, 1, 4, 1) * 8
    seen = {}
    for mode in ("antidiagonal", "diagonal"):
        found = xattention_scores(q, k, block_size=64, stride=8, mode=mode).scores[0, 0]
        seen[mode] = float(found[3].max() - found[3].min())
    # Of the slash j = i - 3, the diagonal samples nothing: it sees no difference between any two tiles.
    found = xattention_scores(q, k, block_size=8, stride=8, mode="diagonal").scores[0, 0, 20]
    assert found[:21].max() - found[:21].min() < 1e-5
    found = xattention_scores(q, k, block_size=8, stride=8).scores[0, 0, 20]
    assert found[:21].max() > 2 * found[:21].median()


@pytest.mark.parametrize("first", [None, [0, 9, 55]])
@pytest.mark.parametrize("mode", MODES)
def test_the_causal_mask_is_the_row_before_and_does_not_depend_on_calls(mode, first):
    q, k, first = made(keys=75, batch=3, first=first)
    settings = {"block_size": 8, "stride": 4, "threshold": 0.6, "mode": mode}
    whole = causal_block_mask(q, k, 75, first_key=first, **settings)
    own = xattention_block_mask(q, k, first_key=first, **settings)
    for b, pad in enumerate([0, 0, 0] if first is None else first.tolist()):
        rows = -(-(75 - pad) // 8)
        for r in range(rows):
            wanted = own[b, :, r - 1].clone() if r else torch.zeros_like(own[b, :, 0])
            wanted[:, r] = True
            assert torch.equal(whole[b, :, r], wanted)
    # Any cut of the text into calls: each sees the keys up to its own end alone.
    for start, stop in ((0, 30), (30, 31), (31, 64), (64, 75), (74, 75)):
        seen = None if first is None else first.clamp_max(stop)
        part = causal_block_mask(q[:, :, :stop], k[:, :, :stop], stop - start, first_key=seen, **settings)
        for b, pad in enumerate([0, 0, 0] if first is None else first.tolist()):
            if pad >= stop:
                continue
            low, high = max(0, start - pad) // 8, -(-(stop - pad) // 8)
            assert torch.equal(part[b, :, : high - low, :high], whole[b, :, low:high, :high])


def test_later_tokens_change_the_published_mask_and_not_the_causal_one():
    q, k, _ = made(keys=64)
    other_q, other_k = q.clone(), k.clone()
    other_q[:, :, 50:] = 9.0
    other_k[:, :, 50:] = -5.0
    settings = {"block_size": 16, "stride": 4, "threshold": 0.5}
    a, b = (causal_block_mask(x, y, 64, **settings) for x, y in ((q, k), (other_q, other_k)))
    assert torch.equal(a, b)
    a, b = (xattention_block_mask(x, y, **settings) for x, y in ((q, k), (other_q, other_k)))
    assert torch.equal(a[:, :, :3], b[:, :, :3])
    assert not torch.equal(a[:, :, 3], b[:, :, 3])


def test_f1_f7_no_path_hangs_on_the_name_or_number_of_a_device():
    """Scores and masks lie where the input lies; nothing asks for a device by name."""
    q, k, _ = made(keys=75)
    q, k = q.to("meta"), k.to("meta")
    found = xattention_scores(q, k, block_size=16, stride=4)
    assert found.scores.device.type == found.possible.device.type == found.own.device.type == "meta"


def test_warm_steps_are_dense_and_later_ones_are_not():
    q, k, first = made(keys=130, batch=2, first=[0, 20])
    scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2) / 4
    hidden = torch.arange(130) < first[:, None, None, None]
    dense = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ k.repeat_interleave(2, 1)
    settings = {"block_size": 16, "stride": 4, "threshold": 0.3, "first_key": first, "warmup": 2}
    for step in (0, 1):
        out = xattention_warmed(q, k, k, step=step, **settings)
        assert (out - dense)[0].abs().max() < 1e-4
        assert (out - dense)[1, :, 20:].abs().max() < 1e-4
    assert (xattention_warmed(q, k, k, step=2, **settings) - dense)[0].abs().max() > 0.01
    with pytest.raises(InvalidInput, match="step is -1"):
        xattention_warmed(q, k, k, step=-1)


def test_other_arguments_are_checked():
    q, k, _ = made()
    for wrong, reason in (
        ({"mode": "triple"}, "no mode 'triple'"),
        ({"stride": 0}, "strides of 0"),
        ({"backend": "gpu"}, "no backend 'gpu'"),
        ({"rows_at_once": 0}, "rows_at_once is 0"),
        ({"first_key": torch.zeros(3)}, r"first_key must be \(1,\)"),
        ({"softcap": 0.0}, "softcap is 0"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            xattention_scores(q, k, **wrong)
    with pytest.raises(InvalidInput, match="do not fit"):
        causal_block_mask(q[:, :, :9], k, 9)


def test_sixteen_thousand_tokens_never_hold_all_scores():
    from focus_core.benchmark.prefill import peak_bytes

    n = 16384
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, h, n, 16, generator=generator) * 2 for h in (2, 1))
    with torch.no_grad():
        mask = xattention_block_mask(q, k, threshold=0.2)
        choosing = peak_bytes(lambda: xattention_block_mask(q, k, threshold=0.2), "cpu")
        oracle = peak_bytes(lambda: xattention_scores(q[:, :1], k, mode="oracle"), "cpu")
        computing = peak_bytes(lambda: block_sparse_attention(q, k, k, mask), "cpu")
    # One bool a pair of one head would be 268 MB.
    assert max(choosing, computing, oracle) < n * n / 4
