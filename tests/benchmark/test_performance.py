"""The page of GPU figures: it is what the recorded results say, and a target that is not met says so."""

import copy

import pytest

from analysis.gpu_results import rows_of
from analysis.gpu_targets import MET, MISSED, TARGETS, UNMEASURED, outcomes
from benchmarks.gpu_focus_training import against
from benchmarks.performance import CHANGED, PAGE, page, recorded
from tests.gpu_documents import SPREAD, document, prefill


def by_key(*documents):
    return {one.target.key: one for one in outcomes(rows_of(documents))}


def test_the_page_says_what_the_results_say():
    said = page(recorded()).replace(CHANGED, "")
    assert PAGE.read_text(encoding="utf-8").replace(CHANGED, "") == said, "run python -m benchmarks.performance"


def test_every_target_has_a_line():
    said = page(rows_of([]))
    for target in TARGETS:
        assert f"| {target.what} | {target.aim} | {UNMEASURED} |" in said
    assert len({target.key for target in TARGETS}) == len(TARGETS)


def test_a_target_is_met_or_missed_with_the_reason():
    short = document(prefill(131072, 9.5), why={"focus-131k-64": "The group pass is held up by x."})
    found = by_key(short, document(prefill(1 << 20, 16.0)))
    assert found["focus-1m"].state == MET
    assert found["focus-131k-64"].state == MISSED
    assert found["focus-131k-128"].state == UNMEASURED
    said = page(rows_of([short]))
    told = "9.50×; 15.2× against FlashAttention-2; limit 15.0× | cuDNN 19.0 ms, own 2.00 ms"
    assert f"| missed | {told} | 5 (1.90 ms to 2.10 ms) | 1.0e-03 |" in said
    assert "The group pass is held up by x. Plan 25.0 %, group pass 75.0 % of the stages' time" in said
    assert "1. `python -m benchmarks.gpu_x --json x.json`: NVIDIA H200, driver 580, torch 2" in said


def test_the_latest_run_counts_and_what_was_not_kept_does_not():
    old, new = document(prefill(131072, 12.0)), document(prefill(131072, 9.0))
    new["environment"] = {**new["environment"], "time": "2026-12-01T01:00:00+00:00"}
    tried = prefill(131072, 14.0, kept=False, design="other tiles")
    new["rows"].append(tried)
    assert by_key(old, new)["focus-131k-64"].row.values["speedup"] == 9.0
    assert "| Focus, 12 heads x 64, K=16 q1k1 | other tiles | 131,072 | 2.00 ms | 14.0× |" in page(rows_of([new]))


def test_what_was_tried_as_a_cuda_graph_alone_says_so():
    rows = [{"method": "mla", "phase": "decode", "tokens": 32768, "heads": 16, "rank": 512}]
    rows += [{"method": "slim", "turned": True}]
    said = page(rows_of([document(*(row | {"kept": False, "design": "x", "ms_graph": SPREAD} for row in rows))]))
    assert "| MLA, 16 heads, rank 512 | x | 32,768 | 2.00 ms as a CUDA graph | – |" in said
    assert "| Slim, rotated | x |" in said


def test_a_ratio_of_cuda_graphs_says_so():
    row = prefill(32768, 3.5, speedup_graph=5.0, ms_graph=SPREAD, baseline_graph="cudnn", cudnn_graph_ms=SPREAD)
    one = by_key(document(row))["focus-32k"]
    assert one.state == MET
    assert one.measured.startswith("5.00×; both as CUDA graphs; 3.50× as called")


def test_the_crossover_is_where_every_longer_text_is_faster():
    rows = [prefill(4096, 1.1), prefill(8192, 0.9), prefill(16384, 1.2), prefill(32768, 4.0)]
    one = by_key(document(*rows))["crossover"]
    assert one.state == MISSED
    assert one.measured == "1.20× at 16,384 tokens, slower at 4,096, 8,192"
    rows[1]["speedup"] = 1.05
    assert by_key(document(*rows))["crossover"].state == MET


