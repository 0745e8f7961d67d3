"""The factors of a latent: which directions and rotations they keep, what they refuse, and that they are an adapter."""

import pytest
import torch

from focus_core.adapter import load_adapter
from focus_core.errors import InvalidInput, Unsupported
from focus_core.models.facts import facts_of
from focus_core.models.projections import Projection
from focus_core.retrofit import retrofit
from focus_core.routing.factorise import default_rotary, factorise, joint_factors
from focus_core.routing.latent import LatentFactors, LatentSettings
from focus_core.variants import make
from tests.retrofit.helpers import far, tokens
from tests.tiny import tiny_model


def lost(x: torch.Tensor, keys: Projection, values: Projection, rank: int, weighted: bool) -> torch.Tensor:
    """Mean squared loss of the keys and of the values, of each against its own mean square about the mean."""
    mean = x.mean(0)
    moments = (mean, (x - mean).T @ (x - mean) / len(x)) if weighted else None
    down, up, bias = joint_factors(keys, values, rank, moments)
    made, split = x @ down @ up.mT + bias, keys.weight.shape[1]
    errors = []
    for project, part in ((keys, made[:, :split]), (values, made[:, split:])):
        whole = project(x)
        errors.append((whole - part).square().mean() / (whole - whole.mean(0)).square().mean())
    return torch.stack(errors)


