"""What a retrofit leaves behind (nothing), who watches it, and two at a time."""

import threading

import pytest
import torch

from focus_core.errors import Unsupported
from focus_core.retrofit import retrofit
from focus_core.variants import make
from tests.retrofit.helpers import Routed, Watcher, far, positions_of, step, tokens
from tests.tiny import FAMILIES, WINDOW, tiny_model


def hooks_of(model):
    return [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()]


def names_of(model):
    return [m.config._attn_implementation for m in model.modules() if hasattr(m, "config")]


@pytest.mark.parametrize(
    "family, implementation", [(f, "eager") for f in FAMILIES] + [(f, "sdpa") for f in FAMILIES if f != "gemma2"]
)
def test_the_model_is_as_it_was(family, implementation):
    model, ids = tiny_model(family, attn_implementation=implementation), tokens(2, 30)
    native, names, hooks, keys = model(ids).logits, names_of(model), hooks_of(model), set(vars(model))
    with retrofit(model, Routed()):
        model(ids)
        assert set(names_of(model)) == {"focus_lab"}
    assert torch.equal(model(ids).logits, native)
    assert (names_of(model), hooks_of(model), set(vars(model))) == (names, hooks, keys)
    assert set(names) == {implementation}


def test_the_model_is_as_it_was_after_an_exception():
    model, ids = tiny_model("llama"), tokens(2, 30)
    native, hooks = model(ids).logits, hooks_of(model)

    def inside():
        with retrofit(model, Routed()):
            model(ids)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        inside()
    assert torch.equal(model(ids).logits, native)
    assert hooks_of(model) == hooks
    with retrofit(model, Routed()):
        model(ids)


def test_a_forward_that_failed_does_not_disturb_the_next():
    model, ids, watcher = tiny_model("llama"), tokens(2, 30), Watcher()

    def fail(*_):
        raise RuntimeError("in the middle")

    with retrofit(model, Routed(), recorder=watcher):
        expected = model(ids).logits
        failing = model.model.layers[1].mlp.register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            model(ids)
        failing.remove()
        watcher.calls.clear()
        assert far(model.model(ids).last_hidden_state @ model.lm_head.weight.T, expected) < 1e-4
        assert [call.layer for call in watcher.calls] == [0, 1, 2]


def test_an_interrupted_forward_does_not_hide_a_layer_of_the_next():
    model, ids = tiny_model("llama"), tokens(2, 30)

    def interrupt(*_):
        raise KeyboardInterrupt

    with retrofit(model, Routed()):
        stopping = model.model.layers[2].mlp.register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(ids)
        stopping.remove()
        model.model.layers[1].self_attn.forward = lambda hidden_states, **kwargs: (hidden_states, None)
        with pytest.raises(Unsupported, match="Layers 1 of llama"):
            model(ids)


def test_the_text_part_of_a_model_that_sees_images():
    import transformers as t

    text = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "layer_types": ["full_attention"] * 2}
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 16, "patch_size": 8}
    special = {"image_token_index": 299, "boi_token_index": 298, "eoi_token_index": 297}
    config = t.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, **special)
    model, ids = t.Gemma3ForConditionalGeneration(config).eval(), tokens(1, 20) % 250
    model.set_attn_implementation({"vision_config": "eager", "text_config": "sdpa"})
    names, image = names_of(model), torch.zeros_like(ids)
    image[:, 4:8] = 1
    assert set(names) == {"eager", "sdpa"}
    with torch.no_grad():
        native = model(ids).logits
        with retrofit(model, Routed(window=20)):
            assert far(model(ids).logits, native) < 2e-5
            assert config.vision_config._attn_implementation == "eager"
            with pytest.raises(Unsupported, match="image blocks"):
                model(ids, token_type_ids=image)
    assert names_of(model) == names


def test_a_recorder_sees_every_layer_once():
    model, ids, watcher = tiny_model("gemma2"), tokens(2, 30), Watcher()
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    with retrofit(model, Routed(), recorder=watcher) as active:
        model(ids, attention_mask=mask, position_ids=positions_of(mask))
    assert active.facts.native == (WINDOW, None, WINDOW)
    assert [(c.layer, c.sliding_window) for c in watcher.calls] == [(0, WINDOW), (1, None), (2, WINDOW)]
    native, own = watcher.calls[0], watcher.calls[1]
    assert native.cached is None
    assert own.cached.shape == own.fresh.shape == (2, 1, 30)
    assert own.hidden.shape == (2, 30, model.config.hidden_size)
    assert own.softcap == 5.0
    assert own.scale == 0.25
    assert own.first_key.tolist() == [0, 4]


