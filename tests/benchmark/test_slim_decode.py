"""The benchmark of Slim's decode in small: what it times is dense attention, from half the bytes."""

import pytest

from benchmarks.slim import CASES, DENSE, measure


@pytest.mark.parametrize("dtype, error", [("float32", 1e-5), ("bfloat16", 0.05)])
def test_every_case_is_dense_attention_from_half_the_bytes(dtype, error):
    rows = {row["case"]: row for row in measure(2, length=96, heads=3, head_dim=16, dtype=dtype, repeats=3)}
    assert set(rows) == {DENSE, *CASES}
    for case, row in rows.items():
        assert row["max_error"] < error
        assert row["cache_bytes"] == rows[DENSE]["cache_bytes"] / (1 if case == DENSE else 2)
        assert row["ms"]["n"] == row["ratio"]["n"] == 3
        assert row["ratio"]["p10"] <= row["ratio"]["median"] <= row["ratio"]["p90"]
    assert rows[DENSE]["ratio"]["median"] == 1
    assert rows[DENSE]["operations"] < rows["k weights"]["operations"] < rows["k values"]["operations"]
