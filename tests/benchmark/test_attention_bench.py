"""The kernel benchmark: its rows, what it refuses, and that a wrong result would show."""

import dataclasses

import pytest
import torch

from focus_core.benchmark import attention
from focus_core.benchmark.attention import bench, max_error
from focus_core.benchmark.inputs import balanced_sets, call_of, random_inputs
from focus_core.errors import Cancelled, InvalidInput, TooLarge
from focus_core.variants import make

SMALL = {"heads": 4, "kv_heads": 2, "head_dim": 16, "repeats": 2}
FIELDS = {
    *("variant", "config", "backend", "dtype", "device", "length", "phase", "ms", "ms_p10", "ms_p90", "select_ms"),
    *("baseline", "baseline_ms", "speedup", "kept_pairs", "pair_limit", "peak_mb", "max_error"),
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_rows_are_what_the_command_line_promises():
    seen = []
    variants = [make(n, s) for n, s in (("focus", {"window": 16}), ("window", {"window": 16}), ("dense", {}))]
    rows = bench(variants, [64, 700], **SMALL, on_row=seen.append)
    assert rows == seen
    assert [(r["length"], r["variant"]) for r in rows] == [(n, v.name) for n in (64, 700) for v in variants]
    for row in rows:
        assert set(row) >= FIELDS
        assert row["ms_p10"] <= row["ms"] <= row["ms_p90"]
        assert row["baseline"] == "sdpa"
        assert row["speedup_p10"] <= row["speedup"] <= row["speedup_p90"]
        assert row["pair_limit"] == pytest.approx(1 / row["kept_pairs"])
        assert 0 < row["max_error"] < 1e-5
        assert row["peak_mb"] > 0
        assert row["phase"] == "prefill"
    long = rows[3]
    assert (long["backend"], long["select_ms"] > 0) == ("cpu", True)
    assert 1 / 16 < long["kept_pairs"] < 0.16
    assert rows[5]["kept_pairs"] == 1


def test_decode_has_one_query():
    for row in bench([make("focus"), make("random")], [300], phase="decode", **SMALL):
        assert row["phase"] == "decode"
        assert row["kept_pairs"] < 0.7
        assert row["max_error"] < 1e-5


def test_a_named_backend_and_type_are_used():
    (row,) = bench([make("focus")], [200], backend="reference", dtype="bfloat16", batch=2, **SMALL)
    assert (row["backend"], row["dtype"], row["batch"]) == ("reference", "bfloat16", 2)
    assert row["config"]["backend"] == "reference"
    assert row["max_error"] < 0.05


def test_a_wrong_result_shows_as_error():
    inputs = random_inputs(1, 4, 2, 16, 300, torch.float32, "cpu")
    variant = make("focus", {"window": 16})
    call = call_of(variant, inputs, "prefill")
    right = variant.attend(call)
    assert max_error(call, variant.pattern(call), right) < 1e-5
    narrower = dataclasses.replace(variant, sinks=0)
    assert max_error(call, narrower.pattern(call), right) > 1e-3


def test_balanced_sets():
    for groups, members in ((16, 1), (16, 4), (64, 3), (1, 1)):
        sets = balanced_sets((2, 3, 320), groups, members, seed=0)
        flags = (sets[..., None] >> torch.arange(groups)) & 1
        assert bool((flags.sum(-1) == members).all())
        if members == 1:
            assert bool((flags.sum(2) == 320 // groups).all())
    assert not torch.equal(balanced_sets((1, 1, 320), 16, 1, 1), balanced_sets((1, 1, 320), 16, 1, 2))


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"phase": "both"}, InvalidInput, "no phase"),
        ({"repeats": 0}, InvalidInput, "0 repeats"),
        ({"dtype": "int64"}, InvalidInput, "no float type"),
        ({"backend": "reference", "lengths": [9000]}, TooLarge, "9000 x 9000"),
        ({"backend": "reference", "variants": [make("sfa"), make("mla")]}, InvalidInput, "sfa, mla has no choice"),
        ({"lengths": [64, 1 << 50]}, TooLarge, "of 1,125,899,906,842,624 tokens take .* GB are free on cpu"),
        ({"variants": [make("focus", {"gate": "soft"})]}, InvalidInput, "not a served mask"),
    ],
)
def test_refusals(change, error, message):
    arguments = {"variants": [make("focus")], "lengths": [32], **SMALL, **change}
    with pytest.raises(error, match=message):
        bench(arguments.pop("variants"), arguments.pop("lengths"), **arguments)


def test_cancel_keeps_the_rows_so_far():
    rows = []
    with pytest.raises(Cancelled):
        bench([make("window")], [32, 64, 96], **SMALL, on_row=rows.append, cancel=lambda: len(rows) == 2)
    assert [r["length"] for r in rows] == [32, 64]


def test_activations_of_a_model(monkeypatch):
    seen = []

    def inputs(name, text, length, device, dtype):
        seen.append((name, text, length))
        return random_inputs(1, 4, 2, 8, length, dtype, device)

    monkeypatch.setattr(attention, "model_inputs", inputs)
    (row,) = bench([make("focus")], [150], activations="some-model", text="words", repeats=1)
    assert seen == [("some-model", "words", 150)]
    assert (row["activations"], row["heads"], row["head_dim"]) == ("some-model", 4, 8)
