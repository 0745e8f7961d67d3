import numpy as np
import pytest
import torch

from focus_core.budget import plan_layers, trace_bytes
from focus_core.capture import capture_trace
from focus_core.errors import Cancelled, InvalidInput, TooLarge
from focus_core.head_statistics import head_statistics, sampled_rows
from focus_core.models.facts import facts_of
from focus_core.models.loading import Loaded
from focus_core.pattern import GroupPattern
from focus_core.trace import Trace
from focus_core.variants import make
from focus_core.watches import half_shift
from tests.tiny import tiny_model, tiny_tokenizer

TEXT = "the cat and the dog sat on the mat while another one ran there and then the rain ended in the morning. " * 8
GROUPS = {"groups": 3, "window": 7, "sinks": 2}


def load(family="llama", **options):
    model = tiny_model(family, **options)
    return Loaded(model, tiny_tokenizer(), facts_of(model, "tiny"), "tiny")


def eager(loaded, ids):
    """Attention probabilities (L, Hq, N, N) and likelihoods, as transformers computes them by itself."""
    model = loaded.model
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            out = model(input_ids=ids, output_attentions=True, use_cache=False)
    finally:
        model.set_attn_implementation(before)
    nll = torch.nn.functional.cross_entropy(out.logits[0, :-1].float(), ids[0, 1:], reduction="none")
    return torch.stack(out.attentions)[:, 0].double().numpy(), nll.numpy()


def kept_pairs(loaded, trace):
    """(L, N, N) bool by the definition: window, sinks, shared groups; a native layer's own window."""
    n, p = len(trace), trace.provenance
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    kept = []
    for layer, own in enumerate(p["native"]):
        if own is not None:
            kept.append((j <= i) & (i - j < own))
            continue
        shared = np.zeros((n, n), bool)
        if "key_bits" in trace.arrays:
            q, k = trace.arrays["query_bits"][layer, 0], trace.arrays["key_bits"][layer, 0]
            shared = (q[:, None] & k[None, :]) != 0
        kept.append((j <= i) & ((i - j < p["window"]) | (j < p["sinks"]) | shared))
    return np.array(kept)


@pytest.mark.parametrize(
    ("family", "variant", "config"),
    [
        ("llama", "random", GROUPS),
        ("llama", "window", {"window": 5, "sinks": 1}),
        ("llama", "dense", {}),
        ("gpt2", "random", GROUPS),
        ("gemma2", "random", GROUPS | {"window": 3}),
        ("mistral", "window", {"window": 5, "sinks": 1}),
    ],
)
def test_agrees_with_the_model_itself(family, variant, config):
    loaded = load(family)
    trace = capture_trace(loaded, make(variant, config), None, TEXT, limit=137)
    assert len(trace) == 137
    ids = torch.from_numpy(trace.arrays["token_ids"].astype(np.int64))[None]
    attention, nll = eager(loaded, ids)
    kept = kept_pairs(loaded, trace)
    causal = np.tril(np.ones((137, 137), bool))

    np.testing.assert_allclose(trace.arrays["dense_nll"], nll, atol=2e-4)
    pairs = np.repeat((kept.sum((1, 2)) / causal.sum())[:, None], loaded.facts.heads, 1)
    np.testing.assert_allclose(trace.arrays["kept_pairs"], pairs, rtol=1e-6)
    mass = (attention * kept[:, None]).sum(-1).mean(-1)
    np.testing.assert_allclose(trace.arrays["mass_kept"], mass, atol=1e-5)
    for layer in range(loaded.facts.layers):
        assert (trace.pattern(layer).tile(0, 0, slice(0, 137), slice(0, 137)) == kept[layer]).all()
        for query in (0, 77, 136):
            for heads in ([4], None):
                want = attention[layer][slice(None) if heads is None else heads, query, : query + 1].mean(0)
                np.testing.assert_allclose(trace.dense_mass(layer, query, heads), want, atol=2e-3)
    if variant == "dense":
        assert (trace.arrays["nll"] == trace.arrays["dense_nll"]).all()
        np.testing.assert_allclose(trace.arrays["mass_kept"], 1, atol=1e-6)
    elif family == "mistral":
        np.testing.assert_allclose(trace.arrays["nll"], nll, atol=2e-4)
    else:
        assert np.abs(trace.arrays["nll"] - nll).max() > 0.01
    summary = trace.provenance["summary"]
    assert summary["scored_tokens"] == 136
    assert summary["dense_ppl"] == pytest.approx(np.exp(nll.mean()), rel=1e-4)
    assert summary["mass_kept"] == pytest.approx(mass.mean(), abs=1e-5)


