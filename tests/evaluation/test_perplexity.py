import json
import math
import types

import numpy as np
import pytest
import torch

from focus_core.errors import Cancelled, InvalidInput, Unsupported
from focus_core.evaluation.perplexity import evaluate, windows_of
from focus_core.models.facts import facts_of
from focus_core.retrofit import retrofit
from focus_core.variants import Support, make
from focus_core.variants.window import Window
from tests.tiny import WINDOW, tiny_model, tiny_tokenizer

TEXT = "the cat and the dog sat on the mat while another one ran there, and then it rained. " * 12
CONTEXT = 32


def tiny(family="llama", **options):
    model = tiny_model(family, **options)
    return types.SimpleNamespace(model=model, tokenizer=tiny_tokenizer(), facts=facts_of(model), name="tiny")


def windowed(window=6, sinks=1):
    return make("window", {"window": window, "sinks": sinks})


def plain(model, tokens, variant):
    """Mean nll of each window by the whole logits of one window at a time."""
    nll = []
    for row in torch.from_numpy(tokens):
        with torch.no_grad(), retrofit(model, variant):
            logits = model(input_ids=row[None]).logits[0].double()
        nll.append(float(-logits.log_softmax(-1)[:-1].gather(-1, row[1:, None]).mean()))
    return np.array(nll)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_equals_an_independent_computation(family):
    loaded, variant = tiny(family), windowed()
    tokens, _ = windows_of(loaded.tokenizer, TEXT, CONTEXT)
    found = evaluate(loaded, variant, None, TEXT, context=CONTEXT, batch=3, probes=False)
    own, dense = plain(loaded.model, tokens, variant), plain(loaded.model, tokens, make("dense"))
    assert found["windows"] == len(tokens) > 4
    assert found["tokens"] == len(tokens) * (CONTEXT - 1)
    assert found["nll"] == pytest.approx(own.mean(), abs=1e-5)
    assert found["ppl"] == pytest.approx(math.exp(own.mean()), rel=1e-5)
    assert found["dense_ppl"] == pytest.approx(math.exp(dense.mean()), rel=1e-5)
    error = (own - dense).std(ddof=1) / len(own) ** 0.5
    assert found["nll_diff"] == pytest.approx((own - dense).mean(), abs=1e-5)
    assert found["nll_se"] == pytest.approx(error, abs=1e-5)
    assert found["ppl_se"] == pytest.approx(error * math.exp(own.mean()), rel=1e-3)


def test_dense_against_itself_differs_by_nothing():
    found = evaluate(tiny(), make("dense"), None, TEXT, context=CONTEXT, windows=3, probes=False)
    assert found["nll_diff"] == found["ppl_se"] == 0.0
    assert found["kept_pairs"] == 1.0
    assert found["served"] is True
    assert found["dense_by_definition"] is False


def test_dense_is_the_model_itself():
    loaded = tiny("gemma2")
    tokens, _ = windows_of(loaded.tokenizer, TEXT, CONTEXT, 2)
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        ids = torch.from_numpy(tokens)
        logits = loaded.model(input_ids=ids).logits.double()
    expected = -logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None]).mean()
    found = evaluate(loaded, windowed(), None, TEXT, context=CONTEXT, windows=2, probes=False)
    assert found["dense_nll"] == pytest.approx(float(expected), abs=1e-5)


def test_a_window_over_everything_is_dense_and_says_so():
    found = evaluate(tiny(), windowed(30, 2), None, TEXT, context=CONTEXT, windows=3, probes=False)
    assert abs(found["nll_diff"]) < 1e-5
    assert found["dense_by_definition"] is True
    assert any("dense by definition" in note for note in found["notes"])
    beyond = evaluate(tiny(), windowed(29, 2), None, TEXT, context=CONTEXT, windows=3, probes=False)
    assert beyond["dense_by_definition"] is False


def kept_share(length, window, sinks=0):
    kept = sum(i - j < window or j < sinks for i in range(length) for j in range(i + 1))
    return kept / (length * (length + 1) / 2)


def test_kept_pairs_count_every_layer():
    found = evaluate(tiny("gemma2"), windowed(4, 1), None, TEXT, context=CONTEXT, windows=2, probes=False)
    native, own = kept_share(CONTEXT, WINDOW), kept_share(CONTEXT, 4, 1)
    assert found["kept_pairs_by_layer"] == pytest.approx([native, own, native])
    assert found["kept_pairs"] == pytest.approx((2 * native + own) / 3)
    dense = evaluate(tiny("gemma2"), make("dense"), None, TEXT, context=CONTEXT, windows=2, probes=False)
    assert dense["kept_pairs_by_layer"] == pytest.approx([native, 1, native])


