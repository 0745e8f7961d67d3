import pytest
import torch

from focus_core.evaluation import likelihood
from focus_core.evaluation.perplexity import token_nll
from tests.tiny import FAMILIES, VOCAB, tiny_model


def plain_nll(model, ids):
    with torch.no_grad():
        logits = model(input_ids=ids).logits.double()
    return -logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]


@pytest.fixture
def ids():
    return torch.randint(VOCAB, (2, 41), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_the_plain_computation(family, ids, monkeypatch):
    monkeypatch.setattr(likelihood, "_ROWS", 7)
    monkeypatch.setattr(likelihood, "_VOCABULARY", 64)
    model = tiny_model(family)
    with torch.no_grad():
        nll = token_nll(model, ids)
    assert nll.shape == (2, 40)
    assert nll.dtype == torch.float32
    assert (nll - plain_nll(model, ids)).abs().max() < 2e-5


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_logits_are_fp32_whatever_the_weights(family, ids):
    model = tiny_model(family, dtype=torch.bfloat16)
    seen = []
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda m, a: seen.append(a[0]))
    with torch.no_grad():
        model(input_ids=ids)
        hook.remove()
        nll = token_nll(model, ids)
        logits = seen[0].double() @ model.get_output_embeddings().weight.double().T
    if cap := getattr(model.config, "final_logit_softcapping", None):
        logits = cap * (logits / cap).tanh()
    expected = -logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    assert (nll - expected).abs().max() < 1e-4


def test_the_soft_cap_matters(ids):
    model = tiny_model("gemma2", final_logit_softcapping=0.5)
    uncapped = tiny_model("gemma2", final_logit_softcapping=None)
    with torch.no_grad():
        assert (token_nll(model, ids) - token_nll(uncapped, ids)).abs().max() > 0.1
        assert (token_nll(model, ids) - plain_nll(model, ids)).abs().max() < 2e-5


def test_a_head_with_another_scale_goes_through_the_model_itself(ids):
    class Scaled(type(tiny_model())):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits = out.logits * 0.25
            return out

    model = tiny_model()
    model.__class__ = Scaled
    with torch.no_grad():
        assert (token_nll(model, ids) - plain_nll(model, ids)).abs().max() < 2e-5


def test_gradients_flow(ids):
    model = tiny_model()
    weight = model.model.layers[0].mlp.up_proj.weight.requires_grad_(True)
    token_nll(model, ids).sum().backward()
    own = weight.grad.clone()
    weight.grad = None
    logits = model(input_ids=ids).logits
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").backward()
    assert (own - weight.grad).abs().max() < 1e-4 * weight.grad.abs().max()


def test_the_head_is_left_as_it_was(ids):
    model = tiny_model()
    with torch.no_grad():
        before = model(input_ids=ids).logits
        token_nll(model, ids)
        assert torch.equal(model(input_ids=ids).logits, before)
    assert not model.get_output_embeddings()._forward_pre_hooks


@pytest.mark.parametrize("family", FAMILIES)
def test_the_likeliest_tokens_are_found_across_tiles(family, ids, monkeypatch):
    monkeypatch.setattr(likelihood, "_ROWS", 7)
    monkeypatch.setattr(likelihood, "_VOCABULARY", 5)
    model = tiny_model(family)
    with torch.no_grad():
        found = likelihood.token_scores(model, ids, 8)
        shares = model(input_ids=ids).logits.double().softmax(-1)
    best = shares.topk(8)
    assert found.top_ids.shape == found.top_p.shape == (2, 41, 8)
    assert (found.top_p - best.values).abs().max() < 1e-5
    assert (shares.gather(-1, found.top_ids) - best.values).abs().max() < 1e-5
    assert (found.nll - plain_nll(model, ids)).abs().max() < 2e-5


def test_the_likeliest_tokens_without_a_plain_head(ids, monkeypatch):
    model = tiny_model()
    tiled = likelihood.token_scores(model, ids, 3)
    monkeypatch.setattr(likelihood, "_agrees", lambda *given: False)
    monkeypatch.setattr(likelihood, "_ROWS", 9)
    with torch.no_grad():
        plain = likelihood.token_scores(model, ids, 3)
        everything = likelihood.token_scores(model, ids, VOCAB + 50)
    assert torch.equal(plain.top_ids, tiled.top_ids)
    assert (plain.top_p - tiled.top_p).abs().max() < 1e-5
    assert everything.top_p.shape == (2, 41, VOCAB)
    assert (everything.top_p.sum(-1) - 1).abs().max() < 1e-5
    assert likelihood.token_scores(model, ids).top_ids.shape == (2, 41, 0)
