"""One prompt answered side by side, through a real worker with a tiny saved model."""

import json

import pytest

from focus_core.errors import InvalidInput, TooLarge
from focus_core.handlers import ask
from focus_core.jobs import Engine, Host
from tests.jobs.conftest import finish
from tests.tiny import save_tiny

TEMPLATE = "{% for m in messages %}<{{ m['content'] }}>{% endfor %}"
ENTRIES = [
    {"variant": "dense", "config": {}, "adapter": None, "label": "Dense"},
    {"variant": "window", "config": {"window": 4, "sinks": 1}, "adapter": None, "label": "Window"},
    {"variant": "window", "config": {"window": 500}, "adapter": None, "label": "Wide"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("chat")
    save_tiny(root / "chat", layers=2)
    save_tiny(root / "mute", layers=2)
    settings = root / "chat" / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": TEMPLATE}))
    return root


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Engine(tmp_path_factory.mktemp("engine") / "runs", device="cpu") as made:
        yield made


def request(folder, **fields):
    base = {"model": str(folder / "chat"), "prompt": "Where does the river end?", "passage": False, "tokens": 5}
    return {**base, "entries": ENTRIES, **fields}


def test_each_variant_answers_and_the_weights_stay(engine, folder):
    job = finish(engine.submit("ask", request(folder)), seconds=120)
    assert job.state == "done", job.error
    rows, about = job.result["rows"], job.result["about"]
    assert [row["label"] for row in rows] == ["Dense", "Window", "Wide"]
    assert rows[0]["reply"] == rows[2]["reply"] != rows[1]["reply"]
    assert [row["dense_by_definition"] for row in rows] == [False, False, True]
    assert about["weights"]["before"] == about["weights"]["after"]
    assert "about" in job.partial[0]
    assert all(row["complete"] for row in rows)
    behind = finish(engine.submit("ask", request(folder, passage=True, tokens=2)))
    assert behind.result["rows"][0]["prompt_tokens"] > rows[0]["prompt_tokens"] + 200


def test_what_cannot_be_asked_is_said_before_it_runs(engine, folder):
    host = Host(device="cpu", cores=2)
    for fields in ({"prompt": " "}, {"tokens": 0}, {"entries": []}, {"entries": [{"variant": "focus", "config": {}}]}):
        with pytest.raises(InvalidInput):
            ask.estimate(request(folder, **fields), host)
    with pytest.raises(TooLarge, match="Shorten"):
        ask.estimate({**request(folder), "prompt": "word " * 4000}, host)
    job = finish(engine.submit("ask", request(folder, model=str(folder / "mute"))))
    assert job.state == "failed"
    assert "no chat template" in job.error.message
