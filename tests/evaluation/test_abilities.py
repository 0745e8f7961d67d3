"""What a model can still do: pairs, needles and replies; a variant is put in for them and taken out cleanly."""

import copy
import re

import pytest
import torch

from focus_core.errors import Cancelled, InvalidInput, Unsupported
from focus_core.evaluation.abilities import chat, needle, tasks
from focus_core.evaluation.abilities.checks import follows, refuses
from focus_core.evaluation.abilities.continuations import Read
from focus_core.evaluation.abilities.grammar import PHENOMENA, minimal_pairs
from focus_core.evaluation.abilities.run import probe
from focus_core.evaluation.abilities.tasks import Sizes, units
from focus_core.evaluation.intervals import wilson
from focus_core.evaluation.likelihood import token_nll
from focus_core.evaluation.weights import hash_of, named_weights
from focus_core.lora import new_lora
from focus_core.models.facts import facts_of
from focus_core.models.loading import Loaded
from focus_core.retrofit import retrofit
from focus_core.routing.router import Router, RouterConfig
from focus_core.variants import VARIANTS, make
from tests.tiny import tiny_model, tiny_tokenizer

TEMPLATE = "{% for m in messages %}<{{ m['content'] }}>{% endfor %}"


@pytest.fixture(scope="module")
def loaded():
    model, tokenizer = (
        tiny_model(layers=2, heads=3, kv_heads=1, max_position_embeddings=4096),
        copy.deepcopy(tiny_tokenizer()),
    )
    tokenizer.chat_template = TEMPLATE
    return Loaded(model, tokenizer, facts_of(model), "tiny")


@pytest.fixture(scope="module")
def router(loaded):
    config = RouterConfig(layers=2, hidden_size=48, groups=4, dim=8, seed=3)
    return Router(config).requires_grad_(False)


@pytest.fixture(scope="module")
def equal_heads():
    return tiny_model(layers=1, heads=3, kv_heads=3)


def test_pairs_are_minimal_and_come_again():
    for name in PHENOMENA:
        pairs = minimal_pairs(name)
        assert len(set(pairs)) == len(pairs) >= 50
        assert pairs == minimal_pairs(name)
        assert pairs != minimal_pairs(name, seed=1)
        for good, bad in pairs:
            one, other = good.split(), bad.split()
            assert len(one) == len(other)
            assert sum(a != b for a, b in zip(one, other, strict=True)) == 1
    with pytest.raises(InvalidInput, match="no phenomenon"):
        minimal_pairs("spelling")


def test_pairs_ask_both_ways_so_that_a_word_that_is_rare_cannot_win():
    for name in set(PHENOMENA) - {"polarity items"}:
        goods = [next(a for a, b in zip(g.split(), w.split(), strict=True) if a != b) for g, w in minimal_pairs(name)]
        bads = [next(b for a, b in zip(g.split(), w.split(), strict=True) if a != b) for g, w in minimal_pairs(name)]
        assert set(goods) & set(bads), name


@pytest.mark.parametrize("variant", ["dense", "focus"])
def test_continuations_of_any_length_have_the_probability_of_the_whole_text(loaded, router, variant):
    text, ends = torch.arange(5, 45), [torch.arange(7, 7 + n) for n in (1, 3, 6, 3)]
    made, adapter = (
        (make("focus", {"groups": 4, "window": 4, "sinks": 1}), router) if variant == "focus" else (make("dense"), None)
    )
    with torch.no_grad(), retrofit(loaded.model, made, adapter):
        read = Read(loaded.model, text)
        got = read.score(ends)
        begun = read.score([ends[1][:2]])[0].logp
        again = begun + read.then(ends[1][:2]).score([ends[1][2:]])[0].logp
        whole = [-float(token_nll(loaded.model, torch.cat([text, e])[None])[0, len(text) - 1 :].sum()) for e in ends]
    assert [one.logp for one in got] == pytest.approx(whole, abs=1e-4)
    assert got[1].logp - got[3].logp == pytest.approx(0, abs=1e-5)
    assert again == pytest.approx(whole[1], abs=1e-4)
    assert not any(one.greedy for one in got)