def test_hidden_is_what_the_projections_read():
    for family, name in (("gpt2", "transformer.h.1.attn.c_attn"), ("llama", "model.layers.1.self_attn.q_proj")):
        model, watcher, seen = tiny_model(family), Watcher(), []
        hook = model.get_submodule(name).register_forward_pre_hook(lambda m, args, seen=seen: seen.append(args[0]))
        with retrofit(model, Routed(), recorder=watcher):
            model(tokens(2, 12))
        hook.remove()
        assert torch.equal(seen[0], watcher.calls[1].hidden)


def test_positions_count_real_tokens():
    model, seen = tiny_model("llama"), []

    class Asking(Routed):
        def prepare(self, hidden, layer, positions, adapter, first_key):
            seen.append((positions.tolist(), None if first_key is None else first_key.tolist()))
            return super().prepare(hidden, layer, positions, adapter, first_key)

    ids, mask = tokens(2, 5), torch.tensor([[1] * 5, [0, 0, 1, 1, 1]])
    with retrofit(model, Asking()):
        _, cache = step(model, ids, mask=mask, positions=positions_of(mask))
        assert seen[0] == ([[0, 1, 2, 3, 4], [-2, -1, 0, 1, 2]], [0, 2])
        more = torch.cat([mask, torch.ones(2, 2).long()], 1)
        step(model, ids[:, :2], cache, more, positions_of(more)[:, 5:])
        assert seen[3] == ([[5, 6], [3, 4]], [0, 2])
        model(ids)
        assert seen[6] == ([[0, 1, 2, 3, 4]] * 2, None)


def test_two_models_and_two_threads_do_not_mix():
    models = [tiny_model("llama", seed=s) for s in (0, 1)]
    variants = [Routed(), make("window", {"window": 4, "sinks": 1})]
    batches = [tokens(2, 30, seed=s) for s in range(4)]
    wrong = []

    def work(index, expected):
        for i in (index, index + 2):
            for model, logits in zip(models, expected, strict=True):
                with torch.no_grad():
                    if far(model(batches[i]).logits, logits[i]) > 1e-5:
                        wrong.append(i)

    with torch.no_grad(), retrofit(models[0], variants[0]), retrofit(models[1], variants[1]):
        expected = [[model(ids).logits for ids in batches] for model in models]
        threads = [threading.Thread(target=work, args=(i, expected)) for i in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_two_threads_may_be_in_one_layer_at_once():
    model, batches = tiny_model("llama", layers=1), [tokens(2, 30), tokens(2, 20, seed=1)]
    meeting, found = threading.Barrier(2, timeout=60), {}

    def meet(*_):
        meeting.wait()

    def work(index):
        with torch.no_grad():
            found[index] = model(batches[index]).logits

    with torch.no_grad(), retrofit(model, Routed()):
        expected = [model(ids).logits for ids in batches]
        # Both threads have passed the layer's pre-hook, and neither has reached its attention.
        hook = model.model.layers[0].self_attn.k_proj.register_forward_hook(meet)
        threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        hook.remove()
    assert all(far(found[i], expected[i]) < 1e-5 for i in (0, 1))


def test_the_variant_may_be_replaced_between_forwards():
    model, ids = tiny_model("llama"), tokens(2, 30)
    with torch.no_grad(), retrofit(model, Routed()) as active:
        active.variant = make("dense")
        inside = model(ids).logits
    assert far(inside, model(ids).logits) < 2e-5


def test_a_model_whose_code_does_not_ask_the_interface():
    model = tiny_model("llama")
    kind = type(model.model)
    kind._can_set_attn_implementation_cached_value, before = False, kind._can_set_attn_implementation()
    try:
        with pytest.raises(Unsupported, match="cannot be replaced"), retrofit(model, make("dense")):
            pass
    finally:
        kind._can_set_attn_implementation_cached_value = before
