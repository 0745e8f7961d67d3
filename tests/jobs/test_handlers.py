"""The kinds of work that ship, through a real worker with tiny saved models."""

import dataclasses
import os
import re
import time

import psutil
import pytest

from focus_core import assets, handlers
from focus_core.errors import InvalidInput, TooLarge
from focus_core.handlers._requests import count_tokens
from focus_core.jobs import Engine, Host
from focus_core.models.shapes import shape_of
from focus_core.trace import Trace
from tests.jobs.conftest import finish, until
from tests.tiny import save_tiny

TEXT = "the cat and the dog sat on the mat while another one ran there and then the rain ended in the morning. " * 3
HOST = Host(device="cpu", cores=2)
SMOL = {"model": "smollm2", "variant": "window", "config": {}, "adapter": None, "layers": "all"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two saved models, and an adapter of the first."""
    from focus_core.routing.router import Router, RouterConfig

    root = tmp_path_factory.mktemp("models")
    first = save_tiny(root / "a", layers=2)
    save_tiny(root / "b", "gemma2", layers=2)
    adapter = Router(RouterConfig(layers=2, hidden_size=144, groups=3, dim=8, routers=3))
    adapter.serve = {"groups": 3, "window": 9, "sinks": 1}
    adapter.save_pretrained(root / "adapter", first)
    return root


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Engine(tmp_path_factory.mktemp("engine") / "runs", device="cpu") as made:
        yield made


def ask(models, **fields):
    base = {"model": str(models / "a"), "text_name": None, "text": TEXT, "variant": "random"}
    return {**base, "config": {"groups": 3, "window": 7}, "adapter": None, "layers": "all", **fields}


def test_prepare_keeps_one_model_warm(engine, models):
    first = finish(engine.submit("prepare", {"model": str(models / "a")}), seconds=120)
    assert first.state == "done", first.error
    assert first.result["facts"]["layers"] == 2
    assert engine.status()["model"] == str(models / "a")
    assert engine.host("cpu").loaded == str(models / "a")
    again = finish(engine.submit("prepare", {"model": str(models / "a")}))
    assert (again.state, again.from_store) == ("done", False)
    assert again.estimate.sentence == "The model is loaded already."
    finish(engine.submit("prepare", {"model": str(models / "b")}))
    assert engine.status()["model"] == str(models / "b")


def test_trace_lies_in_the_store(engine, models):
    job = finish(engine.submit("trace", ask(models, text_name="rhyme")), seconds=120)
    assert job.state == "done", job.error
    assert "2 layers" in job.estimate.sentence
    trace = Trace.load(job.result["trace"])
    assert trace.text == TEXT
    assert job.result["provenance"] == trace.provenance
    summary = job.result["summary"]
    assert summary["scored_tokens"] == len(trace) - 1
    assert summary["kept_pairs"] == pytest.approx(trace.arrays["kept_pairs"].mean(), rel=1e-5)
    assert 0 < summary["kept_pairs"] < summary["mass_kept"] + 0.5 <= 1.5
    assert summary["seconds"] > 0
    assert engine.submit("trace", ask(models, text_name="rhyme")).from_store


def test_trace_with_an_adapter_takes_what_it_was_trained_with(engine, models):
    request = ask(models, variant="focus", config={"sinks": 3}, adapter=str(models / "adapter"))
    job = finish(engine.submit("trace", request), seconds=120)
    assert job.state == "done", job.error
    p = job.result["provenance"]
    assert (p["groups"], p["window"], p["sinks"]) == (3, 9, 3)
    assert p["adapter"] == str(models / "adapter")
    other = finish(engine.submit("trace", {**request, "model": str(models / "b")}), seconds=120)
    assert other.state == "failed"
    assert "another model" in other.error.message


def test_a_new_adapter_at_the_same_place_is_a_new_run(engine, models):
    request = ask(models, variant="focus", config={}, adapter=str(models / "adapter"))
    first = finish(engine.submit("trace", request), seconds=120)
    assert engine.submit("trace", request).key == first.key
    weights = models / "adapter" / "focus_adapter.safetensors"
    status = weights.stat()
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
    assert handlers.handler("trace").identity(request) != handlers.handler("trace").identity(ask(models))
    assert finish(engine.submit("trace", request), seconds=120).key != first.key


def test_evaluate(engine, models):
    request = ask(models, text=TEXT * 3, context=64, windows=3, probes=False)
    job = finish(engine.submit("evaluate", request), seconds=120)
    assert job.state == "done", job.error
    assert (job.result["windows"], job.result["context"], job.result["variant"]) == (3, 64, "random")
    assert len(job.partial) == 3
    assert job.result["tokens"] == 3 * 63


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"text": "   "}, "The text is empty."),
        ({"text": None}, "The text is empty."),
        ({"text": "x" * 5_000_000}, "5.0 MB"),
        ({"text": "a"}, "1 token"),
        ({"text": TEXT * 30}, "the model reads 1,024"),
        ({"text_name": "no such book", "text": None}, "no such book"),
        ({"model": ""}, "No model is named."),
        ({"model": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"variant": "magic"}, "There is no variant 'magic'."),
        ({"config": {"window": 0}}, "window is 0"),
        ({"config": {"colour": 1}}, "colour"),
        ({"adapter": "/no/adapter"}, "There is no adapter"),
        ({"variant": "focus", "config": {}}, "focus needs a trained adapter, and none ships"),
        ({"layers": [0, 2]}, "There is no layer 2."),
        ({"layers": "some"}, "layers is 'some'."),
        ({"limit": 1}, "limit is 1."),
        ({"limit": "all"}, "limit is 'all'."),
    ],
)
def test_bad_input_is_a_sentence(engine, models, change, sentence):
    job = finish(engine.submit("trace", ask(models, **change)), seconds=120)
    assert job.state == "failed"
    assert sentence in job.error.message
    assert "Traceback" not in job.error.message
    assert job.error.hint


def test_groups_of_another_model_are_not_offered(engine, models):
    job = finish(engine.submit("trace", ask(models, variant="focus", config={})))
    assert {"dense", "random", "window"} <= set(re.findall(r"\w+", job.error.hint))
    assert "smollm2" not in job.error.hint
    known = finish(engine.submit("trace", ask(models, model="smollm2", variant="focus", config={})))
    assert "smollm2-directed-k16" in known.error.hint


@pytest.mark.parametrize("name", ["~nobody-of-that-name/x", "a" * 300, "/" + "a" * 300, "x\0y"])
def test_a_name_that_no_file_can_have_is_a_sentence(engine, models, name):
    for kind, request in (("prepare", {"model": name}), ("trace", ask(models, model=name))):
        job = finish(engine.submit(kind, request), seconds=60)
        assert job.state == "failed"
        assert "fault" not in job.error.message


def test_odd_characters_are_text_too(engine, models):
    job = finish(
        engine.submit("trace", ask(models, text="<b>the</b> \ud800 한국어 👩‍👩‍👧 \u200fשלום\n\n\tend")), seconds=120
    )
    assert job.state == "done", job.error
    trace = Trace.load(job.result["trace"])
    assert "?" in trace.text
    assert trace.arrays["partial"].any()


def test_cancel_while_a_model_loads_or_runs(engine, models):
    job = engine.submit("trace", ask(models, text=TEXT + "and then", model=str(models / "b"), config={}))
    until(lambda: job.state != "queued", what="the start")
    engine.cancel(job.id)
    assert job.state == "cancelled"
    assert until(lambda: not engine.status()["running"], what="the end") < 3
    after = finish(engine.submit("trace", ask(models, text=TEXT + "and then on")), seconds=120)
    assert after.state == "done", after.error


def test_fifty_runs_do_not_grow_the_worker(engine, models):
    def runs(first, count):
        for limit in range(first, first + count):
            assert finish(engine.submit("trace", ask(models, limit=limit)), seconds=120).state == "done"
        worker, own = psutil.Process(engine.status()["pid"]), psutil.Process()
        return worker.memory_info().rss, own.memory_info().rss

    before, after = runs(20, 15), runs(40, 50)
    assert max(end / start for start, end in zip(before, after, strict=True)) < 1.05, (before, after)
    assert len(list(engine.store.root.glob("*/trace.npz"))) >= 50


def test_no_partial_files_are_left(engine):
    assert not list(engine.store.root.rglob(".*"))
    assert not list(engine.store.root.rglob("*.jsonl"))


def test_a_server_with_a_list_opens_nothing_else(engine, models, monkeypatch):
    monkeypatch.setenv("FOCUS_LAB_MODELS", str(models / "b"))
    job = engine.submit("trace", ask(models))
    assert "is not on this server's list" in job.error.message
    adapter = {"variant": "focus", "config": {}, "adapter": str(models / "adapter")}
    job = engine.submit("trace", ask(models, model=str(models / "b"), **adapter))
    assert "is not on this server's list" in job.error.message
    job = engine.submit("trace", ask(models, model=str(models / "b"), text=None, text_name=__file__))
    assert "There is no shipped text" in job.error.message


def test_shapes_are_read_without_torch(models):
    shape = shape_of(str(models / "a"))
    assert (shape.layers, shape.heads, shape.kv_heads, shape.head_dim, shape.context) == (2, 9, 3, 16, 1024)
    assert shape.values > 100_000
    assert shape_of(str(models)) is None
    assert shape_of("org/never-downloaded") is None
    estimate = handlers.handler("trace").estimate(ask(models, model="org/never-downloaded"), HOST)
    assert "known once org/never-downloaded is loaded" in estimate.sentence


def test_costs_have_numbers_and_too_much_names_what_fits():
    trace, evaluate = handlers.handler("trace"), handlers.handler("evaluate")
    short = trace.estimate({**SMOL, "text": "word " * 1000}, HOST)
    long = trace.estimate({**SMOL, "text": "word " * 8000}, HOST)
    assert 0.5 < short.raw_seconds < long.raw_seconds < 600
    assert short.bytes < long.bytes
    assert "30 layers, 2 cores" in short.sentence
    one = trace.estimate({**SMOL, "text": "word"}, dataclasses.replace(HOST, cores=1))
    assert "(1 token, 30 layers, 1 core)" in one.sentence
    small = dataclasses.replace(HOST, free_bytes=2_000_000_000, loaded="smollm2")
    tight = dataclasses.replace(small, max_seconds=3.0)
    with pytest.raises(TooLarge, match=r"limited to 3\.0 s") as error:
        trace.estimate({**SMOL, "text": "word " * 8000}, tight)
    fits = int(error.value.hint.split()[2].replace(",", ""))
    assert trace.estimate({**SMOL, "text": "word " * 8000, "limit": fits}, tight).seconds <= 3.0
    with pytest.raises(TooLarge, match=r"tokens; the model reads 8,192"):
        trace.estimate({**SMOL, "text_name": "persuasion", "text": None}, HOST)
    trace.estimate({**SMOL, "text_name": "persuasion", "text": None, "limit": 1024}, HOST)
    with pytest.raises(TooLarge, match="windows") as error:
        evaluate.estimate({**SMOL, "text_name": "persuasion", "text": None, "context": 4096}, tight)
    with pytest.raises(InvalidInput, match="context is 1"):
        evaluate.estimate({**SMOL, "text_name": "persuasion", "text": None, "context": 1}, HOST)
    with pytest.raises(TooLarge):
        trace.estimate({**SMOL, "text": "word " * 500}, dataclasses.replace(HOST, free_bytes=100_000_000))


def test_tokens_are_counted_or_judged():
    name = assets.text_names("passage")[0]
    exact, sure = count_tokens(assets.load_text(name).text, name, "smollm2")
    assert sure
    judged, sure = count_tokens(assets.load_text(name).text, None, "smollm2")
    assert not sure
    assert judged == pytest.approx(exact, rel=0.15)
    korean, _ = count_tokens("한" * 51, None, "smollm2")
    assert korean == pytest.approx(103, rel=0.1)


def test_estimates_take_milliseconds():
    request = {**SMOL, "text": "word " * 8000}
    began = time.process_time()
    for _ in range(10):
        handlers.handler("trace").estimate(request, HOST)
    assert (time.process_time() - began) / 10 < 0.03


def test_fetching_the_default_model_needs_no_network_where_it_is(engine):
    job = finish(engine.submit("fetch", {}), seconds=60)
    assert job.result == {"file": "SmolLM2-135M-Instruct.Q4_1.gguf"}, job.error
    assert "93 MB" in job.estimate.sentence
