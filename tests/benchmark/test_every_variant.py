"""Every registered variant, and LoRA beside dense, runs wherever variants are measured side by side."""

from types import SimpleNamespace

import pytest
import torch

from focus_core.benchmark.attention import bench
from focus_core.benchmark.comparison import compare
from focus_core.errors import Unsupported
from focus_core.lora import new_lora
from focus_core.models.facts import facts_of
from focus_core.variants import VARIANTS, make
from tests.tiny import tiny_tokenizer
from tests.variants.cases import FORMS, adapter_for, model_for, small

TEXT = " ".join(f"the cat {i} and the dog sat on the mat while {7 * i} ran" for i in range(9))


NEEDS_KEY_HEADS, NEEDS_A_LATENT = {"slim"}, {"mla"}
"""Refused by a model whose query heads share keys, and on attention without a model."""


@pytest.fixture(scope="module")
def loaded():
    # Factors of a latent are made for this very model.
    model = model_for("mla")
    return SimpleNamespace(model=model, tokenizer=tiny_tokenizer(), facts=facts_of(model), name="tiny")


def test_a_comparison_takes_them_all_and_says_whom_the_model_refuses(loaded):
    forms = {name: small(name, FORMS[name][0] if name == "mla" else None) for name in VARIANTS}
    known = {name: adapter_for(variant, loaded.facts) for name, variant in forms.items()}
    known = {name: adapter for name, adapter in known.items() if adapter is not None and name not in NEEDS_KEY_HEADS}
    known["lora"] = new_lora(loaded.model, rank=2, through="window").requires_grad_(False)
    known["lora"].serve = {"window": 7}
    entries = [{"variant": n, "config": v.to_dict(), "adapter": n if n in known else None} for n, v in forms.items()]
    entries += [{"variant": n, "adapter": "lora"} for n in ("dense", "window", "focus")]
    result = compare(loaded, entries, TEXT, [64], repeats=1, windows=1, load_adapter=known.__getitem__)
    rows = {(r["variant"], r["adapter"]): r for r in result["rows"]}
    assert {v for v, _ in rows} == set(VARIANTS) - NEEDS_KEY_HEADS
    *shared, refused = (r["reason"] for r in result["about"]["refused"])
    assert len(shared) == len(NEEDS_KEY_HEADS & set(VARIANTS))
    assert all("query heads share" in reason for reason in shared)
    assert refused == "focus needs an adapter of kind router, and this one is of kind lora."
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
    if name in NEEDS_A_LATENT:
        with pytest.raises(Unsupported, match="mla cannot be timed on attention of this shape: it has no latent"):
            bench([make(name)], [96], heads=2, kv_heads=2, head_dim=16, repeats=1)
        return
    for phase in ("prefill", "decode"):
        (row,) = bench([make(name)], [96], heads=2, kv_heads=2, head_dim=16, repeats=1, phase=phase)
        assert row["ms"] > 0
        assert row["max_error"] < 1e-5 or not VARIANTS[name].computes_pairs
