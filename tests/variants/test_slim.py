"""Slim attention in models of every layout: exact in fp64, half the bytes, and what it refuses."""

import copy
import dataclasses

import pytest
import torch
import transformers as t

from focus_core import compat
from focus_core.benchmark.cache_probe import storage_by_layer
from focus_core.errors import InvalidInput, Unsupported
from focus_core.kernels import slim as slim_kernels
from focus_core.kernels.slim import Turned, slim_attention, slim_from_rotated
from focus_core.kernels.slim.operands import Operands
from focus_core.kernels.slim.triton_applies import slim_triton_refusal
from focus_core.lora import new_lora
from focus_core.models.facts import attention_modules, facts_of
from focus_core.models.projections import projections_of
from focus_core.models.rotation import rotation_of
from focus_core.retrofit import retrofit
from focus_core.routing.slim_forms import SlimForms, SlimFormsConfig
from focus_core.slim_gate import condition
from focus_core.slim_layer import SlimLayer, between, parts_of
from focus_core.variants import Shape, make
from tests.retrofit.helpers import Watcher, far, in_chunks, positions_of, step, tokens
from tests.tiny import VOCAB, tiny_model
from tests.variants.cases import with_key_heads

HEADS, DIM = 9, 16
NAMES = [field.name for field in dataclasses.fields(Operands) if field.name not in ("q", "state", "causal")]
SIZES = {"hidden_size": 144, "num_hidden_layers": 3, "num_attention_heads": 9, "vocab_size": VOCAB}
SIZES |= {"intermediate_size": 288, "initializer_range": 1 / 12, "max_position_embeddings": 1024}
ENDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
QUARTER = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 256}


