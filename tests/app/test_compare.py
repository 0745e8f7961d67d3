from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from focus_core import assets
from focus_core.errors import InvalidInput
from tests.app import fake_compare
from tests.app.opening import compare, engine, open_compare, said
from tests.comparisons import comparison, dense, row


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Open the page with the fake engine and an empty folder of recorded results."""
    with compare(monkeypatch, tmp_path) as open_page:

        def measure(**environment: str) -> AppTest:
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            return open_page(compare_view="Measure")

        yield measure


def figure(at: AppTest, key: str) -> dict:
    chart = next(c for c in at.get("plotly_chart") if key in c.proto.id)
    return json.loads(chart.proto.spec)


def run(at: AppTest) -> AppTest:
    return at.button(key="compare_run").click().run()


def test_the_first_paint_asks_a_question_offers_a_run_and_is_never_blank(start):
    at = start()
    assert not at.exception
    assert at.title[0].value == "What does it cost, what does it save?"
    assert "Run a comparison to see" in said(at)
    assert figure(at, "compare_frontier")["layout"]["annotations"][0]["text"].startswith("Nothing measured yet")
    assert at.button(key="compare_run").label.startswith("Run")
    assert "About 1.0 s" in said(at)
    assert [e.label.split(":")[0] for e in at.expander] == ["What am I looking at?", "Not on this model"]


def test_a_run_answers_in_numbers_with_badges_and_says_who_loses(start):
    at = run(start())
    assert not at.exception
    words = said(at)
    assert "On this text at 1,024 tokens, Focus K=16 q4k1 keeps 30.0 % of the pairs, takes 1.06× dense's time" in words
    assert "loses on both" in words
    table = at.dataframe[0].value
    assert set(table["Tokens"]) == {256, 512, 1024}
    assert list(table["Variant"][:2]) == ["dense", "Focus K=16 q4k1"]
    assert "slower than dense" in table["Badges"][1]
    names = [t.get("name") for t in figure(at, "compare_frontier")["data"]]
    assert names[:2] == ["dense", "Focus K=16 q4k1"]
    assert at.button(key="compare_run").label.startswith("Run again")


def test_the_request_names_text_variants_lengths_and_adapters(start):
    run(start())
    kind, request = next(r for r in engine().submitted if r[0] == "compare")
    assert kind == "compare"
    assert request["text_name"] == assets.text_names("passage")[0]
    assert request["text"] is None
    assert request["lengths"] == [256, 512, 1024]
    assert [e["variant"] for e in request["entries"]] == ["focus", "focus", "window", "random"]
    assert [e["config"].get("query_topk") for e in request["entries"][:2]] == [4, 1]
    assert request["entries"][0]["adapter"] == "directed-k16"


def test_running_again_asks_for_a_new_measurement(start):
    at = run(run(start()))
    asked = [r for k, r in engine().submitted if k == "compare"]
    assert len(asked) == 2
    assert asked[1]["again"] == 1
    assert "earlier settings" not in said(at)


def test_lengths_beyond_the_text_are_a_sentence_with_buttons_that_work(start):
    at = start()
    at.session_state["compare_lengths"] = [512, 4096]
    at.run()
    assert "The text has 1,142 tokens and 4,096 were asked for." in said(at)
    assert not [b for b in at.button if b.key == "compare_run"]
    at.button(key="compare_way_fit").click().run()
    assert at.session_state["compare_lengths"] == [512]
    assert at.button(key="compare_run").label.startswith("Run")
    at.session_state["compare_lengths"] = [512, 4096]
    at.run()
    at.button(key="compare_way_novel").click().run()
    run(at)
    assert next(r for k, r in engine().submitted if k == "compare")["text_name"] == "persuasion"


def test_a_stopped_run_keeps_its_rows_and_marks_them(start):
    at = run(start(FAKE_SECONDS="60", FAKE_ROWS="2"))
    assert len(at.dataframe[0].value) == 2
    job_id = next(i for i, j in engine().jobs.items() if j.kind == "compare")
    engine().cancel(job_id)
    at.run()
    assert not at.exception
    words = said(at)
    assert "The comparison was cancelled" in words
    assert len(at.dataframe[0].value) == 2
    assert "Focus K=16 q4k1 keeps" in words


def test_a_worker_that_dies_leaves_a_sentence_the_rows_and_a_way_on(start):
    at = run(start(FAKE_SECONDS="60", FAKE_ROWS="2"))
    job = next(j for j in engine().jobs.values() if j.kind == "compare")
    job.error = InvalidInput("The worker ended in the middle of the run.", "Run it again.")
    at.run()
    assert not at.exception
    assert "The worker ended in the middle of the run." in said(at)
    assert "partial" in said(at)
    assert len(at.dataframe[0].value) == 2
    assert at.button(key="compare_way_shorter").label == "Leave out 1,024 tokens"
    assert at.button(key="compare_run").label.startswith("Run")


def test_a_text_inside_the_window_is_said_to_be_dense(start, tmp_path):
    rows = [dense(128), row("window", "window 128 + 4", 128, dense_by_definition=True)]
    document = {"about": comparison()["about"], "rows": rows, "complete": True}
    (tmp_path / "compare-x.json").write_text(json.dumps(document))
    words = said(start())
    assert "At 128 tokens the window and the first tokens reach everything" in words
    assert "too short to judge" in words


def test_the_picture_follows_the_longest_length_until_one_is_picked(start):
    at = run(start(FAKE_SECONDS="60", FAKE_ROWS="10"))
    assert at.session_state["compare_at"] == 512
    job = next(j for j in engine().jobs.values() if j.kind == "compare")
    job.takes = 0
    at.run()
    assert at.session_state["compare_at"] == 1024
    picker = next(c for c in at.segmented_control if c.key == "compare_at")
    picker.set_value(256).run()
    at.run()
    assert at.session_state["compare_at"] == 256


def test_changed_choices_leave_the_last_result_standing_and_say_so(start):
    at = run(start())
    at.session_state["compare_lengths"] = [256]
    at.run()
    assert len(at.dataframe[0].value) == 15
    assert "earlier settings" in said(at)


def test_no_variant_or_no_length_is_a_sentence(start):
    at = start()
    at.session_state["compare_lines"] = []
    at.run()
    assert "Choose a variant and a length." in said(at)
    assert at.button(key="compare_run").disabled


def test_recorded_results_are_the_first_paint_with_where_and_when(start, tmp_path):
    document = comparison()
    document["about"] |= {"text": "persuasion", "command": "python -m data.build.comparisons"}
    (tmp_path / "compare-smollm2-cpu.json").write_text(json.dumps(document))
    evaluation = {
        "model": "smollm2",
        "variant": "focus",
        "config": {"query_topk": 4},
        "ppl": 33.4,
        "nll_diff": -0.003,
        "nll_se": 0.001,
        "kept_pairs": 0.31,
        "tokens": 100_000,
        "context": 4096,
        "text": "persuasion",
        "environment": {"device": "NVIDIA H200", "time": "2026-11-20T00:00:00"},
    }
    (tmp_path / "eval-focus.json").write_text(json.dumps(evaluation))
    (tmp_path / "broken.json").write_text("{")
    at = start()
    assert not at.exception
    words = said(at)
    assert "On the recorded text at 2,048 tokens" in words
    assert "recorded" in words
    assert "a laptop's CPU, persuasion, 2026-11-29" in words
    other = said(open_compare(compare_view="Measure", model="gpt2-novels"))
    assert "#### SmolLM2-135M-Instruct: On the recorded text at 2,048 tokens" in other
    assert "Shown is SmolLM2-135M-Instruct, not GPT-2 novels, 3.7 M weights: press Run" in other
    assert "Shown is" not in words
    at.session_state["compare_by"] = "pairs"
    at.run()
    squares = [t for t in figure(at, "compare_frontier")["data"] if t["marker"].get("symbol") == "square-open"]
    assert len(squares) == 1
    assert "NVIDIA H200" in squares[0]["hovertemplate"]


def test_the_gates_go_from_the_papers_to_the_served_one_with_their_badges(start):
    at = start()
    at.button(key="gates_run").click().run()
    assert not at.exception
    request = [r for k, r in engine().submitted if k == "compare"][-1]
    gates = [(e["config"]["gate"], e["adapter"]) for e in request["entries"]]
    assert gates[0] == ("paper", "paper-k16")
    assert gates[-1] == ("hard", "directed-k16")
    assert [g for g, _ in gates[1:-1]] == ["soft"] * 4
    assert "served" in said(at)
    slider = at.select_slider[0]
    assert slider.value == "hard (served)"
    slider.set_value("paper's soft").run()
    words = said(at)
    assert "paper's soft" in words
    assert "leaks" in words
    assert "not served" in words


def test_comparing_again_leaves_the_gates_as_measured(start):
    at = start()
    at.button(key="gates_run").click().run()
    assert run(at).button(key="compare_run").label == "Run again"
    run(at)
    assert [r.get("again") for k, r in engine().submitted if k == "compare"] == [None, None, 1]
    assert not [b for b in at.button if b.key == "gates_run"]


def test_gates_that_have_arrived_are_drawn_before_the_run_ends(start):
    at = start(FAKE_SECONDS="60", FAKE_ROWS="3")
    at.button(key="gates_run").click().run()
    assert not at.exception
    assert at.select_slider[0].options == ["paper's soft", "soft 1"]
    job = next(j for j in engine().jobs.values() if j.kind == "compare")
    job.partial.append({"row": fake_compare.result_of(job.request)["rows"][-1]})
    at.run()
    assert at.select_slider[0].options == ["paper's soft", "soft 1", "hard (served)"]


def test_a_new_row_draws_the_page_again(monkeypatch):
    from app.ui import measurement

    drawn = []
    monkeypatch.setattr(measurement.st, "rerun", lambda: drawn.append(True))
    jobs = fake_compare.CompareEngine(None, 60)
    job = jobs.submit("compare", {"text_name": "persuasion", "lengths": [256], "entries": []})
    seen = len(job.partial)
    measurement._when_more(jobs, job.id, seen)
    assert not drawn
    job.partial.append({})
    measurement._when_more(jobs, job.id, seen)
    assert drawn


def test_a_model_without_trained_groups_says_so_and_still_compares_the_controls(start, monkeypatch):
    at = start()
    monkeypatch.setattr(assets, "adapters", dict)
    at = open_compare(compare_view="Measure")
    assert "none ship for this model" in said(at)
    assert set(at.session_state["compare_lines"]) == {"window", "random"}


def test_what_was_left_out_is_said(start, tmp_path):
    document = {"about": {**comparison()["about"]}, "rows": [dense(512), row(length=512)], "complete": True}
    document["about"]["refused"] = [{"label": "slim", "reason": "Slim needs one KV head a query head.", "hint": ""}]
    (tmp_path / "compare-x.json").write_text(json.dumps(document))
    assert "slim was left out: Slim needs one KV head a query head." in said(start())


def test_a_link_brings_back_the_choices_and_the_comparison_and_says_what_does_not_exist(start):
    at = start()
    at.pills(key="compare_lengths").set_value([256, 1024]).run()
    at.segmented_control(key="compare_repeats").set_value(3).run()
    at = run(at)
    link = dict(at.query_params)
    assert link["compare_lengths"] == "256,1024"
    assert link["compare_repeats"] == "3"
    again = open_compare(**{**link, "compare_lengths": "256,1024,77"})
    assert again.pills(key="compare_lengths").value == [256, 1024]
    assert again.segmented_control(key="compare_repeats").value == 3
    assert "live" in said(again) + str([b.proto for b in again.get("badge")])
    assert again.button(key="compare_run").label.startswith("Run again")
    assert "length 77 does not exist" in said(again)


def test_a_comparison_that_is_gone_is_said(start):
    start()
    at = open_compare(compare_run="0" * 32)
    assert "The comparison 000000000000 of the link is not on this machine" in said(at)
