"""Every registered variant, and LoRA beside dense, runs wherever variants are measured side by side."""

from types import SimpleNamespace

import pytest
import torch

from focus_core.benchmark.attention import bench
from focus_core.benchmark.comparison import compare
from focus_core.lora import new_lora
from focus_core.models.facts import facts_of
from focus_core.variants import VARIANTS, make
from tests.tiny import tiny_model, tiny_tokenizer
from tests.variants.cases import UNTRAINED, small

TEXT = " ".join(f"the cat {i} and the dog sat on the mat while {7 * i} ran" for i in range(9))


@pytest.fixture(scope="module")
def loaded():
    # Keys of their own for every head: no variant refuses such a model for its shape.
    model = tiny_model("llama", heads=4, kv_heads=4)
    return SimpleNamespace(model=model, tokenizer=tiny_tokenizer(), facts=facts_of(model), name="tiny")


def adapters(loaded):
    """An untrained adapter for every variant that needs one, by the variant's name, and LoRA."""
    found = {}
    for name, cls in VARIANTS.items():
        if cls.adapter_kind and not cls.adapter_optional:
            found[name] = UNTRAINED[cls.adapter_kind](loaded.facts, small(name)).requires_grad_(False)
    found["lora"] = new_lora(loaded.model, rank=2, through="window").requires_grad_(False)
    found["lora"].serve = {"window": 7}
    return found


def test_a_comparison_takes_them_all(loaded):
    known = adapters(loaded)
    entries = [{"variant": n, "config": small(n).to_dict(), "adapter": n if n in known else None} for n in VARIANTS]
    entries += [{"variant": n, "adapter": "lora"} for n in ("dense", "window", "focus")]
    result = compare(loaded, entries, TEXT, [64], repeats=1, windows=1, load_adapter=known.__getitem__)
    rows = {(r["variant"], r["adapter"]): r for r in result["rows"]}
    assert {v for v, _ in rows} == set(VARIANTS)
    (refused,) = result["about"]["refused"]
    assert refused["reason"] == "focus needs an adapter of kind router, and this one is of kind lora."
    lora, dense = rows["dense", "lora"], rows["dense", None]
    assert (lora["adapter_kind"], dense["adapter_kind"]) == ("lora", None)
    assert lora["trained"] == sum(p.numel() for p in known["lora"].parameters()) > 0 == dense["trained"]
    assert lora["nll_change"] == pytest.approx(0, abs=1e-6)
    assert rows["window", "lora"]["config"]["window"] == 7
    assert not rows["performer", None]["computes_pairs"]
    assert dense["computes_pairs"]
    for row in result["rows"]:
        if row["served"]:
            assert row["cache_bytes"] == pytest.approx(row["kv_bytes_per_token"] * 64, rel=0.35), row["variant"]


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_bench_times_each(name):
    torch.set_num_threads(1)
    for phase in ("prefill", "decode"):
        (row,) = bench([make(name)], [96], heads=2, kv_heads=2, head_dim=16, repeats=1, phase=phase)
        assert row["ms"] > 0
        assert row["max_error"] < 1e-5 or not VARIANTS[name].computes_pairs
