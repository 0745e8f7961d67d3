import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from focus_core.errors import InvalidInput, TooLarge
from focus_core.handlers import compare as handler
from focus_core.jobs.costs import Host
from focus_core.models.facts import facts_of
from tests.tiny import tiny_model, tiny_tokenizer

PASSAGE = "persuasion opening"
WINDOW = {"variant": "window", "config": {"window": 12}, "label": "near"}


def request(**changes):
    return {
        "model": "smollm2",
        "text_name": PASSAGE,
        "text": None,
        "entries": [WINDOW],
        "lengths": [256, 1024],
        "repeats": 5,
        "windows": 4,
        **changes,
    }


def cost(host: Host | None = None, **changes) -> float:
    return handler.estimate(request(**changes), host or Host(cores=2, loaded="smollm2")).seconds


def test_the_cost_grows_with_every_choice():
    base = cost()
    assert cost(lengths=[256]) < base
    assert cost(repeats=9) > base
    assert cost(entries=[WINDOW, {"variant": "random"}]) > base
    assert cost(Host(cores=8, loaded="smollm2")) < base
    assert cost(Host(cores=2)) > base
    # Dense is measured whether it is named or not.
    assert cost(entries=[{"variant": "dense"}, WINDOW]) == pytest.approx(base)


def test_the_sentence_has_seconds_and_bytes():
    said = handler.estimate(request(), Host(cores=2, loaded="smollm2")).sentence
    assert said.startswith("About ")
    assert "2 variants, 2 lengths, 5 repeats" in said


def test_what_does_not_fit_is_refused_with_numbers_and_the_nearest_that_does():
    with pytest.raises(TooLarge, match=r"1,142 tokens and 2,048 were asked for\. .*Persuasion"):
        handler.estimate(request(lengths=[2048]), Host())
    with pytest.raises(TooLarge, match="at most 8,192 tokens"):
        handler.estimate(request(text_name="persuasion", lengths=[16384]), Host())
    with pytest.raises(TooLarge, match=r"Up to [\d,]+ tokens fit"):
        handler.estimate(request(text_name="persuasion", lengths=[8192]), Host(cores=1, max_seconds=120))


def test_a_soft_gate_counts_its_scores_of_all_pairs(monkeypatch):
    long = {"text_name": "persuasion", "lengths": [4096]}
    soft = [{"variant": "focus", "config": {"gate": "soft"}}]
    hard = [{"variant": "focus", "config": {}}]
    need = [handler.estimate(request(entries=e, **long), Host(cores=2, loaded="smollm2")).bytes for e in (hard, soft)]
    assert need[1] - need[0] >= 9 * 4096 * 4096 * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"entries": []},
        {"entries": None},
        {"entries": [WINDOW] * 17},
        {"entries": [{"variant": "nonsense"}]},
        {"entries": [{"variant": "window", "config": {"window": 0}}]},
        {"entries": [{**WINDOW, "adapter": "no such adapter"}]},
        {"lengths": []},
        {"lengths": [1]},
        {"lengths": ["256"]},
        {"lengths": [True]},
        {"lengths": list(range(2, 12))},
        {"repeats": 0},
        {"repeats": 51},
        {"windows": 0},
        {"text_name": None, "text": " "},
        {"model": ""},
    ],
)
def test_requests_that_cannot_be_read_are_sentences(changes):
    with pytest.raises(InvalidInput) as error:
        handler.estimate(request(**changes), Host())
    assert error.value.message.endswith(".")


def test_estimating_loads_no_torch():
    code = (
        "import sys; from focus_core.handlers import compare; from focus_core.jobs.costs import Host; "
        "compare.estimate({'model': 'smollm2', 'text_name': 'persuasion opening', 'text': None, "
        "'entries': [{'variant': 'focus'}], 'lengths': [256]}, Host()); print('torch' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr[-500:]


def test_running_hands_rows_over_and_names_the_text():
    model = tiny_model("llama")
    loaded = SimpleNamespace(model=model, tokenizer=tiny_tokenizer(), facts=facts_of(model), name="tiny")
    parts = []
    context = SimpleNamespace(
        model=lambda name: loaded, progress=lambda f, m: None, partial=parts.append, cancelled=lambda: False
    )
    found = handler.run(request(model="tiny", lengths=[64], repeats=1, windows=1), context)
    assert found["about"]["text"] == PASSAGE
    assert [r["label"] for r in found["rows"]] == ["dense", "near"]
    assert len([p for p in parts if "row" in p]) == 4


def test_lora_goes_with_every_variant_that_needs_no_adapter(tmp_path):
    from focus_core.handlers._requests import build_variant
    from focus_core.lora import new_lora

    model = tiny_model("llama")
    adapter = new_lora(model, rank=2, through="window")
    adapter.serve = {"window": 9}
    adapter.save_pretrained(tmp_path, model)
    for name, config in (
        ("dense", {}),
        ("window", {"window": 9, "sinks": 4}),
        ("longformer", {"window": 256, "sinks": 16}),
    ):
        variant, found, named = build_variant({"variant": name, "adapter": str(tmp_path)}, model)
        assert (variant.name, variant.to_dict(), found.kind, named) == (name, config, "lora", str(tmp_path))