def biased(model):
    """Every bias random: tiny models begin with zeros."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def other(cls, config, **fields):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(config(**(SIZES | ENDS | fields))).double().eval().requires_grad_(False)


FULL = {"num_key_value_heads": 9}
MODELS = {
    "gpt2": lambda: with_key_heads("gpt2", torch.float64),
    "gpt2 with biases": lambda: biased(with_key_heads("gpt2", torch.float64)),
    "llama": lambda: with_key_heads("llama", torch.float64),
    "llama with biases": lambda: biased(with_key_heads("llama", torch.float64, attention_bias=True)),
    "llama yarn": lambda: with_key_heads("llama", torch.float64, rope_parameters=YARN),
    "neox": lambda: biased(other(t.GPTNeoXForCausalLM, t.GPTNeoXConfig, rotary_pct=0.25)),
    "phi": lambda: biased(other(t.PhiForCausalLM, t.PhiConfig, rope_parameters=QUARTER)),
    "olmo2": lambda: other(t.Olmo2ForCausalLM, t.Olmo2Config, **FULL),
    "qwen3": lambda: with_key_heads("qwen3", torch.float64),
}
"""Fused, interleaved and split projections; biases; whole and partial rotation; norms of a head and of all at once."""
ROTATED = [name for name in MODELS if "gpt2" not in name]


@pytest.fixture(scope="module", params=MODELS)
def named(request):
    return request.param, MODELS[request.param]()


@pytest.mark.parametrize("cache", "kxv")
def test_decoding_is_dense_to_the_last_digits_of_fp64(named, cache):
    """S1, S4, S5: prefill, decode and chunks, padded rows, positions that begin anywhere."""
    name, model = named
    ids, mask = tokens(3, 24), torch.ones(3, 24, dtype=torch.long)
    mask[0, :9], mask[2, :3] = 0, 0
    positions = positions_of(mask) + (40 if name in ROTATED else 0)
    native = model(ids, attention_mask=mask, position_ids=positions).logits
    for order in ("weights", "values"):
        variant = make("slim", {"cache": cache, "order": order})
        with torch.no_grad():
            if cache == "v" and name in ROTATED:
                with pytest.raises(Unsupported, match="no place for"), retrofit(model, variant):
                    step(model, ids)
                continue
            with retrofit(model, variant):
                got = in_chunks(model, ids, (12, 1, 1, 6, 4), mask, positions)
        assert far(got[mask.bool()], native[mask.bool()]) < 1e-8


def test_keys_are_rotated_as_the_model_does_and_back(named):
    name, model = named
    module, watcher = attention_modules(model)[0], Watcher()
    rotation = rotation_of(model, module)
    if name not in ROTATED:
        assert rotation is None
        return
    with torch.no_grad(), retrofit(model, make("slim"), recorder=watcher):
        step(model, tokens(2, 10))
    call = watcher.calls[0]
    raw = torch.randn(2, 9, 10, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turned = rotation(raw, call.positions)
    assert far(turned[:, :, 1:], raw[:, :, 1:]) > 0.1
    assert far(rotation.undo(turned, call.positions), raw) < 1e-12
    shifted = rotation(raw, call.positions + torch.tensor([[0], [300]]))
    assert far(shifted[0], turned[0]) == 0
    assert far(shifted[1], turned[1]) > 0.1


@pytest.mark.parametrize("name", ["llama", "olmo2", "phi"])
def test_keys_in_16_bits_are_rotated_to_the_last_bit_as_the_model_does(name):
    """OLMo rotates by fp32 angles in any type; Phi rotates a part that it cuts off itself."""
    model, watcher = MODELS[name]().bfloat16(), Watcher()
    module = attention_modules(model)[0]
    with torch.no_grad(), retrofit(model, make("dense"), recorder=watcher):
        step(model, tokens(2, 40))
    call = watcher.calls[0]
    with torch.no_grad():
        raw = module.k_proj(call.hidden).unflatten(-1, (HEADS, DIM)).transpose(1, 2)
        assert torch.equal(parts_of(model, module).finish(raw, torch.arange(40)[None]), call.key)


@pytest.mark.parametrize("name", MODELS)
def test_a_rotation_by_halves_is_handed_out_as_tables_that_kernels_read(name):
    """Rotations of a part of a head, and norms, are not; nor are 16-bit keys on a CPU: there the model rounds."""
    model = MODELS[name]()
    layer = SlimLayer(parts_of(model, attention_modules(model)[0]), "k", 0)
    raw, positions = torch.randn(2, HEADS, 30, DIM, dtype=torch.float64), torch.arange(30) + torch.tensor([[0], [300]])
    finish = layer.finish(positions)
    assert isinstance(finish, Turned) == name.startswith("llama")
    if finish is None:
        return
    got, wanted = (
        finish(raw[1:, :, :27], slice(1, 2), slice(3, 30)),
        layer.parts.finish(raw[1:, :, :27], positions[1:, 3:]),
    )
    assert far(got, wanted) < 1e-12
    if name == "llama":
        model.bfloat16()
        halved = SlimLayer(parts_of(model, attention_modules(model)[0]), "k", 0)
        assert not isinstance(halved.finish(positions), Turned)


@pytest.mark.parametrize("name", ["llama", "llama with biases", "llama yarn", "gpt2"])
def test_decoding_in_generate_is_what_the_gpus_kernel_serves(monkeypatch, name):
    calls = []
    monkeypatch.setattr(slim_kernels, "slim_attention", lambda q, state, **given: calls.append((q, state, given)) or
                        slim_attention(q, state, **given))  # fmt: skip
    monkeypatch.setattr("focus_core.kernels.slim.triton_applies.machine_refusal", lambda device: None)
    model, ids = MODELS[name]().float(), tokens(2, 20)
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[1, :6] = 0
    with torch.no_grad(), retrofit(model, make("slim")):
        model.generate(ids, attention_mask=mask, max_new_tokens=3, do_sample=False, pad_token_id=0, eos_token_id=None)
    steps = [(q, state, given) for q, state, given in calls if q.shape[2] == 1]
    assert len(steps) == 2 * len(attention_modules(model))
    for q, state, given in steps:
        left = dict.fromkeys(("key_mask",)) | given
        operands = Operands(q, state, causal=True, **{n: left[n] for n in NAMES})
        with torch.no_grad():
            assert slim_triton_refusal(operands, given["order"]) is None


@pytest.mark.parametrize("name, given", [("llama", {}), ("gpt2", {}), ("gpt2", {"cache": "x"}), ("neox", {})])
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_is_the_models_own(name, given, beams):
    """S3 and S5: greedy and beam search in fp32, which reorders the cache; a row is padded."""
    model, ids = MODELS[name]().float(), tokens(2, 20)
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[1, :6] = 0
    settings = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "num_beams": beams, "pad_token_id": 0}
    wanted = model.generate(ids, **settings, eos_token_id=None)
    with torch.no_grad(), retrofit(model, make("slim", given)):
        assert torch.equal(model.generate(ids, **settings, eos_token_id=None), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gpt2", "gpt2 with biases", "llama", "neox"])
@pytest.mark.parametrize("cache", "kx")
def test_the_live_cache_has_exactly_half_the_bytes(name, cache, dtype):
    """S7: of the memory that is held, not of shapes."""
    model, ids = MODELS[name]().to(dtype), tokens(2, 30)
    held = {}
    for variant in (make("dense"), make("slim", {"cache": cache})):
        with torch.no_grad(), retrofit(model, variant):
            _, kept = step(model, ids[:, :25])
            _, kept = step(model, ids[:, 25:], kept)
        held[variant.name] = kept
    sizes = {n: [sum(x.nbytes for x in _tensors(layer)) for layer in c.layers] for n, c in held.items()}
    assert sizes["slim"] == [s / 2 for s in sizes["dense"]] == [2 * 30 * 144 * dtype.itemsize] * 3
    counted = make("slim", {"cache": cache}).cost(Shape(2, 9, 9, 16, 30, itemsize=dtype.itemsize)).kv_bytes_per_token
    assert sizes["slim"][0] == 2 * 30 * counted
    # A number a row says where its positions begin.
    rows = 2 * 8
    assert storage_by_layer(held["slim"]) == [s + rows for s in sizes["slim"]]


def _tensors(layer):
    return [x for x in (layer.keys, layer.values, getattr(layer, "state", None)) if x is not None]


def test_prefill_has_no_reconstruction_error():
    """In bf16, where the inverse is far off, a prefill is dense to the bit, and what is decoded after it is not."""
    model, ids = tiny_model("gpt2", dtype=torch.bfloat16), tokens(2, 24)
    native = model(ids).logits
    with torch.no_grad():
        with retrofit(model, make("slim")):
            logits, cache = step(model, ids[:, :20])
            after, _ = step(model, ids[:, 20:], cache)
        with retrofit(model, make("dense")):
            _, cache = step(model, ids[:, :20])
            dense, _ = step(model, ids[:, 20:], cache)
        with retrofit(model, make("slim", {"prompt": "rebuilt"})):
            rebuilt = model(ids, use_cache=False).logits
    assert torch.equal(logits, native[:, :20])
    assert far(after, dense) > 0.05
    assert far(rebuilt, native) > 0.05


def test_every_layer_may_keep_its_own_form():
    model, ids = biased(with_key_heads("gpt2")), tokens(2, 24)
    adapter = SlimForms(SlimFormsConfig(["x", "dense", "v"]))
    native = model(ids).logits
    with torch.no_grad(), retrofit(model, make("slim"), adapter):
        assert far(in_chunks(model, ids, (12, 1, 11)), native) < 1e-4
        _, cache = step(model, ids)
    assert [layer.values.shape[-1] for layer in cache.layers] == [0, 16, 0]
    assert [layer.state is None for layer in cache.layers] == [False, True, False]
    with pytest.raises(InvalidInput, match=r"forms are \['k', 'q'\]"):
        SlimFormsConfig(["k", "q"])
    again = copy.deepcopy(adapter)
    with torch.no_grad(), retrofit(model, make("slim"), again), pytest.raises(Unsupported, match="another adapter"):
        step(model, ids[:, :1], cache)


def test_a_lora_update_is_part_of_the_matrices():
    model, ids = with_key_heads("llama"), tokens(2, 20)
    lora = new_lora(model, rank=4, targets="kv")
    with torch.no_grad():
        for n, parameter in enumerate(lora.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(n)) * 0.1)
        with retrofit(model, make("dense"), lora):
            wanted = in_chunks(model, ids, (12, 8))
        with retrofit(model, make("slim"), lora):
            got = in_chunks(model, ids, (12, 8))
    assert far(wanted, model(ids).logits) > 0.1
    assert far(got, wanted) < 1e-3


def test_models_that_it_cannot_serve_are_refused_with_the_reason():
    """S6."""

    def reason(model, **given):
        support = make("slim", given).supports(facts_of(model))
        assert not support.ok
        return support.reason

    assert "9 query heads share 3 key heads (GQA)" in reason(tiny_model("llama"))
    assert "144 numbers a token against 96" in reason(tiny_model("llama"), cache="x")
    wide = other(t.LlamaForCausalLM, t.LlamaConfig, head_dim=32, **FULL)
    assert "288 numbers and its hidden state 144: W_K is not square" in reason(wide)
    assert "no place for a rotation" in reason(with_key_heads("llama"), cache="v")
    narrow = other(t.LlamaForCausalLM, t.LlamaConfig, head_dim=8, **FULL)
    assert "144 is no smaller than keys and values of 144" in reason(narrow, cache="x")


def test_heads_wider_than_the_hidden_state_are_served_from_it():
    """e > d, as in CodeGemma-7B: the input of the layer is smaller than keys alone."""
    model, ids = other(t.LlamaForCausalLM, t.LlamaConfig, head_dim=32, **FULL), tokens(2, 20)
    with torch.no_grad(), retrofit(model, make("slim", {"cache": "x"})):
        assert far(in_chunks(model, ids, (12, 1, 7)), model.forward(ids, use_cache=False).logits) < 1e-9
        _, cache = step(model, ids)
    assert storage_by_layer(cache) == [2 * 20 * 144 * 8 + 2 * 8] * 3


def test_what_a_layer_does_beside_its_projections_is_refused():
    """A clip of keys and values is in no matrix: decoding would be wrong without a word."""
    clipped = other(t.OlmoForCausalLM, t.OlmoConfig, clip_qkv=0.5, **FULL)
    with torch.no_grad(), retrofit(clipped, make("slim")), pytest.raises(Unsupported, match="does more to its keys"):
        step(clipped, tokens(1, 8))
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = tiny_model("llama", kv_heads=9, rope_parameters=dynamic)
    with (
        torch.no_grad(),
        retrofit(model, make("slim")),
        pytest.raises(Unsupported, match="'dynamic': its angles change"),
    ):
        step(model, tokens(1, 8))


def test_a_matrix_without_an_inverse_or_too_large_for_the_type_is_refused():
    for factor, dtype, problem in ((1e-5, torch.float16, "more than float16 holds"), (0, torch.float32, "singular")):
        model = tiny_model("gpt2", layers=1)
        projections_of(attention_modules(model)[0], HEADS, DIM)[1].weight[:, 0] *= factor
        model.to(dtype)
        with torch.no_grad(), retrofit(model, make("slim")), pytest.raises(Unsupported, match=problem):
            step(model, tokens(1, 8))
    assert condition(torch.zeros(3, 3)) == float("inf")
    assert condition(torch.diag(torch.tensor([4.0, 2.0, 1.0]))) == 4
    with pytest.raises(Unsupported, match="2 to 3 numbers has no inverse"):
        between(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(Unsupported, match="cannot be read"):
        projections_of(torch.nn.Linear(3, 3), 1, 3)


def test_the_cost_of_a_decoded_token_is_that_of_the_order():
    """2nd(h + 1) operations of reading K twice, and one matrix; or a matrix for every cached token."""
    shape = Shape(2, 12, 12, 64, 4097, queries=1)
    scores = 2 * 4097 * 768
    new = 2 * 768
    weights = scores + 2 * 4096 * 768 * 12 + new + 2 * 768 * 768
    values = scores + 2 * 4096 * 768 + new + 2 * 4096 * 768 * 768
    assert make("slim").cost(shape).flops == 2 * weights == make("slim", {"order": "weights"}).cost(shape).flops
    assert make("slim", {"order": "values"}).cost(shape).flops == 2 * values
    x = 2 * 4096 * 768 * 12 * 2 + 2 * new + 2 * 2 * 768 * 768
    assert make("slim", {"cache": "x"}).cost(shape).flops == 2 * x
    assert make("slim").cost(shape).bytes == 2 * 4 * (4 * 768 + 4096 * 768)
    dense = make("dense").cost(shape)
    assert make("slim").cost(shape).kv_bytes_per_token == dense.kv_bytes_per_token / 2


def test_the_report_says_which_form_each_layer_keeps():
    report = make("slim").layer_report(3, SlimForms(SlimFormsConfig(["k", "x", "dense"])))
    assert report == [{"layer": n, "form": form} for n, form in enumerate(("k", "x", "dense"))]
    assert [line["form"] for line in make("slim", {"cache": "v"}).layer_report(2, None)] == ["v", "v"]


def test_a_cropped_cache_goes_on():
    model, ids = with_key_heads("llama"), tokens(2, 24)
    with torch.no_grad(), retrofit(model, make("slim")):
        whole = in_chunks(model, ids, (24,))
        _, cache = step(model, ids)
        compat.drop_last(cache, 6)
        assert far(step(model, ids[:, 18:], cache)[0], whole[:, 18:]) < 1e-4


def test_rotations_of_a_models_keys_are_undone_where_a_weight_is_worth_it():
    """Section 3b of the note, on the rotated keys that a dense cache holds."""
    model, ids, watcher = MODELS["llama"](), tokens(2, 40), Watcher()
    with torch.no_grad(), retrofit(model, make("dense"), recorder=watcher):
        _, cache = step(model, ids[:, :39])
        step(model, ids[:, 39:], cache)
    module, call = attention_modules(model)[1], watcher.calls[4]
    assert (call.layer, call.query.shape[2]) == (1, 1)
    rotation, (_, key, value) = rotation_of(model, module), projections_of(module, HEADS, DIM)

    def undo(keys, at):
        return rotation.undo(keys, at[None])

    wanted = make("dense").attend(call)
    matrix, shares = between(key.weight, value.weight), []
    for cutoff in (0.0, 0.05, 0.15):
        found = slim_from_rotated(call.query, call.key, matrix, undo, cutoff=cutoff, scale=call.scale)
        dropped = 1 - found.mass
        assert far(found.output, wanted) <= float(dropped.max() * call.value.abs().max()) + 1e-10
        shares.append(float(found.undone.mean()))
    assert shares[0] == 1 > shares[1] > shares[2] > 0
