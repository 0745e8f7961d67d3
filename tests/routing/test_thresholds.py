"""XAttention's thresholds: what the fit keeps, and the paper's programme against trying everything."""

import itertools

import pytest
import torch

from focus_core.adapter import load_adapter
from focus_core.errors import Cancelled, InvalidInput
from focus_core.evaluation.recorders import PairCounter
from focus_core.kernels.xattention import causal_block_mask, xattention_block_mask, xattention_scores
from focus_core.retrofit import retrofit
from focus_core.routing.threshold_programme import fit_programme, threshold_programme
from focus_core.routing.thresholds import GRID, Thresholds, ThresholdsConfig, fit_thresholds, kept_mass, voted_before
from focus_core.variants import make
from tests.retrofit.helpers import Watcher, tokens
from tests.tiny import tiny_model

SETTINGS = {"block": 8, "stride": 4}


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama")


def dense_mass_kept(model, variant, adapter, windows):
    """(L, Hq) share of the dense attention that the served masks keep, from the pairs themselves."""
    watcher = Watcher()
    with torch.no_grad(), retrofit(model, make("dense"), recorder=watcher):
        for window in windows:
            model(window[None], use_cache=False)
    found = torch.zeros(3, 9, dtype=torch.float64)
    for call in watcher.calls:
        n = call.query.shape[2]
        scores = call.query.double() @ call.key.double().repeat_interleave(3, 1).transpose(-1, -2) * call.scale
        mass = scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf")).softmax(-1)[0]
        pattern = variant.pattern(type(call)(**{**vars(call), "adapter": adapter}))
        kept = torch.stack([torch.from_numpy(pattern.tile(0, h, slice(0, n), slice(0, n))) for h in range(9)])
        found[call.layer] += (mass * kept).sum((1, 2)) / n / len(windows)
    return found


@pytest.mark.parametrize("voters", ["before", "own"])
def test_every_head_keeps_the_wanted_share_and_a_step_less_would_not(voters, model):
    variant, windows = make("xattention", SETTINGS | {"voters": voters}), tokens(2, 64)
    adapter = fit_thresholds(model, windows, variant, recall=0.9)
    reached = dense_mass_kept(model, variant, adapter, windows)
    assert (reached >= 0.9 - 1e-6).all()
    lower = Thresholds(adapter.config)
    at = (adapter.thresholds[..., None] - torch.tensor(GRID)).abs().argmin(-1)
    assert at.unique().numel() > 2
    lower.thresholds.copy_(torch.tensor(GRID)[(at - 1).clamp_min(0)])
    below = dense_mass_kept(model, variant, lower, windows)
    assert (below[at > 0] < 0.9).all()
    assert adapter.record["recall_by_layer"] == pytest.approx(reached.mean(1).tolist(), abs=1e-3)
    assert torch.tensor(adapter.record["recall_by_head"]).double().sub(reached).abs().max() < 1e-3
    assert adapter.serve == SETTINGS | {"voters": voters, "mode": "antidiagonal", "dense_layers": 0}


def test_layers_that_stay_dense_and_native_ones_are_not_fitted(model):
    variant = make("xattention", SETTINGS | {"dense_layers": 2})
    adapter = fit_thresholds(model, tokens(1, 64), variant, recall=0.8)
    assert (adapter.thresholds[:2] == 1).all()
    assert (adapter.thresholds[2] < 1).any()
    assert adapter.record["recall_by_layer"][:2] == [None, None]
    gemma = tiny_model("gemma3")
    adapter = fit_thresholds(gemma, tokens(1, 64), make("xattention", SETTINGS), recall=0.5)
    assert adapter.record["recall_by_layer"][0] is adapter.record["blocks_by_head"][0] is None
    assert adapter.record["recall_by_layer"][1] >= 0.5


def test_the_moved_mask_is_the_causal_one():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 4, 75, 16, generator=generator), torch.randn(2, 2, 75, 16, generator=generator)
    own = xattention_block_mask(q, k, block_size=8, stride=4, threshold=0.5)
    found = xattention_scores(q, k, block_size=8, stride=4)
    wanted = causal_block_mask(q, k, 75, block_size=8, stride=4, threshold=0.5)
    assert torch.equal(voted_before(own, found.own), wanted)
    oracle = xattention_scores(q, k, block_size=8, stride=4, mode="oracle").scores
    assert (kept_mass(oracle, torch.ones_like(own)) - 1).abs().max() < 1e-12


