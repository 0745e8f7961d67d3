"""The recipe of the baselines, and what was recorded with it: commands that run, and figures that belong together."""

import json
import math

import pytest

from data.build import baseline_lines as baselines
from data.build.baseline_lines import BUDGET, LINES
from focus_core.assets import DATA, adapters
from focus_core.cli import parser
from focus_core.cli.options import settings
from focus_core.variants import make


def recorded() -> dict[tuple[str, str, int], dict]:
    """Every result of the recipe that is there, by line, text and context."""
    found = {}
    for name, line in LINES.items():
        for text, context, _ in line.evaluations:
            path = DATA / "results" / baselines.path_of(name, text, context).name
            if path.exists():
                found[name, text, context] = json.loads(path.read_text("utf-8"))
    return found


FOUND = recorded()
TRAINING = json.loads((DATA / "results" / "training-baselines.json").read_text("utf-8"))


def ppl(name: str, text: str = "persuasion", context: int = 1024) -> float:
    return FOUND[name, text, context]["ppl"]


def validation(line: str) -> float:
    return min(run["validation_ppl"] for run in TRAINING["runs"] if run["line"] == line)


def test_every_command_of_the_recipe_is_one():
    known = parser()
    for name, line in LINES.items():
        if line.train:
            for rate in line.rates or (None,):
                args = known.parse_args(baselines.train_command(name, rate, BUDGET))
                assert (args.command, args.model) == ("train", line.model)
                assert args.context == 1024
        for text, context, options in line.evaluations:
            args = known.parse_args(baselines.eval_command(name, text, context, options))
            assert make(args.variant, settings(args.set)).name == line.variant.split()[0]
        assert not line.uses or LINES[line.uses].train
        assert not line.adapter or line.adapter in adapters()


def test_a_result_is_that_of_its_line():
    assert len(FOUND) > 60
    for (name, text, context), found in FOUND.items():
        line = LINES[name]
        variant, *given = line.variant.split()
        asked = make(variant, settings(given)).to_dict()
        assert (found["model"], found["variant"], found["text"]) == (line.model, variant, text)
        assert found["context"] == context
        assert all(found["config"][item.split("=")[0]] == asked[item.split("=")[0]] for item in given)
        options = next(o for t, c, o in line.evaluations if (t, c) == (text, context))
        assert found["command"].startswith(baselines.said(baselines.eval_command(name, text, context, options)[:8]))
        assert (found["adapter"] is not None) == bool(line.train or line.uses or line.adapter)
        assert found["ppl"] == pytest.approx(math.exp(found["nll"]))
        assert found["environment"]["device"]
        if LINES[line.uses or name].rates:
            told = found["training"]
            assert told["steps"] == BUDGET["steps"]
            assert told["tokens"] % (BUDGET["steps"] * BUDGET["context"]) == 0
            assert found["adapter_parameters"] == told["parameters"]
            assert len(told["validation_ppl_by_learning_rate"]) == len(LINES[line.uses or name].rates)


def test_all_stand_beside_the_same_dense_figure():
    for text in ("persuasion", "brown"):
        dense = FOUND["dense", text, 1024]
        assert dense["ppl"] == dense["dense_ppl"]
        beside = [f for (_, t, c), f in FOUND.items() if (t, c, f["model"]) == (text, 1024, "smollm2")]
        whole = [f for f in beside if f["windows"] == dense["windows"]]
        assert len(whole) > 15
        assert {round(f["dense_ppl"], 3) for f in whole} == {round(dense["dense_ppl"], 3)}


def test_what_was_found():
    """The sentences of the README about these figures."""
    # Performer is no retrofit, trained or not.
    assert ppl("performer") > 1000
    assert ppl("lora-performer-64") > 4 * ppl("dense")
    # What LoRA learns through dense serves Longformer as well as what it learns through Longformer.
    for through in ("longformer", "window-128", "bigbird-matched"):
        own, dense = f"lora-{through}", f"lora-dense-r8-in-{through}"
        assert abs(ppl(own) - ppl(dense)) < 0.12
        assert ppl(own, "brown") > ppl(dense, "brown")
    # More of the rank changes little.
    ranks = [ppl(f"lora-dense-r{rank}") for rank in (2, 8, 32)]
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[0] - ranks[-1] < 0.3
    # Clusters, trained through, lose less than a window of about as many pairs, and than Longformer of more.
    pairs = {name: FOUND[name, "persuasion", 1024]["kept_pairs"] for name in ("lora-routing-k16", "lora-longformer")}
    assert pairs["lora-routing-k16"] < 0.6 * pairs["lora-longformer"]
    assert ppl("lora-routing-k16") < ppl("lora-longformer")
    assert ppl("lora-routing-k16") < ppl("lora-window-128") - 1
    assert FOUND["lora-longformer", "persuasion", 1024]["training"]["tokens"] == 819_200
    # Matched pairs: BigBird's random blocks keep fewer and predict worse than Longformer's longer window.
    assert ppl("longformer") < ppl("bigbird-matched")
    assert ppl("xattention") - ppl("dense") < 0.1
    # Few features as they are lose everything; a short embedding of the same bytes, fitted and trained, nearly nothing.
    assert ppl("sfa-zero-k16") > 5 * ppl("dense")
    assert ppl("short-24") < 1.06 * ppl("dense")
    assert ppl("short-24") < ppl("sfa-k16") < 0.25 * ppl("sfa-zero-k16")
    assert validation("short-24") < validation("sfa-k16")
    assert validation("short-16") < validation("sfa-k16")
    # Fitted and not trained: better than a short embedding as wide, worse than one of the same bytes.
    assert ppl("short-fitted-24") < ppl("sfa-fitted-k16")
    assert ppl("sfa-fitted-k16") < ppl("short-fitted-16")
    # Where nothing rotates, 16 features say all that 64 do.
    small = FOUND["sfa-gpt2-novels-k16", "persuasion", 1024]
    assert small["ppl"] == pytest.approx(small["dense_ppl"], rel=0.01)
    # Maps lie behind the rotation: trained on 1,024 tokens they do not hold for 4,096.
    assert ppl("short-24", context=4096) > 2 * FOUND["short-24", "persuasion", 4096]["dense_ppl"]
    # A latent of 64 numbers in place of 384 is nearly exact without training, and 16 are brought back by little of it.
    small = FOUND["latent-fitted-gpt2-novels-r64", "persuasion", 1024]
    assert small["ppl"] < 1.02 * small["dense_ppl"]
    assert ppl("latent-gpt2-novels-r64") < small["dense_ppl"]
    assert ppl("latent-gpt2-novels-r16") < 0.8 * ppl("latent-fitted-gpt2-novels-r16")


def test_runs_are_told_whole_or_cut_off():
    runs = TRAINING["runs"]
    assert {run["steps_asked"] for run in runs} == {BUDGET["steps"]}
    assert all(0 < run["best_step"] <= run["steps"] <= run["steps_asked"] for run in runs)
    assert all(run["variant"] == LINES[run["line"]].variant for run in runs)
    whole = {run["line"] for run in runs if run["steps"] == run["steps_asked"]}
    assert not {name for name, _, _ in FOUND if LINES[name].rates} - whole
