"""A cache that holds neither keys nor values, but a variant's own state, from which both are made again."""

import copy
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from focus_core import compat
from focus_core.errors import Unsupported
from focus_core.kernels.dense import dense_attention
from focus_core.retrofit import retrofit
from focus_core.variants import make
from focus_core.variants.base import Packed, Prepared, Variant, option
from tests.retrofit.helpers import Routed, Watcher, far, in_chunks, positions_of, step, tokens
from tests.tiny import tiny_model

DERIVED = []


@dataclass(frozen=True)
class Remade(Variant):
    """Caches the hidden state alone; GPT-2's keys and values are computed from it whenever they are read."""

    packs_keys: ClassVar[bool] = True

    value_too: bool = option(False, "keep values as well")

    def derive(self, model, module, layer, adapter):
        DERIVED.append(layer)
        return module.c_attn.weight.detach()[:, model.config.n_embd :], module.c_attn.bias.detach()[module.embed_dim :]

    def pack(self, new):
        value = new.value if self.value_too else new.value[..., :0]
        return Packed(new.key[..., :0], value, new.hidden[:, None])

    def attend(self, call):
        key, value = call.key, call.value
        if call.cached is not None:
            weight, bias = call.derived
            key, made = (
                (call.cached @ weight + bias)[:, 0].unflatten(-1, (2, call.query.shape[1], -1)).permute(2, 0, 3, 1, 4)
            )
            value = call.value if self.value_too else made
        return dense_attention(call.query, key, value, first_key=call.first_key, scale=call.scale)


@dataclass(frozen=True)
class Placed(Remade):
    """Wants positions too."""

    rotates_cached: ClassVar[bool] = True


@pytest.fixture(scope="module")
def model():
    return tiny_model("gpt2")


@pytest.fixture
def ids():
    return tokens(3, 24)


def test_the_cache_holds_the_state_and_nothing_else(model, ids):
    with torch.no_grad(), retrofit(model, Remade()):
        logits, cache = step(model, ids)
    assert far(logits, model(ids).logits) < 2e-5
    assert (cache.get_seq_length(), len(cache.layers)) == (24, 3)
    for layer in cache.layers:
        assert (layer.keys.nbytes, layer.values.nbytes, layer.fresh, layer.pack) == (0, 0, None, None)
        assert layer.keys.shape == layer.values.shape == (3, 9, 24, 0)
        assert layer.state.shape == (3, 1, 24, 144)


@pytest.mark.parametrize("sizes", [(24,), (7, 1, 16), (20, 1, 1, 1, 1)])
def test_chunks_and_padded_rows_equal_the_model(model, ids, sizes):
    mask = torch.ones(3, 24, dtype=torch.long)
    mask[0, :9], mask[2, :3] = 0, 0
    native = model(ids, attention_mask=mask, position_ids=positions_of(mask)).logits
    with torch.no_grad(), retrofit(model, Remade()):
        got = in_chunks(model, ids, sizes, mask, positions_of(mask))
    assert far(got[mask.bool()], native[mask.bool()]) < 2e-5


@pytest.mark.parametrize("variant", [Remade(), Remade(value_too=True), Placed()])
def test_it_is_cropped_reordered_and_repeated_as_any(model, ids, variant):
    with torch.no_grad(), retrofit(model, variant):
        whole = in_chunks(model, ids, (24,))
        _, cache = step(model, ids[:, :20])
        copied = copy.deepcopy(cache)
        compat.drop_last(cache, 5)
        cache.reorder_cache(torch.tensor([2, 0, 1]))
        again, cache = step(model, ids[[2, 0, 1], 15:], cache)
        assert far(again, whole[[2, 0, 1], 15:]) < 2e-5
        cache.batch_select_indices(torch.tensor([1]))
        cache.batch_repeat_interleave(2)
        compat.drop_last(cache, 1)
        again, cache = step(model, ids[[0, 0], 23:], cache)
        assert far(again, whole[[0, 0], 23:]) < 2e-5
        cache.reset()
        assert cache.get_seq_length() == 0
        assert far(step(model, ids, cache)[0], whole) < 2e-5
        assert far(step(model, ids[:, 20:], copied)[0], whole[:, 20:]) < 2e-5


