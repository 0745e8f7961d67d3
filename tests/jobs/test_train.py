"""Training, k-means and collapse as jobs, through a real worker with a tiny saved model."""

import os
import signal

import numpy as np
import pytest

from focus_core import assets, handlers
from focus_core.errors import InvalidInput, TooLarge
from focus_core.jobs import Engine, Host
from focus_core.jobs.files import read_json
from focus_core.trace import Trace
from tests.jobs.conftest import finish, until
from tests.tiny import save_tiny

TEXT = "the cat and the dog sat on the mat while another one ran there and then the rain ended in the morning. " * 8
HOST = Host(device="cpu", cores=2, free_bytes=8 << 30)
SETTINGS = {"groups": 4, "dim": 4, "window": 4, "sinks": 1, "context": 48, "steps": 6, "validate_every": 3}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "a"
    save_tiny(folder, layers=2)
    return str(folder)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FOCUS_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def engine(tmp_path, cache):
    with Engine(tmp_path / "runs", device="cpu") as made:
        yield made


def ask(model, **settings):
    text = {"text_name": None, "text": TEXT, "source": "text", "probe": 40}
    return {"model": model, **text, "settings": {**SETTINGS, **settings}}


def test_every_step_is_told_and_the_groups_are_looked_at(engine, model):
    job = finish(engine.submit("train", ask(model)), seconds=120)
    assert job.state == "done", job.error
    history, about = job.result["history"], job.result["about"]
    assert [part["step"] for part in history] == list(range(7))
    assert [part["step"] for part in history if "served_ppl" in part] == [0, 3, 6]
    assert history[0]["dense_ppl"] == pytest.approx(about["record"]["dense_validation_ppl"])
    assert np.array(history[1]["load"]).shape == (2, 1, 4)
    assert np.array(history[1]["load"]).mean() == pytest.approx(1, abs=1e-3)
    base = Trace.load(job.result["probe"])
    assert len(base) == 40
    with np.load(job.result["look_6"]) as look:
        assert look["key_bits"].shape == (2, 1, 40)
        assert np.array_equal(look["key_bits"], look["query_bits"])
        points, centroids = look["key_points.1"].astype(float), look["centroids.1"].astype(float)
    assert np.linalg.norm(points, axis=-1) == pytest.approx(1, abs=2e-3)
    assert centroids.shape == (1, 4, 4)
    assert about["texts"] == "a text of the user's"
    again = engine.submit("train", ask(model))
    assert again.from_store
    assert engine.recall(job.key).result["history"] == history


def test_a_killed_worker_loses_nothing_and_the_run_goes_on_like_one_that_was_not(tmp_path, cache, model):
    with Engine(tmp_path / "straight", device="cpu") as engine:
        straight = finish(engine.submit("train", ask(model, steps=12)), seconds=120)
    with Engine(tmp_path / "cut", device="cpu") as engine:
        job = engine.submit("train", ask(model, steps=12))
        until(lambda: any(part.get("step", 0) >= 3 for part in job.partial), 120, "three steps")
        os.kill(engine.status()["pid"], signal.SIGKILL)
        finish(job)
        assert job.state == "failed"
        assert engine.recall(job.key) is job
        key, told = job.key, [part["step"] for part in job.partial if "step" in part]
    with Engine(tmp_path / "cut", device="cpu") as engine:
        found = engine.recall(key)
        assert (found.kind, found.state, found.request) == ("train", "cancelled", ask(model, steps=12))
        assert [part["step"] for part in found.partial if "step" in part] == told
        job = engine.submit("train", found.request)
        assert job.key == key
        assert [part["step"] for part in job.partial if "step" in part][: len(told)] == told
        assert engine.submit("train", found.request) is job or job.finished
        finish(job, seconds=120)
    losses = [[part.get("loss") for part in done.result["history"]] for done in (straight, job)]
    assert losses[0] == pytest.approx(losses[1], nan_ok=True) if None not in losses[0][1:] else False
    assert job.result["history"][3]["step"] == 3


def test_a_stopped_run_keeps_its_steps_and_goes_on(engine, model):
    request = ask(model, steps=200, validate_every=2)
    job = engine.submit("train", request)
    until(lambda: any(part.get("step", 0) >= 4 for part in job.partial), 120, "four steps")
    engine.cancel(job.id)
    assert job.state == "cancelled"
    folder = engine.store.folder(job.key)
    until(lambda: (folder / "checkpoint.safetensors").is_file(), 10)
    assert assets.keep_adapter("half", folder).name == "half"
    assert assets.adapters()["half"]["user"]


