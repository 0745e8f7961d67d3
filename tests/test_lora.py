"""LoRA through PEFT: what it changes, that all else comes back, and that PEFT reads what is written."""

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import nn

from focus_core.adapter import load_adapter, read_config
from focus_core.errors import InvalidInput
from focus_core.lora import LoraAdapter, LoraSettings, new_lora
from focus_core.models.facts import facts_of
from focus_core.retrofit import retrofit
from focus_core.routing.online import RoutingCentroids, RoutingConfig
from focus_core.variants import make
from tests.retrofit.helpers import far, in_chunks, tokens
from tests.tiny import FAMILIES, tiny_model


def moved(model, **settings) -> LoraAdapter:
    """An adapter that changes the model, as a trained one would."""
    adapter = new_lora(model, **settings).requires_grad_(False)
    generator = torch.Generator().manual_seed(7)
    for name, parameter in adapter.named_parameters():
        if "lora_B" in name:
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return adapter


def run(model, adapter, ids, variant="dense", **settings):
    with torch.no_grad(), retrofit(model, make(variant, settings), adapter):
        return model(ids, use_cache=False).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_an_untrained_one_changes_nothing_and_a_trained_one_what_it_says(family):
    model, ids = tiny_model(family), tokens(2, 20)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modules = {name: id(module) for name, module in model.named_modules()}
    base = run(model, None, ids)
    assert far(run(model, new_lora(model), ids), base) == 0
    adapter = moved(model)
    got = run(model, adapter, ids)
    assert far(got, base) > 0.01
    # Everything is back, to the very objects.
    assert {name: id(module) for name, module in model.named_modules()} == modules
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not hasattr(model, "peft_config")
    assert not any(p.requires_grad for p in model.parameters())
    assert far(run(model, None, ids), base) == 0
    # W + alpha / r * B A, written into the weights by hand.
    for name, _, _ in adapter.config.modules:
        place = adapter.get_submodule(f"base_model.model.{name}")
        update = adapter.config.alpha / adapter.config.rank * place.lora_B.weight @ place.lora_A.weight
        weight = model.get_submodule(name).weight
        weight.add_(update.T if type(model.get_submodule(name)).__name__ == "Conv1D" else update)
    assert far(run(model, None, ids), got) < 1e-4


def test_the_projections_can_be_chosen():
    model = tiny_model()
    names = [name.rsplit(".", 1)[-1] for name, _, _ in new_lora(model, targets="qkvo").config.modules]
    assert names == ["q_proj", "k_proj", "v_proj", "o_proj"] * 3
    assert [n for n, _, _ in new_lora(tiny_model("gpt2"), targets="qkv").config.modules] == [
        f"transformer.h.{i}.attn.c_attn" for i in range(3)
    ]
    for wrong in ("", "x", "qq"):
        with pytest.raises(InvalidInput, match="projections are"):
            new_lora(model, targets=wrong)


@pytest.mark.parametrize("rank", [1, 4, 16])
def test_parameters_grow_with_the_rank(rank):
    adapter = new_lora(tiny_model(), rank=rank)
    assert sum(p.numel() for p in adapter.parameters()) == 3 * rank * ((144 + 144) + (144 + 48))
    with pytest.raises(InvalidInput, match="rank and an alpha above 0"):
        LoraSettings((("a", 1, 1),), rank=0)


def test_a_rank_above_the_projections_sides_is_refused():
    model = tiny_model()
    assert new_lora(model, rank=144).config.rank == 144
    with pytest.raises(InvalidInput, match="rank is 145"):
        new_lora(model, rank=145)


# PEFT's own code asks transformers for a name that will go.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_peft_reads_what_is_written_and_so_do_we(family, tmp_path):
    model, ids = tiny_model(family), tokens(2, 20)
    adapter = moved(model, rank=4, alpha=6.0)
    adapter.save_pretrained(tmp_path, model)
    wanted = run(model, adapter, ids)
    again = load_adapter(tmp_path, model)
    assert again.config == adapter.config
    assert far(run(model, again, ids), wanted) == 0
    theirs = PeftModel.from_pretrained(tiny_model(family), tmp_path / "peft")
    with torch.no_grad():
        assert far(theirs(ids).logits, wanted) < 1e-5
    assert json.loads((tmp_path / "peft" / "adapter_config.json").read_text())["peft_type"] == "LORA"
    with pytest.raises(InvalidInput, match="trained for another model"):
        load_adapter(tmp_path, tiny_model(family, seed=1))
    assert read_config(tmp_path)["kind"] == "lora"