@pytest.mark.parametrize("beams", [1, 3])
def test_generation_is_the_models_own(model, ids, beams):
    mask = torch.ones(3, 24, dtype=torch.long)
    mask[1, :9] = 0
    given = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "num_beams": beams}
    wanted = model.generate(ids, **given, pad_token_id=0, eos_token_id=None)
    with torch.no_grad(), retrofit(model, Placed()):
        assert torch.equal(model.generate(ids, **given, pad_token_id=0, eos_token_id=None), wanted)


def test_weights_are_derived_once_and_freed(model, ids):
    DERIVED.clear()
    with torch.no_grad(), retrofit(model, Remade()) as active:
        model(ids, use_cache=False)
        assert DERIVED == []
        in_chunks(model, ids, (10, 10, 4))
        in_chunks(model, ids, (24,))
        assert DERIVED == [0, 1, 2]
        assert len(active._derived) == 3
        active.variant = Remade(value_too=True)
        in_chunks(model, ids, (24,))
        assert DERIVED == [0, 1, 2] * 2
    assert active._derived == {}


def test_new_tokens_are_the_models_own(model, ids):
    native, watcher = Watcher(), Watcher()
    with torch.no_grad():
        with retrofit(model, make("dense"), recorder=native):
            in_chunks(model, ids, (20, 4))
        with retrofit(model, Remade(), recorder=watcher):
            in_chunks(model, ids, (20, 4))
    for ours, theirs in zip(watcher.calls, native.calls, strict=True):
        new = theirs.query.shape[2]
        assert far(ours.new_key, theirs.key[:, :, -new:]) < 1e-5
        assert far(ours.new_value, theirs.value[:, :, -new:]) < 1e-5
        assert ours.key.shape == (3, 9, theirs.key.shape[2], 0)
        assert ours.positions is None


@pytest.mark.parametrize("shift", [0, 40])
def test_positions_are_the_models_own_for_every_cached_token(model, ids, shift):
    """Padded rows, a row that is all padding at first, and positions that begin anywhere."""
    mask, watcher = torch.ones(3, 24, dtype=torch.long), Watcher()
    mask[0, :9], mask[2, :14] = 0, 0
    positions = positions_of(mask) + shift
    with torch.no_grad(), retrofit(model, Placed(), recorder=watcher):
        in_chunks(model, ids, (12, 9, 1, 2), mask, positions)
    for call in watcher.calls:
        keys = call.positions.shape[1]
        real = mask[:, :keys].bool()
        assert torch.equal(call.positions[real], positions[:, :keys][real])
    assert watcher.calls[-1].positions.shape == (3, 24)


def test_positions_that_jump_between_chunks_are_refused(model, ids):
    with torch.no_grad(), retrofit(model, Placed()):
        _, cache = step(model, ids[:, :20])
        with pytest.raises(Unsupported, match="jump after 20 cached tokens"):
            step(model, ids[:, 20:], cache, positions=torch.arange(30, 34)[None])


def test_state_comes_from_one_place(model, ids):
    class Both(Remade):
        def prepare(self, hidden, layer, positions, adapter, first_key):
            return Prepared(cached=hidden[:, None])

    with torch.no_grad(), retrofit(model, Both()), pytest.raises(TypeError, match="one place"):
        step(model, ids)


def test_caches_of_others_are_refused(model, ids):
    _, dense = step(model, ids)
    with torch.no_grad(), retrofit(model, Remade()), pytest.raises(Unsupported, match="24 earlier tokens whose keys"):
        step(model, ids[:, :1], dense)
    with torch.no_grad(), retrofit(model, Remade()):
        _, packed = step(model, ids)
    with torch.no_grad(), pytest.raises(Unsupported, match="packed keys"):
        step(model, ids[:, :1], packed)
    with torch.no_grad(), retrofit(model, make("dense")), pytest.raises(Unsupported, match="begun by another variant"):
        step(model, ids[:, :1], packed)


def test_the_cache_of_gpt_neox_is_seen():
    """Its attention takes it under another name than the model does."""
    import transformers as t

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    model = t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**sizes, vocab_size=300)).eval()
    ids = tokens(2, 20)
    with torch.no_grad(), retrofit(model, Routed()):
        whole = model(ids, use_cache=False).logits
        assert far(whole, in_chunks(model, ids, (9, 1, 10))) < 2e-5
        _, cache = step(model, ids)
    assert cache.layers[0].state.shape == (2, 1, 20)
