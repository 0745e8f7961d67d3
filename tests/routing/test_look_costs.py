"""What a router's number of looks costs: measured one at a time, and estimated by the gradient."""

import copy

import numpy as np
import pytest
import torch

from focus_core.errors import Cancelled
from focus_core.evaluation.likelihood import token_nll
from focus_core.evaluation.recorders import PairCounter
from focus_core.retrofit import retrofit
from focus_core.routing.look_costs import LOSS, PAIRS, by_change, by_gradient
from focus_core.routing.router import Router, RouterConfig
from focus_core.variants import make
from tests.tiny import VOCAB, tiny_model

MASK = {"groups": 4, "key_topk": 1, "window": 4, "sinks": 1}
TABLE = np.array([[2, 0, 1], [4, 4, 4], [1, 4, 2]])
LEVELS = [0, 1, 2, 4]


def router(routers: int = 3) -> Router:
    made = Router(RouterConfig(3, 144, groups=4, dim=8, routers=routers))
    with torch.no_grad():
        made.query_projection.copy_(
            torch.randn(made.query_projection.shape, generator=torch.Generator().manual_seed(1))
        )
    return made.requires_grad_(False)


def ids(length: int = 48) -> torch.Tensor:
    return torch.randint(1, VOCAB, (1, length), generator=torch.Generator().manual_seed(2))


def served(model, adapter: Router, table: np.ndarray) -> tuple[float, np.ndarray]:
    own, pairs = adapter.with_looks(table.tolist()), PairCounter()
    variant = make("focus", MASK | {"query_topk": own.config.usual_looks, "backend": "reference"})
    with torch.no_grad(), retrofit(model, variant, own, recorder=pairs):
        return float(token_nll(model, ids()).double().mean()), np.array(pairs.kept(0))


@pytest.mark.parametrize("keys", [1, 2])
def test_pairs_are_those_that_are_served(keys):
    model, adapter, mask = tiny_model(), router(), MASK | {"key_topk": keys}
    found = by_gradient(model, adapter, mask, np.full((3, 3), 2), LEVELS, ids())[PAIRS]
    for i, level in enumerate(LEVELS[1:], 1):
        pairs, variant = PairCounter(), make("focus", mask | {"query_topk": level})
        with torch.no_grad(), retrofit(model, variant, adapter, recorder=pairs):
            model(ids(), use_cache=False)
        # The first layer's groups are the same whatever the layers do.
        assert found[0, :, i].mean() == pytest.approx(pairs.kept(0)[0], abs=1e-9)
    assert found[:, :, -1] == pytest.approx(1)


def changed(model, adapter, table=TABLE, batch=5, ask=lambda: None) -> np.ndarray:
    layers = [
        by_change(model, adapter, MASK, table, LEVELS, ids(), layer, batch=batch, ask=ask)
        for layer in range(len(table))
    ]
    return np.stack(layers, 1)


@pytest.mark.parametrize("routers", [3, 1])
def test_one_change_at_a_time_is_the_served_models_own_change(routers):
    model, adapter, table = tiny_model(), router(routers), TABLE[:, :routers]
    found, (present, kept) = changed(model, adapter, table), served(tiny_model(), adapter, table)
    for layer, r, i in ((0, 0, 0), (0, routers - 1, 3), (1, 0, 1), (2, routers - 1, 3), (2, 0, 0)):
        other = table.copy()
        other[layer, r] = LEVELS[i]
        loss, pairs = served(model, adapter, other)
        assert found[LOSS, layer, r, i] == pytest.approx(loss - present, abs=1e-5)
        # A router has a third of the heads, or all.
        own = found[PAIRS, layer, r]
        assert (own[i] - own[LEVELS.index(table[layer, r])]) / routers == pytest.approx(pairs[layer] - kept[layer])
    here = np.array([[LEVELS.index(n) for n in row] for row in table])
    assert np.take_along_axis(found[LOSS], here[..., None], -1).max() == 0


@pytest.mark.parametrize("table", [TABLE, np.full((3, 3), 4)])
def test_the_gradients_estimate_is_the_slope_of_the_loss(table):
    """Where outputs go a small part of the way, the loss goes as small a part of the estimate."""
    from focus_core.routing import look_costs

    model, adapter, step = tiny_model(), router(), 1e-3
    found = by_gradient(model, adapter, MASK, table, LEVELS, ids())
    assert found[PAIRS] == pytest.approx(changed(model, adapter, table)[PAIRS])

    class Part(look_costs._Changed):
        """Row 1 goes a part of the way from row 0's output to its own, in one layer."""

        def attend(self, call):
            whole = super().attend(call)
            return whole[:1] + step * (whole - whole[:1]) if call.layer == self.layer else whole

    exact, adapter = copy.deepcopy(model).double(), adapter.double()
    for layer, r, i in ((0, 0, 0), (0, 2, 3), (1, 1, 0), (2, 0, 1), (2, 1, 0)):
        tables = np.repeat(table[None], 2, 0)
        tables[1, layer, r] = LEVELS[i]
        variant = Part(**MASK)
        variant.hold(tables=tables, layer=layer)
        with torch.no_grad(), retrofit(exact, variant, adapter):
            logits = exact(ids().expand(2, -1), use_cache=False).logits[:, :-1]
        goal = ids().expand(2, -1)[:, 1:, None]
        before, after = (-logits.log_softmax(-1).gather(-1, goal)).mean((1, 2)).tolist()
        wanted = found[LOSS, layer, r, i]
        assert (after - before) / step == pytest.approx(wanted, rel=1e-2, abs=2e-4), (layer, r, i)


def test_a_run_that_is_not_wanted_any_more_ends():
    def ask():
        raise Cancelled()

    with pytest.raises(Cancelled):
        changed(tiny_model(), router(), ask=ask)