@pytest.fixture
def projected():
    """Hidden states that vary along few directions, about a mean far off; keys ten times as large as values."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(500, 24, generator=draw, dtype=torch.float64) * torch.logspace(0, -3, 24, dtype=torch.float64) + 3
    weights = [torch.randn(24, 20, generator=draw, dtype=torch.float64) for _ in range(2)]
    return x, Projection(10 * weights[0], torch.ones(20, dtype=torch.float64)), Projection(weights[1], None)


def test_factors_weighted_by_hidden_states_lose_less_of_both(projected):
    for rank in (4, 8, 12):
        ours, plain = (lost(*projected, rank, weighted) for weighted in (True, False))
        assert (ours < 0.2 * plain).all()
        assert ours.max() < 3 * ours.min()
    assert lost(*projected, 24, True).max() < 1e-16
    assert lost(*projected, 24, False).max() < 1e-16


def test_no_other_factors_of_that_rank_lose_less(projected):
    """Against gradient descent from the found ones: they are a minimum already."""
    x, keys, values = projected
    keys = Projection(keys.weight / 10, keys.bias)
    whole = torch.cat([keys(x), values(x)], 1)
    sizes = torch.ones(40, dtype=torch.float64)
    mean = x.mean(0)
    found = joint_factors(keys, values, 6, (mean, (x - mean).T @ (x - mean) / len(x)))
    down, up, bias = (part.clone().requires_grad_() for part in found)
    spread = ((x - mean) @ keys.weight).square().mean().sqrt() / ((x - mean) @ values.weight).square().mean().sqrt()
    sizes[:20] = spread
    error = (((x @ down @ up.mT + bias) - whole) / sizes).square().sum()
    error.backward()
    for part in (down, up, bias):
        assert part.grad.norm() < 1e-5 * error.detach() * part.detach().norm()


def test_the_rotations_that_are_kept_are_those_that_scores_need():
    """Slow pairs hardly turn in 64 tokens: whatever their size, the quick ones are kept."""
    tiny = tiny_model("llama")
    for layer in tiny.model.layers:
        layer.self_attn.k_proj.weight.view(3, 2, 8, -1)[:, :, 6:].mul_(5.0)
    factors = factorise(tiny, tokens(2, 64), 40, rotary=8)
    assert factors.kept.shape == (3, 3, 8)
    pairs = factors.kept[..., :4]
    assert torch.equal(factors.kept[..., 4:], pairs + 8)
    assert (pairs < 6).all()
    both = torch.cat([factors.kept, factors.others], -1).sort(-1).values
    assert torch.equal(both, torch.arange(16).expand(3, 3, -1))
    assert default_rotary(facts_of(tiny)) == 8
    assert default_rotary(facts_of(tiny_model("gpt2"))) == 0


def test_perplexity_falls_with_the_rank():
    tiny, ids = tiny_model("gpt2"), tokens(4, 64, seed=5)
    wanted, errors = tiny(ids).logits, []
    for rank in (16, 48, 96, 143):
        factors = factorise(tiny, ids, rank)
        with torch.no_grad(), retrofit(tiny, make("mla", factors.serve), factors):
            errors.append((tiny(ids).logits - wanted).square().mean().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.05 * errors[0]


def test_what_cannot_be_factored_is_refused():
    ids = tokens(1, 16)
    for model, words in (
        (tiny_model("qwen3"), "normalises its keys"),
        (tiny_model("deepseek_v3"), "latent attention of its own"),
    ):
        with pytest.raises(Unsupported, match=words):
            factorise(model, ids, 4)
    for options, words in (
        ({"rank": 97, "rotary": 0}, "rank is 97"),
        ({"rank": 0}, "rank is 0"),
        ({"rank": 8, "rotary": 3}, "3 numbers of each head's key"),
        ({"rank": 8, "rotary": 18}, "18 numbers"),
        ({"rank": 8, "weighting": "luck"}, "no weighting"),
    ):
        with pytest.raises(InvalidInput, match=words):
            factorise(tiny_model("llama"), ids, **options)
    with pytest.raises(InvalidInput, match="2 numbers"):
        factorise(tiny_model("gpt2"), ids, 8, rotary=2)


def test_a_rotation_of_neighbours_is_found_out_and_refused(monkeypatch):
    import transformers.models.llama.modeling_llama as llama

    def neighbours(x):
        return torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)

    tiny = tiny_model("llama")
    facts = facts_of(tiny)
    monkeypatch.setattr(llama, "rotate_half", neighbours)
    monkeypatch.setattr("focus_core.models.facts.facts_of", lambda model: facts)
    with pytest.raises(Unsupported, match="rotate them by halves"):
        factorise(tiny, tokens(1, 16), 8)


def test_a_model_that_scales_its_queries_and_rotates_none_is_factored():
    """OPT: a factor stands for keys and values alone, whatever was done to the queries."""
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 128, "hidden_size": 32, "ffn_dim": 64, "word_embed_proj_dim": 32}
    config = OPTConfig(num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64, **sizes)
    tiny, ids = OPTForCausalLM(config).eval().requires_grad_(False), tokens(2, 32) % 128
    factors = factorise(tiny, ids, 32)
    wanted = tiny(ids).logits
    with torch.no_grad(), retrofit(tiny, make("mla", factors.serve), factors):
        assert far(tiny(ids).logits, wanted) < 1e-5
    for layer in tiny.model.decoder.layers:
        layer.self_attn.v_proj.register_forward_hook(lambda module, given, made: made.clamp(-0.01, 0.01))
    with pytest.raises(Unsupported, match="does more to its values than project them, which no factor"):
        factorise(tiny, ids, 32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_and_loaded_it_serves_the_same(dtype, tmp_path):
    tiny, ids = tiny_model("llama", dtype=dtype), tokens(2, 20)
    factors = factorise(tiny, tokens(2, 64, seed=5), 40, rotary=8)
    loaded = load_adapter(factors.save_pretrained(tmp_path, tiny), tiny)
    assert isinstance(loaded, LatentFactors)
    assert loaded.config == LatentSettings(3, 9, 3, 16, 144, 40, 8, 16)
    assert loaded.serve == {"rank": 40, "rotary": 8}
    got = []
    for adapter in (factors, loaded):
        with torch.no_grad(), retrofit(tiny, make("mla", loaded.serve), adapter):
            got.append(tiny(ids, use_cache=False).logits)
    assert far(*got) == 0
