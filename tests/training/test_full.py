"""Full fine-tuning: the copy learns, the model's own weights never change, and what does not fit is refused."""

import pytest
import torch

from focus_core.adapter import load_adapter, read_config
from focus_core.errors import InvalidInput, TooLarge, Unsupported
from focus_core.evaluation.probes import leak
from focus_core.evaluation.weights import hash_of, named_weights
from focus_core.full import check_room, new_full
from focus_core.retrofit import retrofit
from focus_core.training.settings import TrainSettings
from focus_core.training.trainer import train
from focus_core.variants import make
from tests.retrofit.helpers import far
from tests.tiny import tiny_model
from tests.training.small import ids, loaded, settings


def run(model, adapter, tokens, variant="dense", **given):
    with torch.no_grad(), retrofit(model, make(variant, given), adapter):
        return model(tokens, use_cache=False).logits


def full(**changes):
    return settings(kind="full", learning_rate=1e-2, steps=6, validate_every=3, **changes)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_copy_is_the_model_and_the_model_is_back_to_the_very_objects(family):
    model, tokens = tiny_model(family, layers=2), ids(20)[None]
    objects = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
    base, adapter = run(model, None, tokens), new_full(model)
    assert torch.equal(run(model, adapter, tokens), base)
    assert len(set(adapter.about(model)["weights"].values())) == 1
    assert sum(p.numel() for p in adapter.parameters()) == sum(p.numel() for p in model.parameters())
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.mul_(1.1)
    assert far(run(model, adapter, tokens), base) > 0.01
    assert len(set(adapter.about(model)["weights"].values())) == 2
    assert {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)} == objects
    assert torch.equal(run(model, None, tokens), base)
    with pytest.raises(InvalidInput, match="not those of this model"):
        run(tiny_model("gpt2" if family == "llama" else "llama", layers=2), adapter, tokens)


def test_training_learns_and_leaves_the_base_as_it_was(tmp_path):
    base = loaded()
    before = hash_of(named_weights(base.model))
    told = []
    trained = train(base, ids(), ids(), full(), tmp_path, on_step=told.append)
    assert told[-1]["loss"] < told[0]["loss"] - 0.1
    assert hash_of(named_weights(base.model)) == before
    assert not any(p.requires_grad or p.grad is not None for p in base.model.parameters())
    record = read_config(tmp_path)["record"]
    assert record["weights"]["before"] == before != record["weights"]["after"]
    assert record["trained_parameters"] == sum(p.numel() for p in base.model.parameters())
    again, tokens = load_adapter(tmp_path, base.model), ids(30, seed=3)[None]
    assert torch.equal(run(base.model, again, tokens), run(base.model, trained, tokens))
    assert again.about(base.model)["weights"] == record["weights"]
    # It looks at nothing that comes later, as before.
    assert leak(base.model, make("dense"), again, tokens[0], cuts=(10, 20), seeds=(0,))["leak"] < 1e-4


def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path):
    base, kind = loaded(), full()
    whole = train(base, ids(), ids(), kind, tmp_path / "whole")
    asked = iter([False, False, False, True])
    with pytest.raises(Exception, match="stopped after 3"):
        train(base, ids(), ids(), kind, tmp_path / "parts", cancel=lambda: next(asked))
    parts = train(base, ids(), ids(), kind, tmp_path / "parts")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


def test_it_trains_through_focus_whose_router_stays_as_it_is(tmp_path):
    base = loaded()
    router = train(base, ids(), ids(), settings(steps=2, validate_every=2), tmp_path / "router")
    through = {"through": "focus", "through_adapter": str(tmp_path / "router")}
    trained = train(base, ids(), ids(), full(**through), tmp_path / "full")
    assert trained.serve["groups"] == 4
    held = [torch.equal(a, b) for a, b in zip(router.parameters(), trained.reads.parameters(), strict=True)]
    assert all(held)
    tokens = ids(40, seed=3)[None]
    assert far(run(base.model, trained, tokens, "focus", **trained.serve), run(base.model, None, tokens)) > 1e-3


def test_what_cannot_be_trained_is_refused_with_its_numbers():
    model = tiny_model(layers=1)
    values = sum(p.numel() for p in model.parameters())
    with pytest.raises(TooLarge, match=f"all {values:,} weights takes"):
        check_room(model, free=values)
    check_room(model, free=16 * values)
    with pytest.raises(Unsupported, match="lost to rounding in bfloat16"):
        new_full(tiny_model(layers=1).to(torch.bfloat16))
    assert TrainSettings(kind="full").variant_at(None).name == "dense"