def test_buckets_add_up_to_the_whole():
    found = evaluate(tiny(), windowed(), None, TEXT * 3, context=300, windows=2, probes=False)
    assert [(b["from"], b["to"]) for b in found["buckets"]] == [(1, 128), (128, 256), (256, 300)]
    assert sum(b["tokens"] for b in found["buckets"]) == found["tokens"] == 598
    for key in ("nll", "dense_nll"):
        total = math.fsum(b[key] * b["tokens"] for b in found["buckets"])
        assert total / found["tokens"] == pytest.approx(found[key])


def test_windows_are_the_first_whole_ones_and_do_not_overlap():
    tokenizer = tiny_tokenizer()
    ids = tokenizer(TEXT)["input_ids"]
    tokens, notes = windows_of(tokenizer, TEXT, 50)
    assert tokens.shape == (len(ids) // 50, 50)
    assert tokens.flatten().tolist() == ids[: tokens.size]
    assert notes == []
    assert windows_of(tokenizer, TEXT, 50, 2)[0].tolist() == [ids[:50], ids[50:100]]
    many, notes = windows_of(tokenizer, TEXT, 50, 999)
    assert many.shape == tokens.shape
    assert "not 999" in notes[0]


def test_a_short_text_is_one_window_and_says_so():
    tokens, notes = windows_of(tiny_tokenizer(), "the cat sat", 1000)
    assert len(tokens) == 1
    assert 2 <= tokens.shape[1] < 20
    assert "all of it is one window" in notes[0]
    found = evaluate(tiny(), make("window", {"window": 2, "sinks": 0}), None, "the cat sat", context=1000, probes=False)
    assert found["windows"] == 1
    assert found["window_tokens"] == tokens.shape[1]
    assert found["ppl_se"] is None
    assert found["nll_se"] is None


@pytest.mark.parametrize("text", ["", "a"])
def test_nothing_to_score_is_refused(text):
    with pytest.raises(InvalidInput, match="token"):
        windows_of(tiny_tokenizer(), text, 8)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"context": 1}, "context is 1"),
        ({"context": 8, "windows": 0}, "windows is 0"),
        ({"context": 8, "batch": 0}, "batch is 0"),
        ({"context": 2000}, "1,024"),
    ],
)
def test_bad_sizes_are_refused(options, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        evaluate(tiny(), windowed(), None, TEXT, **options)


def test_an_unsupported_model_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(Window, "supports", lambda self, facts: Support(False, "its heads are odd."))
    with pytest.raises(Unsupported, match="window cannot serve tiny: its heads are odd"):
        evaluate(tiny(), windowed(), None, TEXT, context=8)


def test_probes_and_provenance_are_in_the_document():
    found = evaluate(tiny(), windowed(), None, TEXT, context=64, windows=2)
    json.dumps(found, allow_nan=False)
    assert found["leak"] < 1e-4
    assert found["flips"] == 0
    assert max(found["parity"]["chunked"], found["parity"]["decode"]) < 1e-4
    assert found["config"] == {"window": 6, "sinks": 1}
    assert found["environment"]["torch"] == torch.__version__
    assert found["dtype"] == "float32"
    assert found["bos"] is False
    assert {"leak", "flips", "parity"} <= set(found)


def test_progress_rises_to_one():
    seen = []
    evaluate(tiny(), windowed(), None, TEXT, context=64, windows=3, progress=lambda f, m: seen.append((f, m)))
    fractions = [f for f, _ in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert all(m for _, m in seen)


def test_a_killed_run_is_taken_up_where_it_was(monkeypatch):
    loaded, kept, calls = tiny(), [], []

    def note(document):
        kept.append(json.loads(json.dumps(document)))

    with pytest.raises(Cancelled):
        evaluate(
            loaded, windowed(), None, TEXT, context=CONTEXT, probes=False, partial=note, cancel=lambda: len(kept) == 3
        )
    assert [len(document["per_window"]) for document in kept] == [1, 2, 3]
    hook = loaded.model.register_forward_hook(lambda *a: calls.append(1))
    resumed = evaluate(loaded, windowed(), None, TEXT, context=CONTEXT, probes=False, resume=kept[-1])
    assert len(calls) == 2 * (resumed["windows"] - 3)
    assert any("3 of" in note for note in resumed["notes"])
    hook.remove()
    whole = evaluate(loaded, windowed(), None, TEXT, context=CONTEXT, probes=False)
    same = ("ppl", "ppl_se", "dense_ppl", "kept_pairs", "tokens", "buckets", "per_window")
    assert {k: resumed[k] for k in same} == {k: whole[k] for k in same}


def test_windows_of_another_run_are_not_taken_up():
    loaded, kept = tiny(), []
    evaluate(loaded, windowed(6), None, TEXT, context=CONTEXT, windows=2, probes=False, partial=kept.append)
    found = evaluate(loaded, windowed(7), None, TEXT, context=CONTEXT, windows=2, probes=False, resume=kept[-1])
    assert found["notes"] == []
    assert found["ppl"] == evaluate(loaded, windowed(7), None, TEXT, context=CONTEXT, windows=2, probes=False)["ppl"]