@pytest.mark.parametrize("variant", [n for n, c in VARIANTS.items() if c.adapter_kind is None or c.adapter_optional])
def test_continuations_of_any_variant_have_the_probability_of_the_whole_text(equal_heads, variant):
    text, ends = torch.arange(200) % 290 + 5, [torch.arange(7, 7 + n) for n in (1, 4)]
    made, model = make(variant), equal_heads
    if not made.supports(facts_of(model)).ok:
        model = tiny_model("deepseek_v3", layers=1, heads=3)
    with torch.no_grad(), retrofit(model, made):
        got = Read(model, text).score(ends)
        whole = [-float(token_nll(model, torch.cat([text, e])[None])[0, len(text) - 1 :].sum()) for e in ends]
    assert [one.logp for one in got] == pytest.approx(whole, abs=1e-4)


def test_needles_lie_at_their_depths_in_a_text_of_the_asked_length():
    tokenizer = tiny_tokenizer()
    text = tokenizer("It was a fine day and nobody had come to the house. " * 200)["input_ids"]
    stack = needle.haystack(tokenizer, text, 1024, 1)
    words = tokenizer.decode(stack.ids)
    longest = max(len(question) for _, question, _ in stack.questions)
    assert len(stack.ids) + longest == 1024
    found = re.findall(r"The password of (.*?) is (\w+)\.", words)
    assert len(found) == len(needle.DEPTHS)
    for (depth, question, right), (thing, answer) in zip(stack.questions, found, strict=True):
        assert tokenizer.decode(question).endswith(f"The password of {thing} is")
        assert tokenizer.decode(stack.candidates[right]) == f" {answer}"
        assert words.index(thing) / len(words) == pytest.approx(depth, abs=0.12)
    with pytest.raises(InvalidInput):
        needle.haystack(tokenizer, text, 100, 0)


def test_rules_tell_what_keeps_them():
    kept = {
        "one word": ("Paris.", "It is Paris"),
        "number": ("7", "7 days"),
        "items": ("1. a\n2. b", "1. a\n2. b\n3. c"),
        "upper case": ("THE SEA.", "The SEA."),
        "lower case": ("hello", "Hello"),
        "json": ('```json\n{"a": 1}\n```', '{"a": 1} and more'),
        "contains": ("A River", "a brook"),
        "starts": ("Of course", "Yes, of course"),
        "ends": ("Rain!", "Rain."),
        "at most": ("two words", "it has three words"),
        "sentences": ("One. Two!", "One."),
        "lacks": ("dry", "wet"),
    }
    more = {"items": {"items": 2}, "json": {"keys": ["a"]}, "contains": {"words": ["river"]}}
    more |= {"starts": {"with": "Of course"}, "ends": {"with": "!"}, "at most": {"words": 3}}
    more |= {"sentences": {"sentences": 2}, "lacks": {"letter": "e"}}
    for kind, (good, bad) in kept.items():
        rule = {"kind": kind, **more.get(kind, {})}
        assert follows(good, rule), kind
        assert not follows(bad, rule), kind
    assert refuses("I’m sorry, but I can't do that.")
    assert not refuses("Of course. " * 30 + "I can't.")
    for one in chat.prompts()["instructions"]:
        assert not follows("", one["rule"])


def test_replies_of_a_batch_are_those_of_each_prompt_alone(loaded, router):
    asked = ["a", "What is the capital of a country that lies in the west?", "rain " * 9]
    heard = []
    with retrofit(loaded.model, make("focus", {"groups": 4, "window": 4, "sinks": 1}), router):
        together = chat.replies(loaded, asked, tokens=6, heard=lambda place, words: heard.append((place, words)))
        alone = [chat.replies(loaded, [one], tokens=6)[0] for one in asked]
        with pytest.raises(Cancelled):
            chat.replies(loaded, asked, tokens=6, cancel=lambda: True)
    assert together == alone
    assert heard[-1] == (0, together[0])


