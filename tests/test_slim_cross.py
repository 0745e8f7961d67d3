"""Cross-attention of real Whisper and T5 classes with smaller caches: the same tokens, and the bytes measured."""

import pytest
import torch
import transformers as t
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from focus_core import compat
from focus_core.errors import InvalidInput, Unsupported
from focus_core.slim_cross import cross_attentions, cross_cache_bytes, measure_cross, slim_cross
from tests.tiny import tiny_model

D, LAYERS, HEADS = 32, 3, 4


def random(model, scale=0.3):
    """Weights wide enough that attention is far from uniform, biases included."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.data = drawn * (scale if parameter.dim() > 1 else 0.1) + (0 if parameter.dim() > 1 else parameter)
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def whisper():
    config = t.WhisperConfig(
        vocab_size=60, num_mel_bins=8, encoder_layers=2, decoder_layers=LAYERS, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, d_model=D, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=24,
        max_target_positions=40, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=[], begin_suppress_tokens=[],
    )  # fmt: skip
    return random(t.WhisperForConditionalGeneration(config))


def t5_of(d_kv):
    config = t.T5Config(
        vocab_size=60, d_model=D, d_kv=d_kv, d_ff=64, num_layers=LAYERS, num_decoder_layers=LAYERS, num_heads=HEADS,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    return random(t.T5ForConditionalGeneration(config))


@pytest.fixture(scope="module")
def t5():
    return t5_of(D // HEADS)


@pytest.fixture(scope="module")
def wide():
    """Projections four times as wide as the model, as T5-3B has."""
    return t5_of(D)


def speech(batch=2):
    return {"input_features": torch.randn(batch, 8, 48, generator=torch.Generator().manual_seed(1))}


def words(batch=3, padded=True):
    ids = torch.randint(2, 60, (batch, 20), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, 13:], mask[1, 6:] = 0, 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def test_whisper_generates_the_same_from_less(whisper):
    """d numbers a token once, or once a layer, in place of 2d a layer; Whisper's keys have no bias, its values do."""
    module = cross_attentions(whisper)[0]
    assert (module.k_proj.bias, module.v_proj.bias is None) == (None, False)
    dense, x, k = (2 * 24 * D * 4 * n for n in (2 * LAYERS, 1, LAYERS))
    rows = {row["cache"]: row for row in measure_cross(whisper, speech(), new_tokens=12)}
    for cache, size in (("dense", dense), ("x", x), ("k", k)):
        row = rows[cache]
        assert (row["reason"], row["bytes"], row["dense_bytes"]) == ("", size, dense)
        assert (row["same_tokens"], row["tokens"]) == (12, 12)
        assert row["max_difference"] < 1e-2
        assert row["seconds"] > 0


def test_t5_generates_the_same_from_less(t5):
    """No scale on its scores; rows of other lengths are padded on the right."""
    rows = {row["cache"]: row for row in measure_cross(t5, words(), new_tokens=12)}
    dense = 3 * 20 * D * 4 * 2 * LAYERS
    assert [rows[c]["bytes"] for c in ("dense", "x", "k")] == [dense, dense / (2 * LAYERS), dense / 2]
    assert {row["same_tokens"] for row in rows.values()} == {12}


def test_wide_projections_are_made_from_the_encoders_output(wide):
    rows = {row["cache"]: row for row in measure_cross(wide, words(), new_tokens=12)}
    assert rows["x"]["same_tokens"] == 12
    # 2r times fewer numbers a layer (r = 4), and one copy for all layers.
    assert rows["x"]["dense_bytes"] == rows["x"]["bytes"] * 2 * 4 * LAYERS
    assert "32 to 128 numbers and have no inverse" in rows["k"]["reason"]
    assert rows["k"]["bytes"] is None


@pytest.mark.parametrize("cache", ["x", "k"])
@pytest.mark.parametrize("order", ["values", "weights"])
def test_each_step_is_the_models_own_in_fp64(whisper, t5, cache, order):
    ids = torch.randint(2, 60, (3, 7), generator=torch.Generator().manual_seed(3))
    for model, given in ((whisper, speech(3)), (t5, words())):
        model.double()
        given = {n: x.double() if x.is_floating_point() else x for n, x in given.items()}
        wanted = model(**given, decoder_input_ids=ids).logits
        with slim_cross(model, cache, order=order):
            whole = model(**given, decoder_input_ids=ids, use_cache=False).logits
            first = model(**given, decoder_input_ids=ids[:, :3], use_cache=True)
            kept = {compat.cache_keyword(model): compat.cache_of(first)}
            rest = model(**given, decoder_input_ids=ids[:, 3:], use_cache=True, **kept)
        again = model(**given, decoder_input_ids=ids).logits
        model.float()
        stepped = torch.cat([first.logits, rest.logits], 1)
        assert (whole - wanted).abs().max() < 1e-8
        assert (stepped - wanted).abs().max() < 1e-8
        assert torch.equal(again, wanted)


@pytest.mark.parametrize("cache", ["x", "k"])
def test_beams_reorder_it(whisper, t5, cache):
    settings = {"num_beams": 3, "max_new_tokens": 8, "do_sample": False}
    for model, given in ((whisper, speech()), (t5, words())):
        wanted = model.generate(**given, **settings)
        with slim_cross(model, cache):
            assert torch.equal(model.generate(**given, **settings), wanted)
            model.generate(**given, **settings, return_dict_in_generate=True)
    with slim_cross(t5, cache):
        out = t5.generate(**words(), **settings, return_dict_in_generate=True)
    held = cross_cache_bytes(compat.cache_of(out))
    assert held == 9 * 20 * D * 4 * (1 if cache == "x" else LAYERS)


def test_what_it_cannot_do_is_refused(whisper, t5):
    with pytest.raises(Unsupported, match="no cross-attention"), slim_cross(tiny_model("gpt2")):
        pass
    with pytest.raises(InvalidInput, match="no cache 'v'"), slim_cross(t5, "v"):
        pass
    ids = torch.ones(2, 3, dtype=torch.long)
    given = words(2) | {"decoder_input_ids": ids}
    with slim_cross(t5):
        kept = {compat.cache_keyword(t5): EncoderDecoderCache(DynamicCache(), StaticCache(t5.config, max_cache_len=30))}
        with pytest.raises(Unsupported, match="StaticLayer cannot be made smaller"):
            t5(**given, use_cache=True, **kept)
        module, states = cross_attentions(t5)[0], torch.zeros(2, 4, D)
        with pytest.raises(Unsupported, match="attention weights"):
            module(torch.zeros(2, 1, D), key_value_states=states, output_attentions=True)
        t5.train()
        with pytest.raises(Unsupported, match="dropout"):
            t5(**given)
        t5.eval()
        rows = torch.zeros(2, 1, 2, 4, dtype=torch.bool)
        rows[:, :, 0] = True
        with pytest.raises(Unsupported, match="differs between queries"):
            module(torch.zeros(2, 2, D), mask=rows, key_value_states=states)
    begun = compat.cache_of(t5(**given, use_cache=True))
    with slim_cross(t5), pytest.raises(Unsupported, match="begun by the model itself"):
        t5(**given, use_cache=True, **{compat.cache_keyword(t5): begun})
    assert "forward" not in vars(cross_attentions(t5)[0])
