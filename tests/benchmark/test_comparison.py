import json
import math
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from focus_core.benchmark.comparison import compare, paired_change
from focus_core.benchmark.prefill import cache_bytes, peak_bytes, prefill, rotated, spread, watched
from focus_core.compat import cache_of
from focus_core.errors import Cancelled, InvalidInput, TooLarge
from focus_core.evaluation.likelihood import token_nll
from focus_core.evaluation.recorders import PairCounter
from focus_core.models.facts import facts_of
from focus_core.retrofit import retrofit
from focus_core.routing.router import Router, RouterConfig
from focus_core.variants import make
from tests.tiny import tiny_model, tiny_tokenizer

TEXT = " ".join(f"the cat {i} and the dog sat on the mat while {7 * i} ran" for i in range(36))
WINDOW = {"variant": "window", "config": {"window": 12}}
RANDOM = {"variant": "random", "config": {"window": 12, "groups": 4}}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def loaded(request):
    model = tiny_model(request.param)
    return SimpleNamespace(model=model, tokenizer=tiny_tokenizer(), facts=facts_of(model), name="tiny")


@pytest.fixture(scope="module")
def result(loaded):
    return compare(loaded, [WINDOW, RANDOM], TEXT, [64, 128], repeats=3)


def of(result, variant, length):
    return next(r for r in result["rows"] if r["variant"] == variant and r["length"] == length)


def test_dense_is_measured_beside_the_others_at_every_length(result):
    assert [(r["variant"], r["length"]) for r in result["rows"]] == [
        (v, n) for n in (64, 128) for v in ("dense", "window", "random")
    ]
    for row in result["rows"]:
        assert row["complete"]
        assert row["ms"]["n"] == row["ratio"]["n"] == row["attention_ms"]["n"] == 3
        assert 0 < row["attention_ms"]["median"] < row["ms"]["median"]
    assert of(result, "dense", 64)["ratio"]["median"] == 1.0
    json.dumps(result, allow_nan=False)


