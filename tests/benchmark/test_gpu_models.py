"""The whole-model measurement, on a tiny model and a CPU: what a row says, and that its checks can fail."""

import time

import pytest
import torch

from benchmarks import gpu_model_runs
from benchmarks.gpu_model_compile import CHECKS, LINES, XATTENTION, compile_line
from benchmarks.gpu_model_graphs import DENSE, NEW, PHASE, graph_checks
from benchmarks.gpu_model_lines import dense_line, llama_shape, stretched
from benchmarks.gpu_model_runs import FIRST, Runner, checks, shortened
from benchmarks.gpu_models import measure, sources
from focus_core.steps import StepLayer
from focus_core.variants.base import Prepared
from tests.tiny import tiny_model

SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 300, "head_dim": 16, "initializer_range": 0.125}
KERNELS = ("torch", "torch")


@pytest.fixture(scope="module")
def runner():
    return Runner(llama_shape([192, 320], "cpu", KERNELS, SIZES), steps=3)


def test_rows_have_the_whole_and_attention_alone(runner):
    told = []
    first, rows = measure(runner, 320, repeats=2, tell=told.append)
    assert [row["ms"]["n"] for row in first[:3]] == [1, 1, 1]
    assert any("320 tokens, dense: repeat 2" in one for one in told)
    assert [(row["phase"], row["line"]) for row in rows] == [
        (phase, line) for phase in ("prefill", "decode") for line in ("dense", "Focus K=16 q1k1", "Focus K=16 q4k1")
    ]
    for row in rows:
        assert row["tokens"] == 320
        assert row["dim"] == 16
        assert 0 < row["attention_ms"]["median"] < row["ms"]["median"]
        assert 0 < row["attention_share"] < 1
        assert row["baseline"] == "torch"
        if row["phase"] == "decode":
            assert row["ms"]["n"] == 2 * (3 - FIRST)
            assert 0 < row["append_ms"]["median"] < row["ms"]["median"]
            assert row["cache_gb"] > 0
    dense, once, more = rows[:3]
    assert dense["speedup"] == dense["attention_speedup"] == 1
    assert 1 < more["pair_limit"] < once["pair_limit"]
    assert "untrained" in once["routing"]


def test_steps_in_a_cache_with_room_are_rows_of_their_own(runner):
    with_graphs = Runner(runner.subject, steps=3, graphs=True)
    *_, rows = measure(with_graphs, 192, repeats=2)
    found = [row for row in rows if row["phase"] == PHASE]
    assert [row["line"] for row in found] == ["dense", "Focus K=16 q1k1", "Focus K=16 q4k1"]
    for row in found:
        # A CPU has no graphs: the rows say so.
        assert row["cuda_graph"] is False
        assert row["baseline"] in DENSE
        assert row["ms"]["n"] == 2 * 3
        assert row["attention_ms"]["n"] == row["without_attention_ms"]["n"] == 2
        assert "refused" not in row
    assert set(found[0]["kernels_ms"]) == set(DENSE)
    assert found[0]["speedup"] == 1
    assert found[1]["pair_limit"] > 1


def test_graphs_are_checked_against_generation_without(runner, monkeypatch):
    subject = runner.subject
    given = subject.model, subject.ids, subject.lines, subject.name, 1e-6
    found = graph_checks(*given)
    assert [row["line"] for row in found] == ["dense", "Focus K=16 q1k1", "Focus K=16 q4k1"]
    assert all(row["good"] and row["first_other_token"] == NEW for row in found), found

    def forgotten(self, key_states, value_states, *args, **kwargs):
        stop = self.steps.count + 1
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    monkeypatch.setattr(StepLayer, "update", forgotten)
    assert not any(row["good"] for row in graph_checks(*given))


def test_the_first_repeat_runs_and_no_later_one_that_would_end_too_late(runner):
    told = []
    assert len(list(measure(runner, 192, repeats=2, until=time.perf_counter() + 600, tell=told.append))) == 2
    (rows,) = measure(runner, 192, repeats=2, until=time.perf_counter(), tell=told.append)
    assert rows[0]["repeats"] == 1
    assert told[-1] == "no time for repeat 2"


def test_balanced_groups_stand_for_the_routers(runner):
    variant = runner.subject.lines[1].variant
    sets = variant.sets(torch.arange(320)[None])
    assert sets.cached.shape == (1, 2, 320)
    counts = torch.stack([(sets.cached[0, 0] == 1 << group).sum() for group in range(16)])
    assert counts.sum() == 320
    assert counts.max() < 3 * 320 / 16
    torch.testing.assert_close(variant.sets(torch.tensor([[7]])).cached, sets.cached[..., 7:8])


def test_every_pair_kept_is_dense_attention(runner, monkeypatch):
    found = checks(runner, KERNELS)
    assert [row["decoded"] for row in found] == [0, 4]
    assert all(row["good"] for row in found), found

    def nothing(self, hidden, layer, positions, adapter, first_key):
        sets = torch.zeros(1, 1, hidden.shape[1], dtype=torch.int64)
        return Prepared(sets, sets)

    monkeypatch.setattr(gpu_model_runs._OneGroup, "prepare", nothing)
    assert not any(row["good"] for row in checks(runner, KERNELS))


def test_the_model_is_left_as_it_was(runner):
    model, ids = runner.subject.model, runner.subject.ids[:, :40]
    before = model.config._attn_implementation
    with torch.no_grad():
        wanted = model(ids).logits
        with dense_line(KERNELS).inside(model, runner.watch):
            torch.testing.assert_close(model(ids).logits, wanted)
        assert model.config._attn_implementation == before
        with shortened(model, 1):
            runner.run(runner.subject.lines[1], 192)
        assert len(model.model.layers) == model.config.num_hidden_layers == 2
        torch.testing.assert_close(model(ids).logits, wanted)


@pytest.mark.parametrize("line", LINES["smollm2"])
def test_every_line_is_compiled_before(line):
    said = compile_line(("smollm2", line, [192, 320], KERNELS), "cpu", SIZES)
    assert " compiled in " in said, said
    assert str({0: "dense", CHECKS: CHECKS, XATTENTION: "stride 16"}.get(line, "K=16")) in said


def test_positions_are_scaled_past_what_the_model_was_trained_on():
    model = tiny_model("llama", layers=1, max_position_embeddings=64)
    ids = torch.arange(48)[None]
    before = model(ids).logits
    assert stretched(model, 48) == "as trained"
    torch.testing.assert_close(model(ids).logits, before)
    assert stretched(model, 100) == "trained on 64, scaled 2x by YaRN"
    assert stretched(model, 200) == "trained on 64, scaled 4x by YaRN"
    assert model.config.max_position_embeddings == 256
    assert not torch.allclose(model(ids).logits, before)


def test_the_kernels_sources_are_named():
    assert "focus_core/kernels/focus/triton" in sources()
