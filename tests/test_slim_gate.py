"""The gate of Slim attention: errors on real activations, what each layer then keeps, and serving it so."""

import json

import pytest
import torch

from focus_core.adapter import load_adapter
from focus_core.errors import Cancelled, InvalidInput, Unsupported
from focus_core.models.facts import attention_modules
from focus_core.models.loading import load_model
from focus_core.models.projections import projections_of
from focus_core.retrofit import retrofit
from focus_core.slim_gate import DTYPES, forms_adapter, gate, hidden_states
from focus_core.variants import make
from tests.retrofit.helpers import far, in_chunks, tokens
from tests.tiny import tiny_model
from tests.variants.cases import with_key_heads


def spoiled(model, layer, factor=1e-6):
    """A layer whose key projection has a condition number of about 1 / factor."""
    weight = projections_of(attention_modules(model)[layer], 9, 16)[1].weight
    left, values, right = torch.linalg.svd(weight.double())
    values[-1] = factor * values[0]
    weight.copy_(left @ values.diag() @ right)
    return model


@pytest.fixture(scope="module")
def model():
    return spoiled(with_key_heads("gpt2"), 1)


def test_a_layer_that_fails_in_a_type_keeps_something_else(model):
    ids = tokens(2, 64)
    records = gate(model, ids)
    assert [r.layer for r in records] == [0, 1, 2]
    assert records[1].condition_k == pytest.approx(1e6, rel=0.1)
    assert records[0].condition_k == pytest.approx(1, abs=1e-4)
    for record in records:
        assert set(record.errors) == set(record.forms) == set(record.reasons) == set(DTYPES)
        assert all(record.errors[d]["x"] < 0.01 for d in DTYPES)
    assert [r.forms["float32"] for r in records] == ["k", "k", "k"]
    assert [r.forms["bfloat16"] for r in records] == ["k", "x", "k"]
    assert records[1].errors["bfloat16"]["k"] > 0.05 > records[0].errors["bfloat16"]["k"]
    assert records[1].reasons["bfloat16"].startswith("Values from keys have an error of ")
    assert "it keeps the layer's input, with an error of 0.00" in records[1].reasons["bfloat16"]
    strict = gate(model, ids, ["float32"], limit=1e-6)
    assert [r.forms["float32"] for r in strict] == ["k", "x", "k"]
    json.dumps([r.document() for r in records], allow_nan=False)


def test_the_error_is_that_of_what_is_served(model):
    """Of one layer's values, made by hand from keys in bf16."""
    ids = tokens(2, 64)
    x = hidden_states(model, ids)[1].flatten(0, 1).bfloat16()
    _, key, value = (p.weight.bfloat16() for p in projections_of(attention_modules(model)[1], 9, 16))
    matrix = (torch.linalg.inv(key.double()) @ value.double()).bfloat16()
    true = x.double() @ value.double()
    error = ((x @ key @ matrix).double() - true).norm() / true.norm()
    assert gate(model, ids, ["bfloat16"])[1].errors["bfloat16"]["k"] == pytest.approx(float(error), rel=0.05)


def test_rotated_keys_fall_back_to_keys_and_values():
    model = spoiled(with_key_heads("llama"), 2)
    given = hidden_states(model, tokens(1, 64))
    records = gate(model, given, ["bfloat16"])
    assert [r.forms["bfloat16"] for r in records] == ["k", "k", "dense"]
    assert records[2].placed
    assert records[2].errors["bfloat16"]["v"] is None
    assert records[2].reasons["bfloat16"].endswith("rotated or normalised: it keeps keys and values in bfloat16.")


def test_what_float16_cannot_hold_is_no_form(model):
    worse = spoiled(with_key_heads("gpt2"), 0, 1e-9)
    record = gate(worse, tokens(1, 64), ["float16"])[0]
    assert record.largest_kv > 65504
    assert record.errors["float16"]["k"] is None or record.errors["float16"]["k"] > 1
    assert record.forms["float16"] == "x"
    singular = with_key_heads("gpt2")
    projections_of(attention_modules(singular)[0], 9, 16)[1].weight[:, 3] = 0
    record = gate(singular, tokens(1, 64), ["float32"])[0]
    assert (record.errors["float32"]["k"], record.largest_kv, record.forms["float32"]) == (None, None, "x")
    assert record.reasons["float32"].startswith("Values from keys are not finite: it keeps the layer's input")


def test_an_adapter_serves_every_layer_in_its_form(model, tmp_path):
    records = gate(model, tokens(2, 64))
    adapter = forms_adapter(records, "bfloat16", text="random")
    assert adapter.config.forms == ["k", "x", "k"]
    assert adapter.record["forms"] == {"k": 2, "x": 1, "v": 0, "dense": 0}
    assert adapter.record["text"] == "random"
    assert adapter.errors[1, 0] == pytest.approx(records[1].errors["bfloat16"]["k"])
    adapter.save_pretrained(tmp_path / "forms", model)
    again, ids = load_adapter(tmp_path / "forms", model), tokens(2, 24, seed=1)
    assert again.config.forms == ["k", "x", "k"]
    served = with_key_heads("gpt2", torch.bfloat16)
    spoiled(served, 1)
    with torch.no_grad():
        exact = served.float()(ids).logits
        served.bfloat16()
        with retrofit(served, make("dense")):
            usual = far(in_chunks(served, ids, (12, 1, 11)).float(), exact)
        with retrofit(served, make("slim")):
            ungated = far(in_chunks(served, ids, (12, 1, 11)).float(), exact)
        with retrofit(served, make("slim"), again):
            gated = far(in_chunks(served, ids, (12, 1, 11)).float(), exact)
    assert gated < ungated
    assert gated < 4 * usual
    with pytest.raises(InvalidInput, match="did not measure float16"):
        forms_adapter(gate(model, tokens(1, 8), ["float32"]), "float16")


def test_wrong_inputs_are_refused(model):
    ids = tokens(1, 8)
    with pytest.raises(Unsupported, match="9 query heads on 3 key heads: no key projection has an inverse"):
        gate(tiny_model("llama"), ids)
    with pytest.raises(InvalidInput, match="'int8'"):
        gate(model, ids, ["int8"])
    with pytest.raises(InvalidInput, match="limit is nan"):
        gate(model, ids, limit=float("nan"))
    with pytest.raises(InvalidInput, match="hidden states of 2 layers, and the model has 3"):
        gate(model, hidden_states(model, ids)[:2])
    with pytest.raises(Cancelled):
        gate(model, ids, cancel=lambda: True)
    seen = []
    gate(model, ids, ["float32"], progress=lambda share, sentence: seen.append((share, sentence)))
    assert seen[0] == (0, "Layer 1 of 3")
    assert len(seen) == 3


def test_the_shipped_model_passes_in_fp32_and_not_in_bf16():
    """What no one has published for a decoder: its inverses lose what bf16 does not have."""
    loaded = load_model("gpt2-novels", device="cpu")
    from focus_core.assets import load_text

    text = load_text("persuasion").text[:2500]
    ids = loaded.tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"][:, :512]
    records = gate(loaded.model, ids)
    assert {r.forms["float32"] for r in records} == {"k"}
    assert {r.forms["bfloat16"] for r in records} == {"x"}
    assert max(r.errors["float32"]["k"] for r in records) < 1e-3
    assert all(r.errors["bfloat16"]["k"] > 0.05 > 0.005 > r.errors["bfloat16"]["x"] for r in records)
