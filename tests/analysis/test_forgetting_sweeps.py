"""Sweeps of LoRA and of full fine-tuning: their names, who stands for them, and the picture of gain against loss."""

import math

import pytest

from analysis import forgetting as words
from analysis.forgetting_arms import arm_label, family, mark, swept, telling
from analysis.forgetting_figures import gain_and_loss
from analysis.forgetting_frontier import frontier
from analysis.forgetting_losses import PANELS, other_texts
from data.build import forgetting_table
from focus_core.assets import DATA
from tests.probe_documents import documents
from tests.probe_sweeps import SWEEP, made, sweeps


@pytest.fixture(scope="module")
def found():
    return words.arms(sweeps())


def test_every_arm_has_a_name_of_its_own_and_the_best_stands_for_its_sweep(found):
    _, others = found
    assert len({arm_label(d) for d in others}) == len(others) == len(SWEEP) + 2
    assert arm_label(made("lora-r32-0.003")) == "LoRA r=32, rate 0.003"
    assert [family(made(name)) for name in ("full-1e-05", "focus-full-3e-05")] == ["full", "focus-full"]
    assert mark(made("lora-r32-0.003")) == "r=32"
    assert mark(made("lora-r8-0.01")) == "0.01"
    assert [arm_label(d) for d in telling(others)] == [
        "Focus K=16 q4k1 (smollm2-directed-k16)",
        "LoRA r=32, rate 0.003",
        "all weights, rate 3e-05",
        "all weights through Focus, rate 3e-05",
    ]
    said = words.answer(*found)
    assert said.startswith("Focus K=16 q4k1 lowers")
    assert "; all weights, rate 3e-05 lowers" in said
    assert "through Focus" not in said
    assert swept(others)
    assert not swept(documents()[1:])


def test_the_frontier_joins_rates_and_leaves_other_ranks_alone(found):
    figure = frontier(*found)
    traces = {(t.legendgroup, len(t.x)): t for t in figure.data[: len(figure.data) // len(PANELS)]}
    # The shipped LoRA names no rate here, and stands alone.
    assert set(traces) == {("focus", 1), ("lora", 3), ("lora", 1), ("full", 2), ("focus-full", 1)}
    rates = traces["lora", 3]
    assert list(rates.text) == ["0.0003", "0.001", "0.01"]
    assert rates.x[1] == pytest.approx(100 * (1 - math.exp(-0.12)))
    assert rates.y[1] == pytest.approx(100 * (1 - math.exp(0.06)))
    assert traces["lora", 1].marker.symbol.endswith("-open")
    # Rates are named in one panel alone, where they do not lie upon each other.
    assert ["text" in t.mode for t in figure.data] == [t.xaxis == "x" for t in figure.data]
    shown = [t.legendgroup for t in figure.data if t.showlegend]
    assert sorted(shown) == sorted(set(shown))
    assert frontier(None, []).layout.annotations


def test_the_error_of_several_texts_is_that_of_their_mean(found):
    dense, _ = found
    loss = other_texts(dense, made("full-1e-05"))
    half = words.students(2) * 0.004 / math.sqrt(4)
    assert loss.change == pytest.approx(1 - math.exp(0.05))
    assert loss.low == pytest.approx(1 - math.exp(0.05 + half))
    needles = PANELS["Needles, all lengths"][1](dense, made("focus-full-3e-05"))
    assert needles.high < 0
    assert PANELS["Instructions"][1]({**dense, "rows": []}, dense) is None


def test_hashes_say_which_weights_computed(found):
    rows = {row["Arm"]: row for row in words.hashes(*found)}
    assert rows["all weights, rate 1e-05"]["Computed with"] == "b2b2b2b2b2b2, trained"
    assert rows["dense"]["Computed with"] == "its own"
    assert len({row["Taken out"] for row in rows.values()}) == 1


def test_looks_tell_the_families_apart(found):
    dense, others = found
    figure = gain_and_loss(dense, telling(others))
    assert len({(t.marker.color, str(t.marker.symbol[0]).removesuffix("-open")) for t in figure.data}) == 4
    # The arms of one ability stand nearer to it than to the next.
    assert all(abs(y - round(y)) < 0.4 for trace in figure.data for y in trace.y)


def test_only_the_models_own_weights_are_dense_where_all_attention_is(found):
    dense, others = found
    through = next(one for one in others if family(one) == "focus-full")
    short = next(c for c in words.changes(dense, through) if c.measure.key == ("pairs", "all", words.BARE))
    # Older records said it of trained weights too.
    row = next(row for row in through["rows"] if (row["task"], row["part"], row["where"]) == short.measure.key)
    assert row["dense_by_definition"]
    assert not short.by_definition
    focus = words.changes(dense, others[0])
    assert next(c for c in focus if c.measure.key == short.measure.key).by_definition


def test_the_page_of_results_tells_what_is_recorded(found, tmp_path):
    page = (DATA.parent / forgetting_table.PAGE).read_text("utf-8")
    dense, others = words.arms(forgetting_table.documents(DATA.parent / forgetting_table.RESULTS))
    assert forgetting_table.section(dense, others) in page
    section = forgetting_table.section(*found)
    assert section.count("\n| ") == 2 + len(found[1])
    assert "| LoRA r=8, rate 0.001 | 460,800 | -11.3 % | +6.18 %" in section
    assert "b2b2b2b2 (all weights, rate 1e-05)" in section
    assert "0.82 million tokens" in section
    assert "NOT keep" in forgetting_table.section({**dense, "weights": {**dense["weights"], "same": False}}, others)
