import base64
import json

import numpy as np
import pytest

from app.ui.bars import Bar, _row
from app.ui.strip import css
from app.ui.strip.data import cells, group_shares, lost_keys, strip_data
from tests.app.synthetic import make_trace

LONG = "The quick brown fox jumps over the lazy dog, and then it sleeps. " * 8


def unpack(text: str, dtype) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


@pytest.mark.parametrize(
    "text",
    [
        "plain words, and  two spaces\n\nand lines\t!",
        "모든 토큰이 다른 모든 토큰을 보아야 할까요?",
        "すべてのトークン。",
        "السلام عليكم",
        "👩‍👩‍👧 🇰🇷🇯🇵 👍🏽 ok",
        "e\u0301te\u0301 <b>&amp;\"'",
    ],
)
def test_cells_hold_whole_characters_and_nothing_is_lost(text):
    trace = make_trace(text)
    texts, first = cells(trace)
    assert "".join(texts) == text
    assert "\ufffd" not in "".join(texts)
    assert first[0] == 0
    assert first[-1] == len(trace)
    assert (np.diff(first) > 0).all()


def test_one_character_is_one_cell():
    assert cells(make_trace("한글"))[0] == ["한", "글"]
    assert np.diff(cells(make_trace("한글"))[1]).tolist() == [3, 3]
    assert cells(make_trace("👩‍👩‍👧"))[0] == ["👩‍👩‍👧"]
    assert cells(make_trace("🇰🇷🇯🇵"))[0] == ["🇰🇷", "🇯🇵"]
    assert cells(make_trace("👍🏽"))[0] == ["👍🏽"]
    assert cells(make_trace("e\u0301t"))[0] == ["e\u0301", "t"]


def test_tokens_that_all_name_the_whole_character_share_a_cell_and_special_tokens_have_their_own():
    trace = make_trace("한a")
    trace.arrays["byte_span"] = np.array([[0, 3], [0, 3], [0, 3], [3, 4]], np.int32)
    assert cells(trace)[0] == ["한", "a"]
    trace.arrays["byte_span"] = np.array([[0, 0], [0, 3], [3, 3], [3, 4]], np.int32)
    trace.tokens[:] = ["<s>", "한", "<x>", "a"]
    assert cells(trace)[0] == ["<s>", "한", "<x>", "a"]


def test_text_that_no_token_covers_stays_readable():
    trace = make_trace("ab cd")
    trace.arrays["byte_span"] = np.array([[0, 2], [3, 5]], np.int32)
    trace.tokens[:] = ["ab", "cd"]
    assert cells(trace)[0] == ["ab", " cd"]


def test_a_cut_in_a_character_shows_what_is_there():
    texts, first = cells(make_trace("a한"), count=2)
    assert texts == ["a", "\ufffd"]
    assert first.tolist() == [0, 1, 2]


def test_payload_is_json_and_holds_the_sets_window_and_sinks():
    trace = make_trace(LONG, window=16, sinks=2)
    data = json.loads(json.dumps(strip_data(trace, 1, router=2)))
    low, high = data["k"]
    assert high == ""
    assert (unpack(low, np.uint32) == trace.arrays["key_bits"][1, 2]).all()
    assert (data["window"], data["sinks"], data["count"]) == (16, 2, len(trace))
    change = unpack(data["change"], np.float32)
    assert change[0] == 0
    assert np.allclose(change[1:], trace.arrays["dense_nll"] - trace.arrays["nll"], atol=1e-6)


def test_the_highest_group_survives_its_sign():
    trace = make_trace(LONG)
    trace.arrays["key_bits"][:] = np.int64(-(1 << 63))
    low, high = strip_data(trace, 0)["k"]
    assert not unpack(low, np.uint32).any()
    assert (unpack(high, np.uint32) == 1 << 31).all()
    assert group_shares(trace.arrays["key_bits"][0, 0]) == [[63, 1.0]]


def test_a_native_layer_has_its_own_window_and_no_groups():
    trace = make_trace(LONG, native=[None, 7, None, None])
    data = strip_data(trace, 1)
    assert (data["window"], data["sinks"]) == (7, 0)
    assert "k" not in data
    assert "k" in strip_data(trace, 0)


def test_lost_is_the_dropped_part_of_the_smallest_set_with_ninety_percent():
    trace = make_trace(LONG, window=8, sinks=1, query_topk=1)
    for query, head, router in [(100, None, 1), (77, 3, 0), (0, None, 0)]:
        lost = lost_keys(trace, 1, query, head, router)
        heads = [2, 3] if head is None and router == 1 else [0, 1] if head is None else [head]
        mass = np.mean([trace.dense_mass(1, query, [h]) for h in heads], axis=0)
        kept = trace.pattern(1).tile(0, heads[0], slice(query, query + 1), slice(0, query + 1))[0]
        core, total = [], 0.0
        for key in np.argsort(-mass, kind="stable"):
            if total >= 0.9:
                break
            core.append(key)
            total += mass[key]
        assert lost.keys.tolist() == [k for k in core if not kept[k]]
        assert lost.share == pytest.approx(mass[~kept].sum())
        assert lost.lost_share <= lost.share + 1e-9
    assert lost_keys(trace, 0, 10) is None


def test_only_the_first_tokens_are_drawn_and_lost_keys_beyond_are_left_out():
    trace = make_trace(LONG, window=8, sinks=1, query_topk=1)
    data = strip_data(trace, 1, limit=40, lost=lost_keys(trace, 1, 100))
    assert data["count"] == 40
    assert data["total"] == len(trace)
    assert max(data["lost"]["keys"], default=0) < 40


def test_styles_have_a_colour_and_a_letter_for_each_group():
    rules = css()
    for i in range(16):
        assert f".c.g{i}{{" in rules
    assert all(f"%3E{letter}%3C" in rules for letter in "ABCDEFGHIJKLMNOP")


def test_bars_escape_tokens():
    html = _row(Bar("<script>alert('x')</script>\"", "1", 0.5, "lost", "<i>"), 1.0)
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "<i>" not in html.split("class='n'")[1]
