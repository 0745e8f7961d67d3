"""What the page of GPU figures must not leave out: how often something ran, of how many shapes, and lost needles."""

from analysis.gpu_results import rows_of
from analysis.gpu_targets import outcomes
from benchmarks.performance import page
from tests.gpu_documents import SPREAD, document, prefill


def measured(key, *rows):
    return next(one for one in outcomes(rows_of([document(*rows)])) if one.target.key == key).measured


def test_a_dense_kernel_that_ran_once_is_no_median():
    row = prefill(1 << 20, 15.0, slow_repeats={"cudnn": 1, "fa2": 1})
    assert "24.0× FlashAttention-2 (1 run, not warmed up); limit" in measured("focus-1m", row)
    assert "24.0× FlashAttention-2; limit" in measured("focus-1m", prefill(1 << 20, 15.0))


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
