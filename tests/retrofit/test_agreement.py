"""Every way of running a retrofitted model computes one function."""

import pytest
import torch

from focus_core import compat
from focus_core.retrofit import retrofit
from focus_core.variants import make
from tests.retrofit.helpers import Gate, Gated, Routed, far, in_chunks, positions_of, step, tokens
from tests.tiny import FAMILIES, tiny_model

TOLERANCE = 2e-5
CHANGED = ("gpt2", "llama", "qwen2", "qwen3", "gemma2", "gemma3")
"""Mistral's layers all keep their own window, so no variant changes it."""


def gated(model):
    return Gated(), Gate(model.config.hidden_size)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("variant", [make("dense"), make("window", {"window": 64, "sinks": 0}), Routed(window=40)])
def test_keeping_everything_is_the_native_model(family, variant):
    # Some versions run Gemma 2 on SDPA by default, which leaves out its soft cap.
    model, ids = tiny_model(family, attn_implementation="eager"), tokens(2, 40)
    native = model(ids).logits
    with retrofit(model, variant):
        assert far(model(ids).logits, native) < TOLERANCE


@pytest.mark.parametrize("family", CHANGED)
@pytest.mark.parametrize("variant", [make("window", {"window": 4, "sinks": 1}), Routed()])
def test_a_sparse_variant_changes_the_logits(family, variant):
    model, ids = tiny_model(family), tokens(2, 40)
    native = model(ids).logits
    with retrofit(model, variant):
        assert far(model(ids).logits, native) > 0.1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sizes", [(40,), (13, 1, 17, 9), (25,) + (1,) * 15], ids=["whole", "chunks", "decode"])
@pytest.mark.parametrize("name", ["window", "routed", "gated"])
def test_cached_runs_equal_one_forward(family, sizes, name):
    model, ids = tiny_model(family), tokens(2, 40)
    variant, adapter = {
        "window": (make("window", {"window": 4, "sinks": 1}), None),
        "routed": (Routed(), None),
        "gated": gated(model),
    }[name]
    with torch.no_grad(), retrofit(model, variant, adapter):
        whole = model(ids, use_cache=False).logits
        assert far(in_chunks(model, ids, sizes), whole) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sizes", [(40,), (5, 20, 15), (30,) + (1,) * 10], ids=["whole", "chunks", "decode"])
def test_rows_padded_on_the_left_equal_each_row_alone(family, sizes):
    model, ids = tiny_model(family), tokens(3, 40)
    mask = torch.ones_like(ids)
    pads = (0, 7, 23)
    for row, pad in enumerate(pads):
        mask[row, :pad] = 0
    with torch.no_grad(), retrofit(model, Routed()):
        padded = in_chunks(model, ids, sizes, mask, positions_of(mask))
        for row, pad in enumerate(pads):
            alone = model(ids[row : row + 1, pad:]).logits
            assert far(padded[row : row + 1, pad:], alone) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_on_the_right_changes_no_real_token(family):
    model, ids = tiny_model(family), tokens(2, 40)
    mask = torch.ones_like(ids)
    mask[1, 22:] = 0
    with torch.no_grad(), retrofit(model, Routed()):
        padded = model(ids, attention_mask=mask, position_ids=positions_of(mask)).logits
        assert far(padded[0], model(ids[:1]).logits[0]) < TOLERANCE
        assert far(padded[1, :22], model(ids[1:, :22]).logits[0]) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_generation_equals_full_forwards(family):
    model, ids = tiny_model(family), tokens(2, 20)
    model.generation_config.eos_token_id = None
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    with torch.no_grad(), retrofit(model, Routed()):
        made = model.generate(ids, attention_mask=mask, max_new_tokens=16, do_sample=False)
        for row, pad in ((0, 0), (1, 6)):
            full = model(made[row : row + 1, pad:]).logits[0]
            assert torch.equal(full[19 - pad : -1].argmax(-1), made[row, 20:])


@pytest.mark.parametrize("family", FAMILIES)
def test_beam_scores_equal_full_forwards(family):
    model, ids = tiny_model(family), tokens(2, 20)
    model.generation_config.eos_token_id = None
    mask = torch.ones_like(ids)
    with torch.no_grad(), retrofit(model, Routed()):
        options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 12, "do_sample": False}
        out = model.generate(
            ids, attention_mask=mask, return_dict_in_generate=True, output_scores=True, length_penalty=0.0, **options
        )
        logits = model(out.sequences).logits[:, 19:-1]
    chosen = logits.log_softmax(-1).gather(-1, out.sequences[:, 20:, None])[..., 0].sum(1)
    assert far(chosen, out.sequences_scores) < 1e-3
    assert len({tuple(row.tolist()) for row in out.sequences}) == 4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["window", "routed"])
def test_later_tokens_do_not_move_earlier_logits(family, name):
    model, ids = tiny_model(family), tokens(2, 40)
    other = ids.clone()
    other[:, 25:] = tokens(2, 15, seed=1)
    variant = make("window", {"window": 4, "sinks": 1}) if name == "window" else Routed()
    with torch.no_grad(), retrofit(model, variant):
        a, b = model(ids).logits, model(other).logits
    assert far(a[:, :25], b[:, :25]) < 1e-6
    assert far(a[:, 25:], b[:, 25:]) > 0.1


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
@pytest.mark.parametrize("name", ["routed", "gated"])
def test_a_cropped_cache_goes_on(family, name):
    model, ids, other = tiny_model(family), tokens(2, 30), tokens(2, 12, seed=1)
    variant, adapter = (Routed(), None) if name == "routed" else gated(model)
    joined = torch.cat([ids[:, :25], other], 1)
    with torch.no_grad(), retrofit(model, variant, adapter):
        _, cache = step(model, ids)
        compat.drop_last(cache, 5)
        assert cache.layers[1].state.shape[2] == 25
        logits, _ = step(model, other, cache)
        assert far(logits, model(joined).logits[:, 25:]) < TOLERANCE


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma3"])
@pytest.mark.parametrize("change", ["reorder", "repeat", "select"])
def test_rows_of_a_cache_can_be_moved(family, change):
    model, ids, other = tiny_model(family), tokens(3, 30), tokens(6, 5, seed=1)
    rows = {"reorder": [2, 0, 0], "repeat": [0, 0, 1, 1, 2, 2], "select": [2, 1]}[change]
    with torch.no_grad(), retrofit(model, Routed()):
        _, cache = step(model, ids)
        if change == "reorder":
            cache.reorder_cache(torch.tensor(rows))
        elif change == "repeat":
            cache.batch_repeat_interleave(2)
        else:
            cache.batch_select_indices(torch.tensor(rows))
        logits, _ = step(model, other[: len(rows)], cache)
        whole = model(torch.cat([ids[rows], other[: len(rows)]], 1)).logits
        assert far(logits, whole[:, 30:]) < TOLERANCE


def test_a_reset_cache_starts_again():
    model, ids = tiny_model("llama"), tokens(2, 30)
    with torch.no_grad(), retrofit(model, Routed()):
        first, cache = step(model, ids)
        cache.reset()
        again, _ = step(model, ids, cache)
        assert far(first, again) == 0


def test_a_copied_cache_goes_on_and_leaves_the_adapter_alone():
    import copy

    model, ids = tiny_model("llama"), tokens(2, 30)
    variant, adapter = gated(model)
    with torch.no_grad(), retrofit(model, variant, adapter):
        _, cache = step(model, ids[:, :20])
        twin = copy.deepcopy(cache)
        first, _ = step(model, ids[:, 20:], cache)
        second, _ = step(model, ids[:, 20:], twin)
        assert far(first, second) == 0