def test_a_choice_is_judged_with_the_attention_that_it_is_of():
    def form(name, faster, select):
        return {
            "method": "xattention", "phase": "prefill", "tokens": 131072, "stride": 16, "threshold": 0.9, "form": name,
            "speedup": faster, "density": 0.25, "select_share": select, "baseline": "fa2_packed", "ms": SPREAD,
        }  # fmt: skip

    found = by_key(document(form("own", 3.2, 0.09), form("before", 2.0, 0.02)))
    assert found["xattention"].state == MET
    assert found["xattention"].measured == "80.0 %; 3.20× against dense; as published; limit 4.00×"
    assert found["xattention-select"].state == MISSED
    assert found["xattention-select"].measured.startswith("9.00 %")
    assert "FlashAttention-2 (query heads as queries)" in page(rows_of([document(form("own", 3.2, 0.09))]))
    assert by_key()["xattention-select"].state == UNMEASURED


def test_code_that_changed_since_is_said():
    changed = document(prefill(131072, 11.0))
    assert CHANGED in page(rows_of([changed]))
    unknown = copy.deepcopy(changed)
    del unknown["sources"]
    assert CHANGED not in page(rows_of([unknown]))


def test_whole_models_have_both_ratios():
    row = {"method": "model", "model": "M", "weights": "random", "line": "Focus K=16 q1k1", "tokens": 131072}
    row |= {"phase": "prefill", "positions": "as configured", "ms": SPREAD, "attention_share": 0.25, "speedup": 1.5}
    row |= {"attention_speedup": 9.0, "baseline": "cudnn", "dense_ms": SPREAD, "peak_gb": 40.0}
    said = page(rows_of([document(row, {**row, "phase": None, "line": "XAttention", "left_out": "no kernel."})]))
    assert "| as configured | prefill | 131,072 | Focus K=16 q1k1 | – | 2.00 | 25.0 % | 1.50× " in said
    assert "| 1.50× | 9.00× | 40.0 GB |" in said
    assert "- M, XAttention: no kernel." in said


def test_training_stands_beside_dense_and_the_chunks():
    times = {"focus": [(1.0, 8.0), (1.0, 10.0)], "chunked": [(9.0, 40.0), (9.0, 40.0)], "cudnn": [(1.0, 4.0)] * 2}
    row = {"method": "training", "phase": "training", "what": "layer", "gate": "straight_through", "tokens": 8192}
    row |= {"heads": 9, "kv": 3, "dim": 64, "groups": 16, "looks": 4, "error": 1e-3, "not_run": {}}
    row |= against(times, {"focus": 50.0, "chunked": 7000.0, "cudnn": 20.0})
    step = {"method": "training", "phase": "training", "what": "step", "layers": 30, "gate": "soft", "tokens": 32768}
    step |= {"ms": SPREAD, "extra_mb": 9000.0, "not_run": {"chunked": "out of memory"}}
    said = page(rows_of([document(row, step)]))
    assert "| a layer, 9 heads on 3 x 64, K=16 q4k1 | straight-through | 8,192 | 9.00 | 50.0 MiB | " in said
    assert "| 40.0 ms, 7,000 MiB | 4.50× | cuDNN 4.00 ms | 0.450× | 1.0e-03 | 2 |" in said
    assert "| a step of 30 layers | soft | 32,768 | 2.00 | 9,000 MiB | out of memory | – | – | – | – | 5 |" in said
    assert "## Training" not in page(rows_of([document(prefill(131072, 9.5))]))


@pytest.mark.parametrize(
    "other",
    [{"rows": []}, {"environment": {"device": "a CPU"}, "rows": [{}]}, {"environment": {"driver": "1"}, "rows": [{}]}],
)
def test_other_results_are_left_aside(other):
    assert rows_of([other]) == []
