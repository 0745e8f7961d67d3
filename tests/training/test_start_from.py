"""Training that goes on from a trained router, with its table of looks."""

import pytest
import torch

from focus_core.adapter import load_adapter
from focus_core.errors import InvalidInput
from focus_core.routing.router import Router, RouterConfig
from focus_core.training.trainer import new_adapter, train
from tests.training.small import ids, loaded, settings

LOOKS = ((0, 4), (1, 2))
GENTLE = {"steps": 2, "validate_every": 1, "learning_rate": 1e-3, "straight_through_from": 0.0}


def router(model, tmp_path, looks=LOOKS, **given):
    made = Router(RouterConfig(**({"layers": 2, "hidden_size": 48, "groups": 4, "dim": 4, "routers": 2} | given)))
    with torch.no_grad():
        made.bias.normal_(generator=torch.Generator().manual_seed(3))
    made.serve = {"groups": 4, "query_topk": 2, "key_topk": 1, "window": 4, "sinks": 1}
    return made.with_looks(looks).save_pretrained(tmp_path / "start", model.model)


def test_it_starts_with_the_weights_and_keeps_the_table(tmp_path):
    model = loaded()
    start = router(model, tmp_path)
    begun = new_adapter(model.facts, settings(start_from=str(start)), model.model)
    assert all(torch.equal(a, b) for a, b in zip(begun.parameters(), load_adapter(start).parameters(), strict=True))
    assert all(p.requires_grad for p in begun.parameters())
    train(model, ids(), ids(seed=1), settings(start_from=str(start), **GENTLE), tmp_path / "out")
    made = load_adapter(tmp_path / "out", model.model)
    assert made.config.looks == LOOKS
    assert made.serve["query_topk"] == made.config.usual_looks == 2
    moved = (made.centroids - begun.centroids).abs().max()
    assert 0 < moved < 0.1, "two gentle steps from where it started"
    assert made.record["settings"]["start_from"] == str(start)


def test_a_run_from_elsewhere_is_another_run(tmp_path):
    model = loaded()
    start = router(model, tmp_path)
    train(model, ids(), ids(seed=1), settings(**GENTLE), tmp_path / "out")
    with pytest.raises(InvalidInput, match=r"other settings \(start_from\)"):
        train(model, ids(), ids(seed=1), settings(start_from=str(start), **GENTLE), tmp_path / "out")


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"query_topk": 1}, "has query_topk 2, and the run 1. Give --query-topk 2"),
        ({"groups": 8, "dim": 8}, "has groups 4, dim 4, and the run 8, 8. Give --groups 4 --dim 4"),
        ({"form": "shared", "query_topk": 1}, "has form directed, query_topk 2"),
        ({"kind": "temperature"}, "is an adapter of kind router, and one of kind temperature is trained"),
    ],
)
def test_what_it_cannot_start_from_is_said(tmp_path, changes, reason):
    with pytest.raises(InvalidInput, match=reason):
        settings(start_from=str(router(loaded(), tmp_path)), **changes)


def test_without_a_table_query_topk_is_free_and_routers_are_not(tmp_path):
    model = loaded()
    start = str(router(model, tmp_path, None))
    assert new_adapter(model.facts, settings(start_from=start, query_topk=1), model.model).config.looks is None
    with pytest.raises(InvalidInput, match=r"has 2 routers a layer, and the run 1\. Give --router-per-kv-head"):
        new_adapter(model.facts, settings(start_from=start, router_per_kv_head=False), model.model)
    with pytest.raises(InvalidInput, match="There is no adapter"):
        settings(start_from=str(tmp_path / "none"))
