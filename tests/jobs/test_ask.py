"""One prompt answered side by side: the handler of the live replies, on a tiny model."""

import copy

import pytest

from focus_core.errors import Cancelled, InvalidInput, TooLarge, Unsupported
from focus_core.handlers import ask
from focus_core.jobs import Host
from focus_core.models.facts import facts_of
from focus_core.models.loading import Loaded
from tests.tiny import tiny_model, tiny_tokenizer

TEMPLATE = "{% for m in messages %}<{{ m['content'] }}>{% endfor %}"
ENTRIES = [
    {"variant": "dense", "config": {}, "adapter": None, "label": "Dense"},
    {"variant": "window", "config": {"window": 4, "sinks": 1}, "adapter": None, "label": "Window"},
    {"variant": "window", "config": {"window": 500}, "adapter": None, "label": "Wide"},
]


class Context:
    """What a handler is given, without a worker."""

    def __init__(self, template: str | None = TEMPLATE, stops_at: int = 1 << 30) -> None:
        model, tokenizer = tiny_model(layers=2, heads=3, kv_heads=1), copy.deepcopy(tiny_tokenizer())
        tokenizer.chat_template = template
        self.loaded = Loaded(model, tokenizer, facts_of(model), "tiny")
        self.partials, self.fractions, self.stops_at = [], [], stops_at

    def model(self, name: str) -> Loaded:
        return self.loaded

    def progress(self, fraction: float, message: str) -> None:
        self.fractions.append(fraction)

    def partial(self, data: dict) -> None:
        self.partials.append(data)

    def cancelled(self) -> bool:
        return len(self.fractions) >= self.stops_at


def request(**fields):
    base = {"model": "smollm2", "prompt": "Where does the river end?", "passage": False, "tokens": 5}
    return {**base, "entries": ENTRIES, **fields}


def test_each_variant_answers_and_the_weights_stay():
    context = Context()
    found = ask.run(request(), context)
    rows, about = found["rows"], found["about"]
    assert [row["label"] for row in rows] == ["Dense", "Window", "Wide"]
    assert rows[0]["reply"] == rows[2]["reply"] != rows[1]["reply"]
    assert [row["dense_by_definition"] for row in rows] == [False, False, True]
    assert about["weights"]["before"] == about["weights"]["after"]
    assert "about" in context.partials[0]
    assert [part["row"] for part in context.partials if part.get("row", {}).get("complete")] == rows
    assert context.fractions == sorted(context.fractions)
    behind = ask.run(request(passage=True, tokens=1, entries=ENTRIES[:1]), Context())
    assert behind["rows"][0]["prompt_tokens"] > rows[0]["prompt_tokens"] + 200


def test_a_stopped_one_keeps_the_replies_that_were_there():
    context = Context(stops_at=8)
    with pytest.raises(Cancelled):
        ask.run(request(), context)
    whole = [part["row"]["label"] for part in context.partials if part.get("row", {}).get("complete")]
    assert whole == ["Dense"]


def test_what_cannot_be_asked_is_said_before_it_runs():
    host = Host(device="cpu", cores=2)
    assert "replies" in ask.estimate(request(), host).sentence
    for fields in ({"prompt": " "}, {"tokens": 0}, {"entries": []}, {"entries": [{"variant": "focus", "config": {}}]}):
        with pytest.raises(InvalidInput):
            ask.estimate(request(**fields), host)
    for words in ("word " * 4000, "안녕하세요 " * 1300):
        with pytest.raises(TooLarge, match="Shorten"):
            ask.estimate(request(prompt=words), host)
    with pytest.raises(Unsupported, match="no chat template"):
        ask.run(request(), Context(template=None))
