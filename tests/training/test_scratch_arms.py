"""A whole model from nothing: gradients reach every weight through every variant, losses fall, nothing looks ahead."""

import json

import pytest
import torch

from focus_core.adapter import load_adapter
from focus_core.errors import Cancelled, InvalidInput, Unsupported
from focus_core.evaluation.probes import leak
from focus_core.models.facts import facts_of
from focus_core.retrofit import retrofit
from focus_core.training import scratch
from focus_core.training.checkpoint import FILE
from focus_core.training.scratch_settings import ScratchSettings, schedule
from focus_core.variants import make
from tests.training.small import ids, loaded

GROUPS = {"groups": 4, "query_topk": 2, "window": 4, "sinks": 1}
ARMS = {
    "dense": ("dense", {}),
    "focus": ("focus", GROUPS),
    "sfa": ("sfa", {"features": 4}),
    "short": ("sfa", {"features": 4, "select": "first"}),
    "performer": ("performer", {"features": 16}),
    "random": ("random", GROUPS),
}


def like(**given):
    return loaded(family="gpt2", heads=2, head_dim=8, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, **given)


def settings(**changes):
    small = {"steps": 24, "context": 40, "batch": 4, "warmup": 2, "learning_rate": 0.02, "validate_every": 12}
    return ScratchSettings(**(small | {"validation_windows": 2, "checkpoint_every": 7} | changes))


def run(arm, out, base=None, **given):
    variant = make(*ARMS[arm])
    changes = {k: given.pop(k) for k in list(given) if k in ScratchSettings.__dataclass_fields__}
    base = like() if base is None else base
    return scratch.pretrain(base, variant, ids(90), ids(90), settings(**changes), out, **given)


def again(out):
    """The model that was saved, and its adapter."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(out)
    folder = out / scratch.ADAPTER_FOLDER
    return model, load_adapter(folder, model) if folder.exists() else None


@pytest.mark.parametrize("arm", ARMS)
def test_gradients_reach_every_weight(arm):
    """Through the soft gate and the served one; those of queries, keys and values each, and the router's."""
    variant, chosen = make(*ARMS[arm]), settings()
    model = scratch.new_model(like().model, 0)
    adapter = scratch.new_adapter(variant, facts_of(model), 0)
    plan = schedule(variant, chosen)
    window = ids(160).view(4, 40)
    for step in (0,) if plan is None else (0, 23):
        model.zero_grad()
        with retrofit(model, variant if plan is None else plan.variant_at(step), adapter):
            scratch.loss_of(model, window).backward()
        trained = [*model.named_parameters(), *(adapter.named_parameters() if adapter else ())]
        for name, parameter in trained:
            if parameter.requires_grad:
                assert parameter.grad is not None, name
                assert parameter.grad.abs().max() > 1e-7, name
        # Queries, keys and values stand side by side in one matrix: each of the three moves.
        for block in model.transformer.h:
            moved = block.attn.c_attn.weight.grad.abs().amax(0).view(3, -1).amax(-1)
            assert moved.min() > 1e-7


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_learns_and_sees_nothing_ahead(arm, tmp_path):
    base = like()
    before = {name: value.clone() for name, value in base.model.state_dict().items()}
    record = run(arm, tmp_path, base)
    assert all(torch.equal(before[name], value) for name, value in base.model.state_dict().items())
    assert record["step"] == 24
    assert record["tokens"] == 24 * 4 * 40
    assert record["losses"][-1][1] < record["losses"][0][1] - 0.5
    assert record["log"][-1]["served_ppl"] < record["log"][0]["served_ppl"]
    assert [entry["step"] for entry in record["log"]] == [12, 24]
    model, adapter = again(tmp_path)
    assert (adapter is not None) == (arm in ("focus", "short"))
    assert (record["adapter_parameters"] > 0) == (adapter is not None)
    assert leak(model, make(*ARMS[arm]), adapter, ids(40), seeds=(0,))["leak"] < 1e-4
    assert not (tmp_path / FILE).exists()


def test_arms_start_alike_and_read_the_same_windows(tmp_path):
    """Where a variant keeps every pair it is dense: the same first loss, to rounding."""
    first = {}
    for name, variant in {"dense": make("dense"), "all": make("sfa", {"features": 8})}.items():
        record = scratch.pretrain(like(), variant, ids(90), ids(90), settings(steps=3), tmp_path / name)
        first[name] = [loss for _, loss in record["losses"]]
    assert first["dense"] == pytest.approx(first["all"], abs=1e-3)


@pytest.mark.parametrize("arm", ["focus", "short"])
def test_a_run_that_was_stopped_ends_like_one_that_was_not(arm, tmp_path):
    """With dropout, which is drawn anew at every step."""
    base, asked = like(), []
    base.model.config.resid_pdrop = 0.2
    straight = run(arm, tmp_path / "straight", base, steps=10)

    def cancel():
        asked.append(None)
        return len(asked) == 6

    with pytest.raises(Cancelled, match="stopped after 5 of 10 steps"):
        run(arm, tmp_path / "cut", base, steps=10, cancel=cancel)
    assert (tmp_path / "cut" / FILE).exists()
    assert not (tmp_path / "cut" / scratch.RECORD_FILE).exists()
    resumed = run(arm, tmp_path / "cut", base, steps=10)
    assert resumed["losses"] == straight["losses"]
    assert resumed["log"] == straight["log"]
    one, other = again(tmp_path / "straight")[0], again(tmp_path / "cut")[0]
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    # What is finished is not made again, and another run is refused.
    assert run(arm, tmp_path / "cut", base, steps=10) == json.loads(
        (tmp_path / "cut" / scratch.RECORD_FILE).read_text()
    )
    with pytest.raises(InvalidInput, match="other settings \\(learning_rate\\)"):
        run(arm, tmp_path / "cut", base, steps=10, learning_rate=0.01)


def test_what_cannot_be_trained_is_refused(tmp_path):
    with pytest.raises(Unsupported, match="kmeans"):
        schedule(make("kmeans", GROUPS), settings())
    with pytest.raises(InvalidInput, match="gate is soft"):
        schedule(make("focus", GROUPS | {"gate": "soft"}), settings())
    with pytest.raises(InvalidInput, match="Nothing is far"):
        schedule(make("focus", GROUPS | {"window": 64}), settings())
    with pytest.raises(InvalidInput, match="learning_rate"):
        settings(learning_rate=float("nan"))
    with pytest.raises(InvalidInput, match="training text has 9 tokens"):
        scratch.pretrain(like(), make("dense"), ids(9), ids(90), settings(), tmp_path)
    assert not list(tmp_path.iterdir())
