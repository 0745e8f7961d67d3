"""Fitting XAttention's thresholds as a job, through a real worker with a tiny saved model."""

import pytest

from focus_core import assets, handlers
from focus_core.errors import InvalidInput, TooLarge
from focus_core.jobs import Engine
from tests.jobs.conftest import finish
from tests.jobs.test_train import HOST, TEXT, cache, model  # noqa: F401

CONFIG = {"block": 8, "stride": 4}


def ask(model, **more):  # noqa: F811
    return {"model": model, "text": TEXT, "text_name": None, "config": CONFIG, "context": 64, "windows": 2, **more}


def test_thresholds_are_fitted_kept_and_served_and_the_programme_tells_its_steps(tmp_path, cache, model):  # noqa: F811
    with Engine(tmp_path / "runs", device="cpu") as engine:
        job = finish(engine.submit("thresholds", ask(model, name="mine", recall=0.8)), seconds=120)
        assert job.state == "done", job.error
        assert all(share >= 0.8 for share in job.result["record"]["recall_by_layer"])
        entry = assets.adapters()["mine"]
        assert (entry["user"], entry["config"]["kind"], entry["config"]["serve"]["block"]) == (True, "thresholds", 8)
        request = {"model": model, "text_name": None, "text": TEXT, "variant": "xattention", "adapter": "mine"}
        ran = finish(engine.submit("trace", {**request, "config": CONFIG, "layers": "all"}), seconds=120)
        assert ran.state == "done", ran.error
        job = finish(engine.submit("thresholds", ask(model, programme=1)), seconds=120)
        assert job.state == "done", job.error
        programme = job.result["record"]["programme"]
        assert len(programme["table"]) == len(programme["kept"]) == 1 + len(programme["units"]) == 3
        assert len(programme["lowered"]) == 1
        refused = engine.submit("thresholds", ask(model, name="mine"))
        assert "already" in refused.error.message


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"recall": 0}, "recall is 0"),
        ({"context": 16}, "context is 16"),
        ({"windows": 0}, "windows is 0"),
        ({"programme": 99}, "programme is 99"),
        ({"config": {"stride": 5}}, "stride is 5"),
        ({"name": "../x"}, "cannot be kept"),
        ({"text": None, "text_name": "persuasion opening", "context": 2048}, "a window takes 2,048"),
        ({"text": None, "context": 16384}, "at most 8,192 tokens"),
        ({"text": None, "context": 8192, "windows": 16, "programme": 8}, "limited to"),
    ],
)
def test_what_cannot_be_fitted_is_a_sentence_before_anything_starts(cache, more, says):  # noqa: F811
    with pytest.raises((InvalidInput, TooLarge)) as refusal:
        handlers.handler("thresholds").estimate(ask("smollm2", **{"name": "new", **more}), HOST)
    assert says in refusal.value.message
    assert refusal.value.hint


def test_the_cost_of_both_ways_is_told(cache):  # noqa: F811
    estimate = handlers.handler("thresholds").estimate
    fit = estimate({"model": "smollm2", "name": "new", "context": 2048, "windows": 2}, HOST)
    assert 3 < fit.seconds < 120
    assert "2 windows" in fit.sentence
    programme = estimate({"model": "smollm2", "context": 512, "windows": 1, "programme": 2}, HOST)
    assert "61 runs of the model" in programme.sentence
