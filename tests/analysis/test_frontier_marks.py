"""The recorded frontier: marks from results, who stands best, and the picture of pairs kept against perplexity."""

import math

import pytest

from analysis.frontier_figure import EMPTY, plane
from analysis.frontier_marks import answer, marks, of

FOCUS = {"groups": 16, "query_topk": 2, "key_topk": 1, "window": 128, "sinks": 4}


def result(line: str, variant: str, kept: float, change: float, config: dict | None = None, **fields) -> dict:
    """A result as ``eval`` writes it, of a plan's line."""
    text, context = fields.get("text", "persuasion"), fields.get("context", 4096)
    stem = text.rpartition("/")[2].removesuffix(".txt").replace(" ", "-")
    return {
        "file": f"frontier-{line}-{stem}-{context}.json",
        "model": "smollm2",
        "variant": variant,
        "config": config or {},
        "kept_pairs": kept,
        "nll_diff": math.log1p(change),
        "nll_se": 0.005,
        "ppl": 30.0 * (1 + change),
        "dense_ppl": 30.0,
        "windows": 10,
        "context": context,
        "text": text,
        "dtype": "bfloat16",
        "environment": {"device": "NVIDIA H200", "time": "2026-11-30T15:40:00+00:00"},
        "command": f"python -m focus_core eval --variant {variant}",
        **fields,
    }


def focus(**fields) -> dict:
    asked = "python -m focus_core eval --variant focus --adapter smollm2-directed-k16 --text persuasion"
    return result("shipped-directed-k16-q2", "focus", 0.18, -0.01, FOCUS, **{"command": asked, **fields})


def window(change: float = 0.07, kept: float = 0.24, **fields) -> dict:
    return result("window-512", "window", kept, change, {"window": 512, "sinks": 4}, **fields)


def test_a_mark_has_its_method_name_and_adapter():
    near, one = sorted(marks([focus(), window()]), key=lambda mark: mark.kept, reverse=True)
    assert (one.method, one.name, one.adapter) == ("focus", "Focus, 2 groups a query", "smollm2-directed-k16")
    assert (near.method, near.name, near.adapter, near.line) == ("window", "Window of 512", "", "window-512")
    assert one.change == pytest.approx(-0.01)
    assert one.settings().startswith("16 groups, a query looks into 2")


def test_a_table_is_no_number_for_all_and_shared_routers_are_their_own():
    table = focus(file="frontier-directed-k16-looks-persuasion-4096.json", command="x --adapter build/looks")
    shared = focus(file="frontier-shared-k8-persuasion-4096.json", command="x --adapter smollm2-shared-k8")
    found = {mark.method: mark for mark in marks([table, shared])}
    assert "looks into" not in found["tables"].settings()
    assert found["tables"].adapter == "looks"
    assert found["shared"].name == "Focus, one router a layer, K=16"


def test_a_line_without_words_of_its_own_shows_by_its_files_name():
    [one] = marks([result("new-thing", "performer", 0.3, 0.1)])
    assert (one.name, one.method) == ("new-thing", "performer")
    assert plane([one], "persuasion", 4096).data[0].name == "performer"


def test_two_formats_are_one_mark_and_few_windows_have_no_error():
    full = focus(file="frontier-shipped-directed-k16-q2-persuasion-4096-float32.json", dtype="float32", nll_diff=0.5)
    [one] = marks([focus(), full])
    assert one.document["dtype"] == "bfloat16"
    brown = marks([window(text="brown fiction", windows=2), window(context=8192, windows=1, nll_se=None)])
    assert [mark.error for mark in brown] == [None, None]
    assert {mark.text for mark in brown} == {"brown-fiction", "persuasion"}
    assert "±" not in brown[0].changed()
    assert all(trace.error_y.array is None for trace in plane(brown, "brown-fiction", 4096).data)


def test_what_cannot_be_read_is_left_aside():
    assert marks([{"file": "frontier-x.json"}, {**window(), "nll_diff": None}]) == []


def test_the_answer_names_the_better_side_first_whichever_it_is():
    ours = answer(marks([focus(), window()]), "persuasion", 4096)
    assert ours == (
        "Held-out novel, 4,096 tokens, at most a quarter of the pairs: best is Focus, 2 groups a query, −1.00 % "
        "perplexity with 18.0 % of the pairs; the best of the others is Window of 512, +7.00 % perplexity with 24.0 % "
        "of the pairs."
    )
    theirs = answer(marks([focus(nll_diff=0.3), window()]), "persuasion", 4096)
    assert "best is Window of 512" in theirs
    assert "the best of Focus is 2 groups a query, +35.0 %" in theirs
    assert "nothing is recorded to compare" in answer(marks([focus(), window(kept=0.44)]), "persuasion", 4096)
    assert answer(marks([focus()]), "python_code", 4096) == "Code, 4,096 tokens: nothing is recorded."


def test_the_picture_has_a_trace_a_method_with_spread_and_dense_at_zero():
    figure = plane(marks([focus(), window(), window(0.12, 0.12, file="frontier-window-256-persuasion-4096.json")]),
                   "persuasion", 4096)  # fmt: skip
    ours, near = figure.data
    assert (ours.name, near.name) == ("Focus, shipped router", "Window")
    assert list(near.x) == pytest.approx([12.0, 24.0])
    assert list(near.y) == pytest.approx([12.0, 7.0])
    assert near.mode == "lines+markers"
    assert ours.error_y.array[0] == pytest.approx(0.5 * 0.99)
    assert ours.marker.symbol != near.marker.symbol
    assert ours.marker.color != near.marker.color
    shaded, zero, aim = figure.layout.shapes
    assert (shaded.y0, zero.y0, zero.y1, aim.x0) == (0, 0, 0, 20.0)
    assert shaded.y1 > 12
    low, high = figure.layout.yaxis.range
    assert low < -1.5
    assert high > 12.5


def test_a_hover_names_adapter_settings_card_day_and_command():
    [one] = plane(marks([focus()]), "persuasion", 4096).data
    told = one.customdata[0][1]
    for part in (
        "adapter: smollm2-directed-k16",
        "16 groups",
        "NVIDIA H200, 2026-11-30",
        "focus_core eval",
        "± 0.50 %",
    ):
        assert part in told
    [escaped] = plane(marks([focus(command="<b> --adapter '<i>'")]), "persuasion", 4096).data
    assert "<i>" not in escaped.customdata[0][1]


def test_every_method_has_a_look_of_its_own():
    from analysis.frontier_figure import _SYMBOLS
    from analysis.frontier_marks import METHODS

    assert set(_SYMBOLS) == set(METHODS)
    assert len(set(_SYMBOLS.values())) == len(METHODS)


def test_nothing_recorded_is_a_sentence():
    assert plane([], "persuasion", 4096).layout.annotations[0].text == EMPTY
    assert of(marks([focus()]), "persuasion", 1024) == []