@pytest.fixture
def three_phenomena(monkeypatch):
    monkeypatch.setattr(tasks, "PHENOMENA", dict(list(PHENOMENA.items())[:3]))


@pytest.mark.usefixtures("three_phenomena")
def test_a_probe_measures_resumes_and_leaves_the_weights(loaded, router, monkeypatch):
    few = {kind: asked[:2] for kind, asked in chat.prompts().items()}
    monkeypatch.setattr(chat, "prompts", lambda: few)
    sizes = Sizes(pairs=3, passage=24, lengths=(640,), haystacks=2, reply=3, context=32, windows=2)
    variant = make("focus", {"groups": 4, "window": 8, "sinks": 1})
    kept, said = [], []
    with pytest.raises(Cancelled):
        probe(loaded, variant, router, sizes=sizes, partial=kept.append, cancel=lambda: len(kept) >= 8)
    done = len(kept[-1]["done"])
    found = probe(
        loaded, variant, router, sizes=sizes, resume=kept[-1], progress=lambda f, words: said.append((f, words))
    )
    todo = units(tasks.TASKS, sizes)
    assert found["notes"] == [f"{done} of {len(todo)} parts were measured by an earlier run."]
    assert [f for f, _ in said] == sorted(f for f, _ in said)
    assert said[-1][0] == 1
    assert found["weights"]["same"]
    assert found["weights"]["logits_change"] == 0
    rows = {(r["task"], r["part"], r["where"]): r for r in found["rows"]}
    whole = rows["pairs", "all", tasks.BEHIND]
    assert whole["of"] == 3 * 3
    assert 0 <= whole["low"] <= whole["share"] <= whole["high"] <= 1
    assert rows["needle", "all", "640"]["of"] == 2 * len(needle.DEPTHS)
    assert rows["texts", "persuasion", "domain"]["kept_pairs"] < 1
    assert rows["refusal", "harmful", tasks.BARE]["of"] == len(chat.prompts()["harmful"])
    # Another setting is another run.
    other = probe(loaded, make("dense"), None, ["pairs"], sizes, resume=kept[-1])
    assert other["notes"] == []
    assert not any(row["dense_by_definition"] for row in other["rows"])


@pytest.mark.usefixtures("three_phenomena")
def test_what_fits_into_the_window_is_dense_by_definition(loaded, router):
    sizes, variant = Sizes(pairs=2, passage=200), make("focus", {"groups": 4, "window": 160, "sinks": 1})
    rows = {r["where"]: r for r in probe(loaded, variant, router, ["pairs"], sizes)["rows"] if r["part"] == "all"}
    dense = {r["where"]: r for r in probe(loaded, make("dense"), None, ["pairs"], sizes)["rows"] if r["part"] == "all"}
    assert rows[tasks.BARE]["dense_by_definition"]
    assert not rows[tasks.BEHIND]["dense_by_definition"]
    assert rows[tasks.BARE]["right"] == dense[tasks.BARE]["right"]


def test_a_hash_tells_a_changed_bit_and_a_projection_that_was_exchanged():
    model = tiny_model(layers=1, heads=3, kv_heads=1)
    held = named_weights(model)
    before = hash_of(held)
    adapter = new_lora(model)
    with retrofit(model, make("dense"), adapter):
        assert hash_of(held) == before
        assert hash_of(named_weights(model)) != before
    assert hash_of(named_weights(model)) == before
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] += 1e-4
    assert hash_of(held) != before


def test_a_model_that_cannot_be_spoken_to_is_refused(loaded):
    mute = Loaded(loaded.model, tiny_tokenizer(), loaded.facts, "mute")
    with pytest.raises(Unsupported, match="no chat template"):
        probe(mute, make("dense"), None, ["refusal"])
    with pytest.raises(InvalidInput, match="no task"):
        units(["poetry"], Sizes())
    with pytest.raises(InvalidInput):
        Sizes(pairs=0)


def test_wilsons_interval():
    assert wilson(0, 0) is None
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-3)
    low, high = wilson(0, 20)
    assert low == 0
    assert 0.1 < high < 0.2