def test_everything_is_there_and_survives_the_file(tmp_path):
    loaded = load()
    trace = capture_trace(
        loaded, make("random", GROUPS), None, TEXT, text_name="rhyme", layers=[2, 0], limit=100, adapter_name="x"
    )
    n, facts = 100, loaded.facts
    shapes = {name: (a.shape, a.dtype.name) for name, a in trace.arrays.items()}
    assert shapes == {
        "nll": ((n - 1,), "float32"),
        "dense_nll": ((n - 1,), "float32"),
        "query_bits": ((3, 1, n), "int64"),
        "key_bits": ((3, 1, n), "int64"),
        "kept_pairs": ((3, 9), "float32"),
        "mass_kept": ((3, 9), "float32"),
        "entropy": ((3, 9), "float32"),
        "sink_mass": ((3, 9), "float32"),
        "similar": ((27, 27), "float16"),
        "top_ids": ((n, 8), "int32"),
        "dense_top_ids": ((n, 8), "int32"),
        "top_p": ((n, 8), "float16"),
        "dense_top_p": ((n, 8), "float16"),
        "token_ids": ((n,), "int32"),
        "byte_span": ((n, 2), "int32"),
        "partial": ((n,), "bool"),
        "word": ((n,), "int32"),
        **{f"queries.{layer}": ((9, n, 16), "float16") for layer in (0, 2)},
        **{f"keys.{layer}": ((3, n, 16), "float16") for layer in (0, 2)},
    }
    p = trace.provenance
    assert (p["model"], p["variant"], p["text_name"], p["adapter"]) == ("tiny", "random", "rhyme", None)
    assert (p["window"], p["sinks"], p["groups"], p["recorded"]) == (7, 2, 3, False)
    assert (p["layers"], p["heads"], p["kv_heads"], p["head_dim"]) == (3, 9, 3, 16)
    assert p["scale"] == pytest.approx(0.25)
    assert p["native"] == list(facts.native)
    assert not p["dense_by_definition"]
    assert trace.text == TEXT.encode()[: trace.arrays["byte_span"][-1, 1]].decode()
    opened = Trace.load(trace.save(tmp_path / "t.npz"))
    assert opened.provenance == trace.provenance
    assert opened.top_text == trace.top_text
    assert opened.attention_layers == [0, 2]
    assert all((opened.arrays[k] == a).all() for k, a in trace.arrays.items())


def test_short_texts_are_dense_by_definition():
    loaded = load()
    for limit, dense in ((9, True), (10, False)):
        trace = capture_trace(loaded, make("random", GROUPS), None, TEXT, limit=limit)
        assert trace.provenance["dense_by_definition"] is dense
    np.testing.assert_allclose(
        capture_trace(loaded, make("random", GROUPS), None, TEXT, limit=9).arrays["kept_pairs"], 1
    )


def test_two_tokens_and_characters_are_not_cut():
    loaded = load()
    assert len(capture_trace(loaded, make("random", GROUPS), None, "at the", limit=2)) == 2
    trace = capture_trace(loaded, make("window"), None, "the 한국어 the", limit=4)
    assert trace.text == "the "
    assert trace.arrays["byte_span"][-1, 1] == len(trace.text.encode())
    with pytest.raises(InvalidInput):
        capture_trace(loaded, make("window"), None, "  ")
    with pytest.raises(TooLarge, match=r"4,161 tokens; the model reads 1,024"):
        capture_trace(loaded, make("window"), None, TEXT * 20)


def test_progress_covers_both_passes_and_cancel_stops_at_a_layer():
    loaded, seen = load(), []
    capture_trace(
        loaded, make("random", GROUPS), None, TEXT, limit=50, progress=lambda f, m: seen.append((round(f, 2), m))
    )
    assert [f for f, _ in seen] == sorted(f for f, _ in seen)
    assert [m for _, m in seen] == [
        f"{what}: layer {i} of 3." for what in ("With the variant", "Dense") for i in (1, 2, 3)
    ]
    before = loaded.model.config._attn_implementation
    for stop_at in (2, 5):
        calls = []
        with pytest.raises(Cancelled):
            capture_trace(
                loaded,
                make("random", GROUPS),
                None,
                TEXT,
                limit=50,
                cancel=lambda calls=calls, stop_at=stop_at: calls.append(1) or len(calls) == stop_at,
            )
        assert len(calls) == stop_at
        assert loaded.model.config._attn_implementation == before