def test_every_line_scores_the_same_tokens_and_its_own_likelihood(result, loaded):
    ids = torch.tensor(loaded.tokenizer(TEXT, add_special_tokens=False)["input_ids"])
    for length in (64, 128):
        count = min(4, len(ids) // length)
        batch = ids[: count * length].view(count, length)
        dense = token_nll(loaded.model, batch).double().numpy()
        with retrofit(loaded.model, make("window", WINDOW["config"])):
            own = token_nll(loaded.model, batch).double().numpy()
        row = of(result, "window", length)
        assert {r["scored"] for r in result["rows"] if r["length"] == length} == {count * (length - 1)}
        assert row["nll"] == pytest.approx(own.mean(), abs=1e-5)
        assert row["nll_change"] == pytest.approx((own - dense).mean(), abs=1e-5)
        assert row["ppl_change"] == pytest.approx(math.exp((own - dense).mean()) - 1, abs=1e-4)
        assert of(result, "dense", length)["ppl_change"] == 0.0


def test_kept_pairs_are_the_patterns_own_native_layers_included(result, loaded):
    counter = PairCounter()
    ids = torch.tensor(loaded.tokenizer(TEXT, add_special_tokens=False)["input_ids"])[None, :64]
    with retrofit(loaded.model, make("random", RANDOM["config"]), recorder=counter), torch.no_grad():
        loaded.model(ids)
    row = of(result, "random", 64)
    assert row["kept_pairs"] == pytest.approx(np.mean(counter.kept(0)))
    assert row["kept_by_layer"] == pytest.approx(counter.kept(0))
    native = sum(own is not None for own in loaded.facts.native)
    dense = of(result, "dense", 64)["kept_pairs"]
    assert (dense == 1.0) == (native == 0)
    assert result["about"]["native_layers"] == native


def test_progress_moves_within_a_scored_window(loaded):
    seen = []
    compare(loaded, [WINDOW], TEXT, [64], repeats=1, windows=1, progress=lambda f, said: seen.append((f, said)))
    fractions = [f for f, _ in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] <= 1
    dense = [f for f, said in seen if said == "Scoring dense at 64 tokens, window 1 of 1"]
    assert len(dense) == 1 + loaded.facts.layers
    assert len(set(dense)) == len(dense)


def test_measuring_the_peak_prints_nothing_and_keeps_stderr(capfd):
    def run():
        torch.ones(1000, 1000)
        os.write(2, b"own words")

    assert peak_bytes(run, "cpu") == 4_000_000
    assert capfd.readouterr().err == "own words"


def test_the_order_rotates_so_that_nobody_always_goes_first(result):
    for orders in result["about"]["order"].values():
        assert len({order[0] for order in orders}) == 3
        assert all(set(order) == set(orders[0]) for order in orders)
    assert rotated([1, 2, 3], 4) == [2, 3, 1]
    assert rotated([], 1) == []


def test_counted_cost_and_cache_cover_all_layers(result, loaded):
    facts = loaded.facts
    kv = 2 * facts.kv_heads * facts.head_dim * 4 * facts.layers
    dense, groups = of(result, "dense", 128), of(result, "random", 128)
    assert dense["kv_bytes_per_token"] == kv
    full = sum(own is None for own in facts.native)
    assert groups["kv_bytes_per_token"] == kv + 8 * full
    if full == facts.layers:
        assert dense["cache_bytes"] == 128 * kv
        assert groups["cache_bytes"] == 128 * (kv + 8 * full)
        assert dense["operations"] == 4 * facts.heads * facts.head_dim * facts.layers * 128 * 129 / 2
    assert of(result, "window", 128)["operations"] < dense["operations"]
    curve = [t for t in result["about"]["theory"] if t["label"] == of(result, "window", 128)["label"]]
    assert [t["length"] for t in curve] == sorted(t["length"] for t in curve)
    assert {64, 128} <= {t["length"] for t in curve}
    assert curve[-1]["attention"] < curve[0]["attention"]
    assert all(t["attention"] < t["model"] <= 1 for t in curve if t["attention"] < 1)


def test_a_line_that_is_not_served_is_scored_and_never_timed(loaded, tmp_path):
    if any(own is not None for own in loaded.facts.native):
        return
    config = RouterConfig(loaded.facts.layers, loaded.facts.hidden_size, groups=4, form="paper")
    router = Router(config).requires_grad_(False)
    router.serve = {"groups": 4, "window": 8}
    requests = [{"variant": "focus", "config": {"gate": gate}, "adapter": "mine"} for gate in ("hard", "soft", "paper")]
    asked = []
    found = compare(loaded, requests, TEXT, [64], repeats=1, load_adapter=lambda name: asked.append(name) or router)
    rows = {r["config"].get("gate"): r for r in found["rows"]}
    assert asked == ["mine"]
    assert rows["hard"]["served"]
    assert "ms" in rows["hard"]
    assert rows["hard"]["config"]["window"] == 8
    assert rows["hard"]["kept_pairs"] < 1
    for gate in ("soft", "paper"):
        assert not rows[gate]["served"]
        assert rows[gate]["masked_dense"]
        assert rows[gate]["kept_pairs"] == 1.0
        assert not {"ms", "ratio", "peak_bytes"} & rows[gate].keys()
        assert rows[gate]["key"] not in {t["key"] for t in found["about"]["theory"]}
    assert [rows[g]["leaks"] for g in ("hard", "soft", "paper")] == [False, False, True]


def test_cancelling_keeps_what_was_measured(loaded):
    rows = {}

    def keep(part):
        if "row" in part:
            rows[part["row"]["variant"], part["row"]["length"]] = part["row"]

    said = []
    stop = lambda: any(s.startswith("Timing window") and "repeat 2" in s for s in said)  # noqa: E731
    with pytest.raises(Cancelled):
        compare(
            loaded,
            [WINDOW],
            TEXT,
            [64, 128],
            repeats=3,
            partial=keep,
            progress=lambda fraction, message: said.append(message),
            cancel=stop,
        )
    assert set(rows) == {("dense", 64), ("window", 64)}
    assert rows["window", 64]["ms"]["n"] >= 1
    assert not rows["window", 64]["complete"]
    assert rows["dense", 64]["ppl"] > 0


def test_cancelling_while_scoring_keeps_the_lines_before(loaded):
    rows, said = [], []
    with pytest.raises(Cancelled):
        compare(
            loaded,
            [WINDOW],
            TEXT,
            [64],
            partial=lambda part: rows.append(part["row"]) if "row" in part else None,
            progress=lambda fraction, message: said.append((fraction, message)),
            cancel=lambda: any("Scoring window" in message for _, message in said),
        )
    assert [r["variant"] for r in rows] == ["dense"]
    assert not rows[0]["complete"]
    assert all(0 <= fraction < 1 for fraction, _ in said)


def test_progress_rises_and_partial_rows_come_before_the_end(loaded):
    seen, fractions = [], []
    compare(
        loaded, [WINDOW], TEXT, [64], repeats=3, partial=seen.append, progress=lambda f, message: fractions.append(f)
    )
    assert fractions == sorted(fractions)
    assert fractions[-1] < 1
    assert "about" in seen[0]
    states = [(p["row"]["variant"], p["row"].get("ms", {}).get("n")) for p in seen if "row" in p]
    scored = [("dense", None), ("window", None)]
    assert states == [*scored, *(("dense", n) if i else ("window", n) for n in (1, 2, 3) for i in (1, 0))]


def test_what_the_model_cannot_take_is_refused_and_the_rest_runs(loaded):
    found = compare(loaded, [WINDOW, {"variant": "focus", "label": "Focus"}], TEXT, [64], repeats=1)
    assert {r["variant"] for r in found["rows"]} == {"dense", "window"}
    assert [r["label"] for r in found["about"]["refused"]] == ["Focus"]
    assert "needs a trained adapter" in found["about"]["refused"][0]["reason"]


def test_memory_that_runs_out_costs_one_line_and_other_faults_are_not_hidden(monkeypatch):
    model = tiny_model("llama")
    loaded = SimpleNamespace(model=model, tokenizer=tiny_tokenizer(), facts=facts_of(model), name="tiny")
    attend = type(make("window")).attend

    def fail(message):
        def attending(self, call):
            raise RuntimeError(message)

        return attending

    monkeypatch.setattr(type(make("window")), "attend", fail("DefaultCPUAllocator: can't allocate memory"))
    found = compare(loaded, [WINDOW, RANDOM], TEXT, [64], repeats=1)
    assert {r["variant"] for r in found["rows"]} == {"dense", "random"}
    assert found["about"]["refused"][0]["reason"] == "Not enough memory for 64 tokens."
    monkeypatch.setattr(type(make("window")), "attend", fail("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes"):
        compare(loaded, [WINDOW], TEXT, [64], repeats=1)
    monkeypatch.setattr(type(make("window")), "attend", lambda self, call: attend(self, call) * float("nan"))
    found = compare(loaded, [WINDOW], TEXT, [64], repeats=1)
    assert "not finite" in found["about"]["refused"][0]["reason"]


def test_lengths_that_nothing_fills_are_refused_with_numbers(loaded):
    tokens = len(loaded.tokenizer(TEXT, add_special_tokens=False)["input_ids"])
    with pytest.raises(TooLarge, match=f"{tokens:,} tokens and {tokens + 1:,}"):
        compare(loaded, [WINDOW], TEXT, [64, tokens + 1])
    with pytest.raises(TooLarge, match="at most"):
        compare(loaded, [WINDOW], TEXT, [loaded.facts.context + 1])
    with pytest.raises(InvalidInput):
        compare(loaded, [], TEXT, [64])
    with pytest.raises(InvalidInput):
        compare(loaded, [WINDOW], TEXT, [1])
    with pytest.raises(InvalidInput, match="repeats"):
        compare(loaded, [WINDOW], TEXT, [64], repeats=0)


def test_a_text_inside_the_window_is_dense_by_definition(loaded):
    found = compare(loaded, [{"variant": "window", "config": {"window": 64}}], TEXT, [32], repeats=1)
    row = of(found, "window", 32)
    assert row["dense_by_definition"]
    assert row["nll_change"] == pytest.approx(0, abs=1e-5)
    assert row["nll_change_se"] is None


def test_paired_error_is_over_blocks_and_pairing_keeps_the_texts_variation_out():
    rng = np.random.default_rng(0)
    dense = rng.normal(3, 2, (2, 1023))
    shift = np.full((2, 1023), 0.1)
    exact = paired_change(dense + shift, dense)
    assert exact["nll_change"] == pytest.approx(0.1)
    assert exact["nll_change_se"] == pytest.approx(0, abs=1e-12)
    noisy = paired_change(dense + rng.normal(0, 1, dense.shape), dense)
    assert noisy["nll_change_se"] == pytest.approx(1 / math.sqrt(2046), rel=0.6)
    assert paired_change(dense[:1, :100], dense[:1, :100])["nll_change_se"] is None


def test_peak_memory_is_what_tensors_held_at_once():
    def run():
        a = torch.zeros(1 << 20)
        b = a + 1
        del a
        return b * 2

    assert peak_bytes(run, "cpu") == pytest.approx(8 << 20, rel=0.01)
    assert peak_bytes(lambda: None, "cpu") == 0


def test_a_watched_variant_gives_the_same_output_and_leaves_the_registry_alone():
    model = tiny_model("llama")
    ids = torch.arange(40)[None]
    from focus_core.benchmark.prefill import Stopwatch

    watch, plain = Stopwatch("cpu"), make("random", {"window": 4, "groups": 2})
    timed = watched(plain, watch)
    with retrofit(model, plain):
        expected = prefill(model, ids)
    with retrofit(model, timed):
        found = prefill(model, ids)
    assert torch.equal(expected.logits, found.logits)
    assert found.logits.shape[1] == 1
    assert watch.take() > 0
    assert watch.take() == 0
    assert timed == plain
    assert "attend" not in vars(plain)
    assert type(make("random")) is type(timed)
    facts = facts_of(model)
    sets = facts.layers * 40 * 8
    assert cache_bytes(cache_of(found)) == facts.layers * 40 * 2 * facts.kv_heads * facts.head_dim * 4 + sets


def test_the_backend_that_auto_takes_is_said():
    model = tiny_model("llama", max_position_embeddings=4096)
    loaded = SimpleNamespace(model=model, tokenizer=tiny_tokenizer(), facts=facts_of(model), name="tiny")
    requests = [
        {"variant": "window", "config": {"window": 16}},
        {"variant": "random", "config": {"window": 16, "groups": 1, "backend": "auto"}},
        {"variant": "random", "config": {"window": 16, "backend": "reference"}},
    ]
    found = compare(loaded, requests, TEXT * 4, [64, 2048], repeats=1, windows=1)
    said = {(r["label"], r["length"]): (r["backend"], r["masked_dense"]) for r in found["rows"]}
    assert said["dense", 64] == ("sdpa", False)
    assert said["window · window 16", 64] == ("chunked", True)
    assert said["window · window 16", 2048] == ("cpu", False)
    assert said["random · groups 1 · window 16", 64] == ("dense", True)
    assert said["random · window 16 · backend reference", 64] == ("reference", True)


def test_spread_is_of_the_middle_eight_tenths():
    assert spread([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]) == {"median": 6, "p10": 2, "p90": 10, "n": 11}