def test_what_was_kept_serves_at_once(engine, model):
    job = finish(engine.submit("train", ask(model)), seconds=120)
    assets.keep_adapter("mine", engine.store.folder(job.key))
    request = {"model": model, "text_name": None, "text": TEXT, "variant": "focus", "config": {}, "adapter": "mine"}
    ran = finish(engine.submit("trace", {**request, "layers": "all"}), seconds=120)
    assert ran.state == "done", ran.error
    assert ran.result["provenance"]["groups"] == 4


def test_kmeans_is_fitted_saved_and_serves(engine, model):
    job = finish(engine.submit("kmeans", {"model": model, "groups": 3, "name": "spots"}), seconds=120)
    assert job.state == "done", job.error
    assert assets.adapters()["spots"]["config"]["kind"] == "kmeans"
    request = {"model": model, "text_name": None, "text": TEXT, "variant": "kmeans", "config": {}, "adapter": "spots"}
    ran = finish(engine.submit("trace", {**request, "layers": "all"}), seconds=120)
    assert ran.state == "done", ran.error
    refused = engine.submit("kmeans", {"model": model, "groups": 3, "name": "spots"})
    assert "already" in refused.error.message


def test_the_toy_run_of_the_collapse_is_told_step_by_step(engine):
    settings = {"steps": 2, "batch": 1, "look_every": 1, "weights": "late"}
    job = finish(engine.submit("collapse", {"settings": settings}), seconds=120)
    assert job.state == "done", job.error
    assert len(job.partial) == len(job.result["records"]) == 15
    assert job.result["about"]["settings"]["moves_from"] == 1
    assert job.result["records"][0]["dense_ppl"] < 60


@pytest.mark.parametrize(
    ("kind", "request_", "says"),
    [
        ("train", {"settings": {"colour": 1}}, "no training setting 'colour'"),
        ("train", {"settings": {"groups": 0}}, "groups is 0"),
        ("train", {"source": "rain"}, "source is 'rain'"),
        ("train", {"probe": 1}, "probe is 1"),
        ("train", {"source": "text", "text": "a few words only"}, "training on it takes 512"),
        ("train", {"settings": {"context": 9000}}, "reads at most 8,192 tokens"),
        ("train", {"settings": {"context": 8192, "batch": 64}}, "can be used"),
        ("kmeans", {"groups": 1, "name": "x"}, "groups is 1"),
        ("kmeans", {"groups": 4, "name": "../x"}, "cannot be kept"),
        ("kmeans", {"groups": 4, "name": "smollm2-directed-k16"}, "already"),
        ("collapse", {"settings": {"steps": 0}}, "steps is 0"),
        ("collapse", {"settings": {"groups": 1}}, "One group"),
        ("collapse", {"settings": {"weights": "soft"}}, "weights is 'soft'"),
        ("collapse", {"settings": {"depth": 3}}, "no setting 'depth'"),
    ],
)
def test_what_cannot_run_is_a_sentence_before_anything_starts(cache, kind, request_, says):
    request = {"model": "smollm2", "text_name": None, "text": TEXT, **request_}
    with pytest.raises((InvalidInput, TooLarge)) as refusal:
        handlers.handler(kind).estimate(request, HOST)
    assert says in refusal.value.message
    assert refusal.value.hint


def test_the_default_toy_is_a_matter_of_a_minute_and_says_what_it_takes(cache):
    cost = handlers.handler("train").estimate({"model": "smollm2", "text_name": None, "text": TEXT}, HOST)
    assert 20 < cost.seconds < 120
    assert "20 steps" in cost.sentence
    assert "GB" in cost.sentence or "MB" in cost.sentence
    toy = handlers.handler("collapse").estimate({"settings": {}}, HOST)
    assert 10 < toy.seconds < 60


def test_an_estimate_needs_no_torch():
    import subprocess
    import sys

    code = (
        "import sys; from focus_core import handlers; from focus_core.jobs import Host\n"
        "handlers.handler('train').estimate({'model': 'smollm2', 'text_name': None, 'text': 'a b ' * 900}, Host())\n"
        "handlers.handler('collapse').estimate({}, Host())\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr


def test_the_recorded_experiments_are_whole_and_say_where_they_come_from():
    for name in ("frozen", "moving", "late"):
        document = read_json(assets.DATA / "results" / f"collapse-{name}.json.gz")
        about = document["about"]
        assert document["complete"]
        assert about["environment"]["device"]
        assert f"run {name}" in about["command"]
        steps = about["settings"]["steps"]
        for balance in about["settings"]["balances"]:
            assert [r["step"] for r in document["records"] if r["balance"] == balance] == list(range(steps + 1))
