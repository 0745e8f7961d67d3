"""What the page of GPU figures must not leave out: how often something ran, of how many shapes, and lost needles."""

from analysis.gpu_results import rows_of
from analysis.gpu_targets import outcomes
from benchmarks.performance import page, recorded
from tests.gpu_documents import SPREAD, document, prefill


def measured(key, *rows):
    return next(one for one in outcomes(rows_of([document(*rows)])) if one.target.key == key).measured


def test_a_dense_kernel_that_ran_once_is_no_median():
    row = prefill(1 << 20, 15.0, slow_repeats={"cudnn": 1, "fa2": 1})
    assert "24.0× against FlashAttention-2 (1 run, not warmed up); limit" in measured("focus-1m", row)
    assert "24.0× against FlashAttention-2; limit" in measured("focus-1m", prefill(1 << 20, 15.0))


def test_the_best_of_several_shapes_says_so():
    def sfa(faster, batch, kv):
        shape = {"heads": 32, "kv": kv, "dim": 128, "batch": batch, "features": 16, "tokens": 131072}
        return {"method": "sfa", "phase": "decode", **shape, "speedup": faster, "baseline": "cudnn", "cudnn_ms": SPREAD}

    said = measured("sfa-decode", sfa(1.58, 4, 32), sfa(1.53, 16, 8), sfa(1.31, 1, 8))
    assert said == "1.58×; the best of 3 shapes: 32 heads x 128, batch 4; the least is 1.31×"
    assert measured("sfa-decode", sfa(1.58, 4, 32)) == "1.58×"


def test_whole_models_say_how_often_they_ran():
    row = {"method": "model", "model": "M", "weights": "random", "line": "dense", "tokens": 131072, "repeats": 1}
    row |= {"phase": "prefill", "positions": "as configured", "ms": SPREAD, "speedup": 1.0}
    assert "| 131,072 | dense | 1 | 2.00 |" in page(rows_of([document(row)]))


def test_needles_stand_on_the_page_whatever_became_of_them():
    needle = {"what": "needles", "layer": 8, "tokens": 131072, "queries_in_a_row": 16, "needles": 48}
    needle |= {"kept_own": 0.25, "kept_before": 0.0, "density_own": 0.1, "density_before": 0.11}
    needle |= {"within_5_percent_own": 0.25, "within_5_percent_before": 0.0}
    said = page(rows_of([document(needle)]))
    assert "| 131,072 | 8 | 16 | 48 | 25.0 % | 10.0 % | 0 % | 11.0 % |" in said
    assert "## Needles" not in page(rows_of([document(prefill(131072, 9.5))]))


def test_every_table_has_as_many_names_as_numbers():
    lines = page(recorded()).splitlines()
    heads = [at for at, line in enumerate(lines) if line.startswith("| --- |")]
    assert len(heads) >= 7
    for at in heads:
        columns = lines[at].count("|")
        assert lines[at - 1].count("|") == columns
        assert len(set(lines[at - 1].split("|")[1:-1])) == columns - 1, "two columns of one name"
        for line in lines[at + 1 :]:
            if not line.startswith("|"):
                break
            assert line.count("|") == columns


def test_a_share_of_the_limit_says_how_it_was_called_and_whose_activations_it_is_of():
    row = {"method": "xattention", "phase": "prefill", "tokens": 131072, "stride": 16, "threshold": 0.9, "form": "own"}
    row |= {"speedup": 5.0, "speedup_graph": 6.0, "density": 0.1, "baseline": "fa4", "fa4_ms": SPREAD, "ms": SPREAD}
    row |= {"layers": 5, "activations": "smollm2", "rope": "YaRN, factor 16 over 8192 positions"}
    row |= {"select_ms": 0.1, "select_share": 0.05, "fa4_graph_ms": SPREAD, "select_graph_ms": 0.08, "ms_graph": SPREAD}
    row |= {"baseline_graph": "fa4", "extra_over_qkvo": 0.315}
    assert measured("xattention", row) == (
        "60.0 %; 6.00× against dense; both as CUDA graphs; 50.0 % as called; as published; mean of 5 layers of "
        "smollm2, positions: YaRN, factor 16 over 8192; limit 10.0×"
    )
    said = "5.00 %; 100 µs of 2.00 ms, as called; as CUDA graphs 4.00 %; as published"
    assert measured("xattention-select", row) == said
    assert "| 0.315× of q, k, v, out |" in page(rows_of([document(row)]))


def test_what_the_choice_holds_stands_beside_its_speed():
    layer = {"method": None, "layer": 8, "tokens": 131072, "densities": {"own": 0.114, "before": 0.116}, "ms": {}}
    layer |= {"recall": 0.535, "recall_of_worst_head": 0.304, "change_from_dense": 0.378, "recall_before": 0.519}
    told = "| 131,072 | 8 | 11.4 % | 53.5 % | 30.4 % | 37.8 % | 11.6 % | 51.9 % |"
    assert told in page(rows_of([document(layer)]))
    ways = dict.fromkeys(("flash", "triton", "flex", "flex_flash"), SPREAD)
    assert "FlexAttention 2.00 ms (1.90 ms to 2.10 ms)" in page(rows_of([document({**layer, "ms": ways})]))
    assert "FlexAttention" not in page(rows_of([document(layer)]))


def test_a_run_says_which_checks_hold_and_what_made_them():
    found = document(prefill(131072, 9.5, command="python -m b"), checks=[{"good": True}, {"good": False}])
    found["runs"] = [{"command": f"python -m {name}", "environment": found["environment"]} for name in "ab"]
    assert "1 of 2 checks hold (`python -m a`)" in page(rows_of([found]))
    assert "checks hold" not in page(rows_of([document(prefill(131072, 9.5))]))


def test_a_dense_kernel_that_did_not_run_is_named():
    row = {"method": "sfa", "phase": "decode", "tokens": 131072, "features": 16, "ms": SPREAD}
    said = page(rows_of([document({**row, "refused": {"fa4_32": "no splits here"}})]))
    assert "Dense kernels that did not run: flash-attn-4 (32 splits) for SFA (no splits here)." in said
    assert "did not run" not in page(rows_of([document(row)]))


def test_a_model_that_has_lost_the_text_says_so_beside_what_its_activations_gave():
    layer = {"method": None, "layer": 8, "densities": {"own": 0.1, "before": 0.1}, "ms": {}, "recall": 0.5}
    layer |= {"recall_of_worst_head": 0.3, "change_from_dense": 0.4, "recall_before": 0.5, "scored_tokens": 1023}
    short = {"tokens": 8192, "ppl_of_last_tokens": 24.8, "rope": "as trained"}
    far = {"tokens": 131072, "ppl_of_last_tokens": 120.6, "rope": "YaRN, factor 16 over 8192 positions"}
    said = page(rows_of([document({**layer, **far}, {**layer, **short, "layer": 2})]))
    assert "perplexity of the last 1,023 tokens" in said
    assert "24.8 at 8,192 tokens (positions as trained), 121 at 131,072 tokens (positions YaRN, factor 16" in said
    assert "perplexity" not in page(rows_of([document({**layer, "tokens": 8192})]))


def test_the_page_says_that_a_ratio_is_not_the_quotient_of_the_medians_beside_it():
    assert "a ratio is the median of the ratios of neighbouring runs" in page(recorded())