def test_layers_that_fit_the_budget():
    facts = load(layers=12).facts
    everything = trace_bytes(facts, 500, 12)
    assert plan_layers(facts, 500) == list(range(12))
    assert plan_layers(facts, 500, budget=everything) == list(range(12))
    some = plan_layers(facts, 500, budget=everything // 2)
    assert 3 <= len(some) <= 6
    assert (some[0], some[-1]) == (0, 11)
    assert trace_bytes(facts, 500, len(some)) <= everything // 2
    assert plan_layers(facts, 500, [7, 3, 3]) == [3, 7]
    with pytest.raises(TooLarge, match="Keeping q and k of 12 layers over 500 tokens") as error:
        plan_layers(facts, 500, list(range(12)), everything // 2)
    assert error.value.hint == f"{len(some)} of these layers fit."
    with pytest.raises(InvalidInput, match="no layer 12"):
        plan_layers(facts, 500, [12])


def test_a_trace_over_budget_leaves_layers_out_and_says_so():
    loaded = load(layers=6)
    budget = trace_bytes(loaded.facts, 60, 3)
    trace = capture_trace(loaded, make("random", GROUPS), None, TEXT, limit=60, byte_budget=budget)
    assert trace.attention_layers == trace.provenance["kept_layers"] == [0, 2, 5]
    assert trace.provenance["note"].startswith("q and k of 3 layers are left out")
    assert sum(a.nbytes for a in trace.arrays.values()) <= budget


@pytest.mark.parametrize("sizes", [(3e5, 2.0), (2.0, 3e5), (1.0, 1.0), (0.0, 7e4), (9e4, 9e4)])
def test_half_floats_do_not_overflow(sizes):
    query_max, key_max = sizes
    shift = half_shift(query_max, key_max)
    if query_max * key_max < 65504.0**2 and min(sizes) > 0:
        assert max(query_max * 2.0**-shift, key_max * 2.0**shift) <= 65504
    if max(sizes) <= 65504:
        assert shift == 0


def test_large_keys_keep_their_products():
    loaded = load(layers=1)
    plain = capture_trace(loaded, make("window"), None, TEXT, limit=60)
    attention = loaded.model.model.layers[0].self_attn
    attention.k_proj.weight.mul_(2.0**17)
    attention.q_proj.weight.mul_(2.0**-17)
    large = capture_trace(loaded, make("window"), None, TEXT, limit=60)
    assert large.provenance["rescaled"].keys() == {"0"}
    assert large.provenance["clipped"] == []
    assert np.isfinite(large.arrays["keys.0"]).all()
    np.testing.assert_allclose(large.dense_mass(0, 59), plain.dense_mass(0, 59), atol=1e-3)


def test_sampled_queries_are_even_and_hold_the_last():
    for n in (1, 2, 255, 256, 257, 1100, 8191):
        rows = np.arange(n)[sampled_rows(n)]
        assert len(rows) <= 256
        assert rows[-1] == n - 1
        assert len(set(np.diff(rows))) <= 1
        assert len(rows) >= min(n, 128)


def test_kept_mass_with_a_router_for_every_kv_head():
    rng = np.random.default_rng(0)
    n, bits = 301, 2 ** rng.integers(0, 4, (1, 2, 301))
    pattern = GroupPattern(bits, np.roll(bits, 3, 2), heads=6, window=5, sinks=2)
    q = torch.from_numpy(rng.normal(size=(6, n, 8))).float()
    k = torch.from_numpy(rng.normal(size=(2, n, 8))).float()
    rows = sampled_rows(n)
    got = head_statistics(q, k, pattern, 0.4, rows, softcap=3.0, window=200).mass_kept
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    for head in range(6):
        s = 3 * np.tanh(q[head].double().numpy() @ k[head // 3].double().numpy().T * 0.4 / 3)
        s[(j > i) | (i - j >= 200)] = -np.inf
        p = np.exp(s - s.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        want = (p * pattern.tile(0, head, slice(0, n), slice(0, n))).sum(1)[rows].mean()
        assert got[head] == pytest.approx(want, abs=1e-5)
    assert got.std() > 1e-3
