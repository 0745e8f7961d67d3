"""What a cache holds, how exact decoding from it is, and the job that measures both."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from focus_core.benchmark import caches
from focus_core.benchmark.cache_lines import cache_lines, counted_bytes, settings_of, usual
from focus_core.benchmark.cache_probe import DTYPES, Replay, cast, decode, storage_by_layer
from focus_core.errors import Cancelled, InvalidInput, TooLarge
from focus_core.handlers import cache as handler
from focus_core.jobs.costs import Host
from focus_core.models.facts import facts_of
from focus_core.models.loading import Loaded
from focus_core.retrofit import retrofit
from focus_core.variants import VARIANTS, make
from tests.tiny import tiny_model, tiny_tokenizer

TEXT = "the cat and the dog sat on the mat while another one ran there " * 8
SFA = {"variant": "sfa", "config": {"features": 4}, "adapter": None}


def loaded(family="gpt2", head_dim=16, **options):
    model = tiny_model(family, layers=2, heads=4, kv_heads=2, head_dim=head_dim, **options)
    return Loaded(model, tiny_tokenizer(), facts_of(model, "tiny"), "tiny")


def measured(**options):
    entries = [SFA, {"variant": "sfa", "config": {"features": 64}}, {"variant": "xattention", "config": {}}]
    return caches.measure_caches(
        options.pop("loaded", None) or loaded(),
        entries,
        TEXT,
        prompt=24,
        decoded=4,
        repeats=2,
        load_adapter=lambda name: None,
        **options,
    )


def test_a_run_measures_bytes_exactness_quality_and_speed_beside_dense():
    parts = []
    result = measured(partial=parts.append)
    json.dumps(result, allow_nan=False)
    dense, sfa, xattention = result["rows"]
    assert [dense["variant"], sfa["variant"], xattention["variant"]] == ["dense", "sfa", "xattention"]
    # Four heads of 16 in two layers: keys and values of 4 bytes, or codes of 4 values with 4 one-byte dimensions.
    assert dense["bytes_per_token"] == dense["counted"] == 2 * 2 * 4 * 16 * 4
    assert sfa["bytes_per_token"] == sfa["counted"] == 2 * 4 * (4 * 4 + 4 + 16 * 4)
    assert xattention["bytes_per_token"] > dense["bytes_per_token"]
    assert dense["by_layer"] == [dense["bytes_per_token"] / 2] * 2
    assert dense["cache_bytes"] == 28 * dense["bytes_per_token"]
    assert dense["layers"]["float32"] == {"error": [0.0, 0.0], "bytes": [512.0, 512.0]}
    assert dense["layers"]["bfloat16"]["bytes"] == [256.0, 256.0]
    assert 1e-4 < max(dense["layers"]["bfloat16"]["error"]) < 0.02
    assert max(sfa["layers"]["float32"]["error"]) > 0.05
    assert max(xattention["layers"]["float32"]["error"]) < 1e-5
    assert (dense["agree"], dense["same_tokens"], dense["nll_change"]) == (1.0, 4, 0.0)
    assert xattention["agree"] == 1.0
    assert sfa["ratio"]["n"] == 2
    assert dense["ratio"]["median"] == 1.0
    assert all(row["complete"] for row in result["rows"])
    # What the model's heads cannot give is said, with the numbers.
    assert result["about"]["refused"][0]["reason"] == "its heads have 16 dimensions and features is 64."
    rows = [part["row"] for part in parts if "row" in part]
    assert [row["complete"] for row in rows].count(True) == 3
    assert "layers" not in rows[0]


def test_a_cancelled_run_keeps_what_it_had_measured():
    parts = []
    with pytest.raises(Cancelled):
        measured(partial=parts.append, cancel=lambda: any("layers" in part.get("row", {}) for part in parts))
    assert next(part["row"]["label"] for part in parts if "row" in part) == "dense"


def test_too_short_a_text_is_refused_with_the_numbers():
    own = loaded(n_positions=10_000)
    with pytest.raises(TooLarge, match=r"tokens and 9,004 were asked for"):
        caches.measure_caches(own, [SFA], TEXT, prompt=9000, decoded=4, repeats=1, load_adapter=lambda name: None)
    with pytest.raises(TooLarge, match=r"reads at most 1,024 tokens"):
        caches.measure_caches(loaded(), [SFA], TEXT, prompt=1024, decoded=4, repeats=1, load_adapter=lambda name: None)


@pytest.mark.parametrize("family", ["gpt2", "qwen3", "gemma3"])
def test_layers_run_alone_give_what_they_gave_in_the_model_and_weights_come_back(family):
    model = tiny_model(family, layers=2, heads=4, kv_heads=2, head_dim=16)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ids = torch.randint(0, 300, (1, 21), generator=torch.Generator().manual_seed(1))
    replay = Replay(model, ids, 3)
    outputs = []
    hook = replay.modules[1].register_forward_hook(lambda module, args, out: outputs.append(out[0]))
    with retrofit(model, make("dense")):
        decode(model, ids, 3)
    hook.remove()
    torch.testing.assert_close(replay.goals[1], torch.cat([out[0] for out in outputs[1:]]).double())
    for dtype in DTYPES:
        errors, _ = replay.errors(make("window", {"window": 4}), None, dtype)
        assert len(errors) == 2
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(RuntimeError), cast(replay.modules[0], torch.bfloat16):
        raise RuntimeError
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_shared_memory_is_counted_once_and_what_a_view_holds_in_whole():
    class Layer:
        def __init__(self, **held):
            vars(self).update(held)

    whole = torch.zeros(10, 4)
    cache = Layer(layers=[Layer(keys=whole[:2], more=(whole, {"x": torch.zeros(3)})), Layer(keys=whole[2:])])
    assert storage_by_layer(cache) == [40 * 4 + 12, 0]


def test_lines_come_from_the_registry_and_the_savers_first():
    facts = loaded("llama", 64).facts
    lines = cache_lines("no such model", facts)
    dense = counted_bytes(make("dense"), facts, 4)
    assert {line["variant"] for line in lines} <= set(VARIANTS) - {"dense", "window"}
    assert {line["variant"] for line in lines if line["counted"] == dense} <= {"slim"}
    assert len({(settings_of(line), line["adapter"]) for line in lines}) == len(lines)
    assert {"features": 8} in [line["config"] for line in lines if line["variant"] == "sfa"]
    taken = usual(lines, dense)
    assert all(line["counted"] < dense or hasattr(VARIANTS[line["variant"]], "cache") for line in taken)
    assert len(usual(lines, dense, 2)) == 2


def test_lines_and_costs_need_no_torch():
    code = (
        "import sys; from focus_core.benchmark.cache_lines import cache_lines;"
        "from focus_core.handlers import cache; from focus_core.models.shapes import shape_of;"
        "assert cache_lines('smollm2', shape_of('smollm2')); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr[-500:]


def request(**changes):
    return {"model": "smollm2", "text_name": "persuasion opening", "text": None, "entries": [SFA], **changes}


def test_the_cost_grows_with_every_choice_and_what_cannot_be_is_refused():
    host = Host(cores=2, loaded="smollm2")

    def seconds(**changes):
        return handler.estimate(request(**changes), host).seconds

    base = seconds()
    assert seconds(entries=[SFA, {"variant": "xattention"}]) > base
    assert seconds(prompt=512) > base
    assert seconds(decoded=64) > base
    assert seconds(repeats=9) > base
    assert seconds(entries=None) > base
    assert "2 caches, 32 decoded" in handler.estimate(request(), host).sentence
    for wrong, said in (
        ({"entries": []}, "1 to 16 caches"),
        ({"entries": [{"variant": "none"}]}, "no variant 'none'"),
        ({"prompt": 1}, "prompt is 1"),
        ({"decoded": 1.5}, r"decoded is 1\.5"),
        ({"repeats": True}, "repeats is True"),
        ({"text_name": "nothing"}, "no shipped text"),
    ):
        with pytest.raises(InvalidInput, match=said):
            handler.estimate(request(**wrong), host)
    with pytest.raises(TooLarge, match="1,142 tokens and 1,232 were asked for"):
        handler.estimate(request(prompt=1200), host)
    with pytest.raises(TooLarge, match=r"at most 8,192 tokens.*up to 8,160"):
        handler.estimate(request(text_name="persuasion", prompt=9000), host)
    with pytest.raises(TooLarge) as short:
        handler.estimate(request(text_name=None, text="The cat sat on the mat."), host)
    assert short.value.hint == "Take a longer text."
    # A text's own length is no help where the model reads less.
    with pytest.raises(TooLarge) as small:
        handler.estimate(request(model="gpt2-novels", prompt=2000), host)
    assert "1,173" in small.value.message
    assert small.value.hint == "Take a prompt of up to 992 tokens, or a longer text."


def test_the_job_takes_the_caches_that_save_and_names_its_text(monkeypatch):
    said, parts = [], []
    own = loaded("llama", 64)
    context = SimpleNamespace(
        model=lambda name: own,
        progress=lambda fraction, sentence: said.append((fraction, sentence)),
        partial=parts.append,
        cancelled=lambda: False,
    )
    asked = request(entries=None, model="tiny", prompt=16, decoded=2, repeats=1)
    result = handler.run(asked, context)
    assert result["about"]["text"] == "persuasion opening"
    assert {row["variant"] for row in result["rows"]} >= {"dense", "sfa"}
    assert any(refused["label"].startswith("slim") for refused in result["about"]["refused"])
    assert [fraction for fraction, _ in said] == sorted(fraction for fraction, _ in said)
    assert sum("row" in part for part in parts) >= 2 * len(result["rows"])
    assert "persuasion" not in str(handler.identity(asked))
