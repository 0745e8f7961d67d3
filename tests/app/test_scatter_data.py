import base64
import json

import numpy as np
import pytest

from analysis.groups import group_table
from analysis.parts import parts_of
from app.ui.scatter.data import NONE, middles, scatter_data
from focus_core.trace import Trace
from tests.app.synthetic import make_trace


def unpack(text: str, dtype) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


def data_of(trace: Trace, **more) -> dict:
    rng = np.random.default_rng(0)
    points = more.pop("points", rng.normal(size=(2, len(trace), 2)))
    return scatter_data(
        trace,
        1,
        0,
        points=points,
        centroids=more.pop("centroids", rng.normal(size=(16, 2))),
        table=group_table(trace, 1, 0, None),
        parts=parts_of(trace),
        **more,
    )


def shown(data: dict) -> list[str]:
    """Each token as the browser cuts it out of the text, which it counts in UTF-16 units."""
    units = data["text"].encode("utf-16-le")
    begin, end = unpack(data["begin"], np.int32), unpack(data["end"], np.int32)
    return [units[2 * a : 2 * b].decode("utf-16-le") for a, b in zip(begin, end, strict=True)]


@pytest.mark.parametrize("text", ["Sir Walter, of\n\nKellynch Hall.", "naïve 🙂 cat 👩‍👩‍👧 end", "모든 토큰 하나", "x"])
def test_tokens_are_cut_as_javascript_counts(text):
    trace = make_trace(text)
    for token, cut in zip(trace.tokens, shown(data_of(trace)), strict=True):
        # A token that is a byte of a character is shown as the whole character.
        assert cut == token


def test_all_of_it_is_json_and_equal_input_is_equal_data():
    trace = make_trace("One two three. " * 50)
    first, second = data_of(trace), data_of(trace)
    assert json.dumps(first) == json.dumps(second)
    other = data_of(trace, points=np.ones((2, len(trace), 2)))
    assert other["id"] != first["id"]
    assert (other["tokens"], other["place"]) == (first["tokens"], first["place"])


def test_eight_thousand_tokens_are_under_half_a_megabyte():
    data = data_of(make_trace("The old man saw it again, and then he went. " * 1500, limit=9000, points=False))
    assert data["count"] == 8192
    assert len(json.dumps(data)) < 500_000


def test_coordinates_fill_the_square_and_keep_their_order():
    trace = make_trace("a b c d e f")
    x = np.arange(len(trace), dtype=float)
    points = np.stack([np.stack([x, -x], 1)] * 2)
    places = unpack(data_of(trace, points=points, centroids=np.zeros((0, 2)))["points"], np.uint16)
    places = places.reshape(2, len(trace), 2)
    assert (places[0, :, 0] == np.round(x / x.max() * 65535)).all()
    assert (np.diff(places[1, :, 1].astype(int)) < 0).all()


def test_a_shared_router_has_one_side():
    trace = make_trace("One two three four five six. " * 5)
    trace.arrays["query_bits"] = trace.arrays["key_bits"]
    data = data_of(trace, points=np.random.default_rng(1).normal(size=(1, len(trace), 2)))
    assert (data["sides"], data["directed"]) == (1, False)


def test_a_ring_has_the_colour_of_the_rarest_group_it_looks_into():
    trace = make_trace("a b c d", sinks=0, groups=16)
    bits = np.array([0b011, 0b001, 0b001, 0b101][: len(trace)] + [0b001] * (len(trace) - 4), np.int64)
    bits[2] = 0
    trace.arrays["query_bits"][1, 0] = bits
    assert unpack(data_of(trace)["query_group"], np.uint8)[:4].tolist() == [1, 0, NONE, 2]


def test_a_letter_stands_on_a_token_of_the_largest_island():
    island, stray = np.array([[0.80, 0.20], [0.81, 0.21], [0.80, 0.21]]), np.array([[0.1, 0.9]])
    joined = np.array([[True, False]] * 4)
    (placed, empty) = middles(np.concatenate([island, stray]), joined)
    assert placed.tolist() in island.tolist()
    assert empty.tolist() == [0, 0]