def test_what_cannot_be_fitted_is_refused(model):
    variant = make("xattention", SETTINGS)
    with pytest.raises(InvalidInput, match="recall is 0"):
        fit_thresholds(model, tokens(1, 64), variant, recall=0)
    with pytest.raises(InvalidInput, match="20 tokens, 2 blocks of 8"):
        fit_thresholds(model, tokens(1, 20), variant)
    with pytest.raises(Cancelled):
        fit_thresholds(model, tokens(1, 64), variant, cancel=lambda: True)
    with pytest.raises(InvalidInput, match="4 reductions of 3 thresholds"):
        fit_programme(model, tokens(1, 64), variant, reductions=4)
    with pytest.raises(InvalidInput, match="no unit 'token'"):
        fit_programme(model, tokens(1, 64), variant, reductions=1, by="token")
    with pytest.raises(Cancelled):
        fit_programme(model, tokens(1, 64), variant, reductions=1, cancel=lambda: True)


def test_the_programme_ends_within_a_layer_of_being_asked_to(model):
    asked = iter([False] * 6)
    with pytest.raises(Cancelled):
        # The first run alone asks thirteen times: before it, and at the three layers of four windows.
        fit_programme(
            model, tokens(4, 64), make("xattention", SETTINGS), reductions=1, cancel=lambda: next(asked, True)
        )
    assert next(asked, None) is None


def test_thresholds_are_saved_and_serve_every_head(model, tmp_path):
    adapter = Thresholds(ThresholdsConfig(3, 9))
    adapter.thresholds.copy_(torch.linspace(0.2, 1.0, 27).view(3, 9))
    back = load_adapter(adapter.save_pretrained(tmp_path / "t", model), model)
    assert torch.equal(back.thresholds, adapter.thresholds)
    variant, watcher = make("xattention", SETTINGS), Watcher()
    with torch.no_grad(), retrofit(model, variant, back, recorder=watcher):
        model(tokens(1, 64), use_cache=False)
    for call in watcher.calls:
        pattern = variant.pattern(call)
        for head in range(9):
            one = make("xattention", SETTINGS | {"threshold": float(adapter.thresholds[call.layer, head])})
            alone = one.pattern(type(call)(**{**vars(call), "adapter": None}))
            assert (pattern.kept[0, head] == alone.kept[0, head]).all()
    assert pattern.density(0, 8) == 1.0


def exhaustive(evaluate, units, count):
    return max(evaluate(list(state)) for state in itertools.combinations(range(units), count))


def test_the_programme_finds_the_best_of_additive_costs_and_counts_its_runs():
    gain = [0.3, -0.2, 0.5, -0.1, 0.4]
    found = threshold_programme(lambda state: sum(gain[u] for u in state), 5, 3)
    for m in range(4):
        assert found.table[5][m] == pytest.approx(exhaustive(lambda s: sum(gain[u] for u in s), 5, m))
    assert found.reduced == [[], [2], [2, 4], [0, 2, 4]]
    assert found.evaluations == 1 + sum(min(u + 1, 3) for u in range(5))
    # Row u holds the best of the first u units; a cell is None where there are fewer units than reductions.
    assert found.table[1] == [0, 0.3, None, None]
    assert found.taken[3] == [False, True, True, True]
    assert [found.state(5, m) for m in range(4)] == found.reduced
    assert found.state(2, 1) == [0]


def test_the_programme_is_the_papers_recurrence():
    """P(u, m) starts from the best state with one reduction less, which need not be part of the best of all."""

    def evaluate(state):
        return {(): 0.0, (0,): 1.0, (1,): 0.9, (2,): 0.8, (0, 1): 0.5, (0, 2): 0.4, (1, 2): 3.0}[tuple(state)]

    found = threshold_programme(evaluate, 3, 2)
    # (1, 2) would be best, but (1,) alone loses to (0,): the recurrence never tries it.
    assert found.table[3] == [0.0, 1.0, 0.5]
    assert found.reduced[2] == [0, 1]


@pytest.mark.parametrize("by", ["layer", "head"])
def test_the_programme_lowers_thresholds_of_the_model(by, model):
    variant, windows = make("xattention", SETTINGS), tokens(1, 64)
    adapter = fit_programme(model, windows, variant, reductions=2, by=by, start=0.6, factor=0.5)
    lowered = adapter.thresholds < 0.5
    assert torch.equal(adapter.thresholds, torch.where(lowered, 0.3, 0.6))
    assert lowered.sum() == (18 if by == "layer" else 2)
    record = adapter.record
    units = 3 if by == "layer" else 27
    assert record["evaluations"] == 1 + 1 + 2 * (units - 1)
    counter = PairCounter()
    with torch.no_grad(), retrofit(model, variant, adapter, recorder=counter):
        loss = model(windows, labels=windows, use_cache=False).loss
    assert record["programme"]["table"][-1][2] == pytest.approx(-float(loss), abs=1e-5)
    assert record["programme"]["kept"][-1][2] == pytest.approx(sum(counter.kept(0)) / 3, abs=1e-5)
    assert record["programme"]["kept"][0][0] >= record["programme"]["kept"][-1][2]
    assert len(record["programme"]["units"]) == units
    assert len(record["programme"]["lowered"]) == 2
