"""Adapting a frozen model to sparse features: the language model's loss and the error against dense outputs."""

import pytest
import torch

from focus_core.adapter import load_adapter
from focus_core.errors import InvalidInput
from focus_core.kernels.dense import dense_attention
from focus_core.retrofit import retrofit
from focus_core.training.output_error import OutputError
from focus_core.training.trainer import RoutedModel, new_adapter, train
from focus_core.variants import make
from tests.retrofit.helpers import Watcher, tokens
from tests.tiny import tiny_model
from tests.training.small import ids, loaded, settings

SFA = {"kind": "sfa", "features": 2, "learning_rate": 0.005}


def test_the_error_is_that_of_the_outputs_and_its_target_takes_no_gradient():
    base = loaded()
    adapter = new_adapter(base.facts, settings(**SFA))
    variant, meter, watcher = settings(**SFA).variant_at(0), OutputError(), Watcher()
    _, penalty = RoutedModel(base.model, adapter)(ids(40)[None], variant, meter)
    with torch.no_grad(), retrofit(base.model, variant, adapter, recorder=watcher):
        base.model(ids(40)[None], use_cache=False)
    wanted = 0.0
    for call in watcher.calls:
        dense = dense_attention(call.query, call.key, call.value, scale=call.scale)
        with torch.no_grad():
            wanted += float((variant.attend(call) - dense).square().mean() / dense.square().mean()) / 2
    assert float(penalty.detach()) == pytest.approx(wanted, rel=1e-4)
    assert meter.seen == [pytest.approx(wanted, rel=1e-4)]
    penalty.backward()
    assert adapter.query_map.grad.abs().amax((1, 2, 3)).gt(0).all()
    assert adapter.key_map.grad.abs().amax((1, 2, 3)).gt(0).all()
    assert meter.take_loss() is None


def test_an_exact_variant_has_no_error_and_native_layers_are_left_out():
    tiny, meter = tiny_model("gemma2"), OutputError()
    with torch.no_grad(), retrofit(tiny, make("sfa", {"features": 16}), recorder=meter):
        tiny(tokens(1, 20), use_cache=False)
    assert len(meter._losses) == 1
    assert float(meter.take_loss()) < 1e-10


@pytest.mark.parametrize("select", ["features", "first"])
def test_training_lowers_the_error_and_the_adapter_is_served(select, tmp_path):
    base, seen, text = loaded(), [], ids(48)
    chosen = settings(**SFA, select=select, maps="identity", output_weight=10.0, steps=24, batch=1)
    train(base, text, ids(200, seed=1), chosen, tmp_path, on_step=seen.append)
    assert seen[-1]["output_error"] < seen[0]["output_error"]
    assert seen[3]["kept_pairs"] == 1.0
    adapter = load_adapter(tmp_path, base.model)
    assert adapter.kind == "sfa"
    assert adapter.serve == {"features": 2, "select": select, "sparse": "both"}
    assert adapter.record["settings"]["output_weight"] == 10.0
    with torch.no_grad(), retrofit(base.model, make("sfa", adapter.serve), adapter):
        assert torch.isfinite(base.model(text[None]).logits).all()


def test_maps_start_fitted_or_as_the_identity(tmp_path):
    one = torch.eye(8)
    for maps in ("balanced", "identity"):
        seen = []
        train(
            loaded(),
            ids(),
            ids(200, seed=1),
            settings(**SFA, maps=maps, steps=1, output_weight=0.0),
            tmp_path / maps,
            watch=lambda step, adapter, _, seen=seen: seen.append(adapter.key_map.detach().clone()),
        )
        assert torch.equal(seen[0], one.expand_as(seen[0])) == (maps == "identity")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"maps": "random"}, "maps is 'random'"),
        ({"output_weight": -1.0}, "output_weight is -1.0"),
        ({"select": "pairs"}, "mix rotary pairs"),
        ({"features": 0}, "sfa.features is 0"),
    ],
)
def test_what_could_not_train_is_refused(wrong, says):
    with pytest.raises(InvalidInput, match=says):
        settings(**{**SFA, **wrong})
