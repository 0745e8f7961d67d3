"""The small GPT-2 that ships: it loads by its name, and is what its card says; and its recipe runs."""

from __future__ import annotations

import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel

from data.build import small_gpt2
from focus_core.assets import load_text, validation_text
from focus_core.evaluation.perplexity import token_nll, windows_of
from focus_core.models.catalog import SMALL, SMALL_FOLDER, SMALL_NOTE
from focus_core.models.loading import load_model, model_facts

RECORD = json.loads((SMALL_FOLDER / "record.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def small():
    return load_model(SMALL, device="cpu")


def test_it_has_multi_head_attention_and_learned_positions(small):
    facts = small.facts
    assert (facts.family, facts.layers, facts.heads, facts.kv_heads, facts.head_dim) == ("gpt2", 6, 3, 3, 64)
    assert (facts.rotary, facts.context, facts.vocab, facts.hidden_size) == (0, 1024, 4096, 192)
    assert facts.note == SMALL_NOTE
    assert model_facts(SMALL).revision == facts.revision
    assert sum(p.numel() for p in small.model.parameters()) == RECORD["parameters"]
    assert (SMALL_FOLDER / "model.safetensors").stat().st_size < 7_500_000


def test_its_perplexity_is_the_recorded_one(small):
    check = RECORD["check"]
    windows, _ = windows_of(small.tokenizer, load_text(check["text"]).text, check["context"], check["windows"])
    with torch.no_grad():
        nll = token_nll(small.model, torch.from_numpy(windows)).double()
    assert nll.numel() == check["tokens"]
    assert math.exp(nll.mean().item()) == pytest.approx(check["ppl"], rel=1e-3)
    text = small.tokenizer.decode(windows[:, 1:].flatten().tolist())
    assert abs(len(text.encode()) - check["bytes"]) < 10
    assert nll.sum().item() / math.log(2) / check["bytes"] == pytest.approx(check["bits_per_byte"], rel=1e-3)


def test_plain_transformers_opens_it(small):
    model = AutoModelForCausalLM.from_pretrained(SMALL_FOLDER, dtype=torch.float32).eval()
    assert type(model) is GPT2LMHeadModel
    text = "It is a truth universally acknowledged — naïve 한국어"
    ids = AutoTokenizer.from_pretrained(SMALL_FOLDER)(text)["input_ids"]
    assert AutoTokenizer.from_pretrained(SMALL_FOLDER).decode(ids) == text
    with torch.no_grad():
        logits = [m(input_ids=torch.tensor([ids])).logits for m in (model, small.model)]
    torch.testing.assert_close(*logits)


def test_what_is_held_out_is_in_no_training_document():
    training = "\n".join(small_gpt2.documents())
    assert len(training) > 2 * 3_000_000
    assert load_text("brown learned").text[:400] in training
    assert list(small_gpt2.HELD_OUT) == RECORD["held_out"] == ["persuasion", "brown fiction"]
    for text in (*map(load_text, small_gpt2.HELD_OUT), None):
        whole = validation_text() if text is None else text.text
        for start in range(0, len(whole) - 300, 9_000):
            assert whole[start : start + 300].strip() not in training


def test_the_recipe_trains_and_saves_what_it_measured(tmp_path):
    novel = load_text("emma").text
    recipe = small_gpt2.Recipe(
        vocab=400, layers=1, width=24, heads=2, context=32, steps=6, batch=2, warmup=1, validate_every=3, dropout=0.0
    )
    texts = [novel[:8_000], novel[8_000:16_000], novel[16_000:18_000]]
    small_gpt2.build(recipe, texts, novel[20_000:24_000], {"persuasion": novel[30_000:33_000]}, "cpu", tmp_path)
    record = json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))
    assert [entry["step"] for entry in record["log"]] == [3, 6]
    best = min(record["log"], key=lambda entry: entry["validation_ppl"])
    assert record["best_step"] == best["step"]
    assert record["training_bytes"] == len((texts[0] + texts[2]).encode())
    loaded = load_model(str(tmp_path), device="cpu")
    windows, _ = windows_of(loaded.tokenizer, novel[30_000:33_000], 32)
    with torch.no_grad():
        nll = token_nll(loaded.model, torch.from_numpy(windows)).double().mean().item()
    assert math.exp(nll) == pytest.approx(record["perplexity"]["persuasion"]["ppl"], rel=1e-4)