@pytest.mark.parametrize("name, settings", [("dense", {}), ("window", {"window": 4}), ("performer", {"features": 32})])
def test_it_goes_with_every_variant_that_needs_no_adapter(name, settings):
    model, ids = tiny_model(), tokens(2, 40)
    adapter = moved(model)
    whole = run(model, adapter, ids, name, **settings)
    assert far(whole, run(model, None, ids, name, **settings)) > 0.01
    with torch.no_grad(), retrofit(model, make(name, settings), adapter):
        assert far(in_chunks(model, ids, (25, *[1] * 15)), whole) < 3e-5


def test_a_variant_with_an_adapter_of_its_own_refuses_it():
    model = tiny_model()
    with pytest.raises(InvalidInput, match="needs an adapter of kind 'router'; 'lora' was given"):
        run(model, moved(model), tokens(1, 8), "focus")


def test_the_model_comes_back_after_an_error():
    model, ids = tiny_model(), tokens(1, 8)
    base, query = run(model, None, ids), model.model.layers[0].self_attn.q_proj
    with pytest.raises(IndexError), retrofit(model, make("dense"), moved(model)):
        model(ids + 1_000_000)
    assert model.model.layers[0].self_attn.q_proj is query
    assert far(run(model, None, ids), base) == 0


def test_gradients_reach_every_matrix_and_no_weight():
    model = tiny_model()
    adapter = moved(model).requires_grad_(True)
    for _ in range(2):
        with retrofit(model, make("performer", {"features": 32}), adapter):
            model(tokens(1, 30), use_cache=False).logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in adapter.parameters())
    assert all(p.grad is None for p in model.parameters())


def test_a_bf16_model_keeps_its_type():
    model, ids = tiny_model(dtype=torch.bfloat16), tokens(1, 20)
    adapter = moved(model)
    assert run(model, adapter, ids).dtype == torch.bfloat16
    assert all(isinstance(p, nn.Parameter) and p.dtype == torch.float32 for p in adapter.parameters())


def routed_tiny(model) -> RoutingCentroids:
    found = facts_of(model)
    config = RoutingConfig(found.layers, found.kv_heads, found.head_dim, groups=4, seed=3)
    return RoutingCentroids(config).requires_grad_(False)


def test_it_holds_the_adapter_that_the_variant_reads(tmp_path):
    model, ids, serve = tiny_model(), tokens(2, 60), {"groups": 4, "window": 4, "sinks": 1}
    read = routed_tiny(model)
    # With a B of zeros it is what the held adapter is alone.
    unmoved = new_lora(model, through="routing", reads=read)
    alone = run(model, read, ids, "routing", **serve)
    assert far(run(model, unmoved, ids, "routing", **serve), alone) == 0
    adapter = moved(model, through="routing", reads=read)
    whole = run(model, adapter, ids, "routing", **serve)
    assert far(whole, alone) > 0.01
    with torch.no_grad(), retrofit(model, make("routing", serve), adapter):
        assert far(in_chunks(model, ids, (25, *[1] * 35)), whole) < 3e-5
    adapter.save_pretrained(tmp_path, model)
    again = load_adapter(tmp_path, model)
    assert far(run(model, again, ids, "routing", **serve), whole) == 0
    # PEFT's own copy has the updates alone.
    state = load_file(tmp_path / "peft" / "adapter_model.safetensors")
    assert state
    assert all("lora_" in name for name in state)
    # Training moves the updates, never what they hold.
    again.requires_grad_(True)
    assert not any(p.requires_grad for p in again.reads.parameters())
    assert {name.split(".")[0] for name, p in again.named_parameters() if p.requires_grad} == {"base_model"}
    with pytest.raises(InvalidInput, match="needs an adapter of kind 'router'; 'lora' was given"):
        run(model, again, ids, "focus")
