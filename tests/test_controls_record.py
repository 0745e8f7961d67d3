"""The controls' own measurement, and what is said of them: held to the published rule and to the record."""

import math
from statistics import fmean

import torch

from data.build import controls
from data.build.controls import CausalPaper, sinkhorn_of_prefixes
from focus_core.assets import DATA
from focus_core.jobs.files import read_json
from focus_core.retrofit import retrofit
from focus_core.routing.router import sinkhorn_over_sequence
from focus_core.training.trainer import new_adapter
from focus_core.variants import make
from focus_core.variants.focus import Focus
from tests.training.small import ids, loaded, settings

PAGE = (DATA.parent / controls.PAGE).read_text("utf-8")
SECTION = " ".join(PAGE[PAGE.index("## What a router learns") : PAGE.index("## The frontier")].split())
FORMS = ("leaking", "causal")
WAYS = {
    "none": "nothing",
    "focus": "what Focus drops",
    "lowest": "the lowest dense mass",
    "random": "at random",
    "highest": "the highest dense mass",
}


def test_shares_of_prefixes_are_the_published_ones_of_the_text_that_ends_there():
    logits = 4 * torch.randn(2, 3, 70, 4, generator=torch.Generator().manual_seed(0))
    found = sinkhorn_of_prefixes(logits)
    for end in (0, 1, 5, 63, 64, 69):
        wanted = sinkhorn_over_sequence(logits[:, :, : end + 1], None)[:, :, end]
        torch.testing.assert_close(found[:, :, end], wanted, rtol=1e-5, atol=1e-6)
    later = logits.clone()
    later[:, :, 40:] += 3
    torch.testing.assert_close(sinkhorn_of_prefixes(later)[:, :, :40], found[:, :, :40], rtol=0, atol=0)
    assert (sinkhorn_over_sequence(later, None)[:, :, :40] - sinkhorn_over_sequence(logits, None)[:, :, :40]).any()


def test_the_causal_form_is_the_published_gate_and_no_later_token_changes_it():
    base = loaded()
    adapter = new_adapter(base.facts, settings(form="paper", router_per_kv_head=False, query_topk=1), base.model)
    served = {"gate": "paper", "groups": 4, "query_topk": 1, "window": 4, "sinks": 1}
    text = ids(24)[None]
    other = text.clone()
    other[0, 15:] = ids(9, seed=1)

    def logits(variant, tokens):
        with torch.no_grad(), retrofit(base.model, variant, adapter):
            return base.model(input_ids=tokens).logits

    for variant, same in ((CausalPaper(**served), True), (Focus(**served), False)):
        found = logits(variant, text)
        assert torch.allclose(logits(variant, other)[:, :15], found[:, :15], atol=1e-6) == same
        assert variant.leaks != same
        assert not torch.allclose(found, logits(make("dense"), text), atol=1e-3)


def test_the_page_has_the_controls_as_they_were_measured():
    rows = read_json(DATA.parent / controls.RECORD)["rows"]
    assert controls.table(rows) in PAGE
    assert all(row["command"] and row["windows"] >= 4 for row in rows)
    changed = {(row["line"], row["text"], row.get("model")): row["ppl"] for row in rows}
    for text, told in (("persuasion", "on *Persuasion*"), ("brown fiction", "on Brown's fiction")):
        lost = changed["paper-causal", text, "gpt2-novels"] / changed["paper-leaking", text, "gpt2-novels"]
        assert f"{100 * (lost - 1):.1f} % " in SECTION.replace("more ", "")
        assert told in SECTION
    small = {row["line"]: row for row in rows if row.get("model") == "smollm2"}
    told = [f"{100 * (small[f'paper-{line}']['ppl'] / small['paper-leaking']['dense_ppl'] - 1):+.1f}" for line in FORMS]
    assert f"({told[0]} and {told[1]} %, {small['paper-causal']['windows']} windows)" in SECTION


def test_the_page_has_the_noise_as_it_was_measured():
    found = read_json(DATA / "results/noise-directed-k16-1024.json")
    assert f"the same {100 * (1 - found['kept_pairs']):.0f} % of the pairs' number" in SECTION
    none = found["ways"]["none"]
    for way, title in WAYS.items():
        one = found["ways"][way]
        change = 100 * math.expm1(one["nll"] - none["nll"])
        error = (100 + change) * one["nll_se"]
        against = "–" if way == "none" else f"{change:+.1f} % ± {error:.1f}"
        assert f"| {title} | {one['ppl']:.2f} | {against} | {one['entropy']:.2f} |" in PAGE
    runs = read_json(DATA / "results/scratch.json")["runs"]
    for line, told in (("focus-k16", "with Focus"), ("dense", "with dense attention")):
        last = [run["training"]["log"][-1] for run in runs if run["line"] == line]
        gap = fmean(math.log(one["served_ppl"]) - one["loss"] for one in last)
        assert f"{gap:.4f}" in SECTION, told
        assert len(last) == 3
    near = read_json(DATA / "results/eval-directed-k16-persuasion.json")["buckets"][0]
    assert (near["from"], near["to"]) == (1, 128)
    assert abs(100 * (near["ppl"] / near["dense_ppl"] - 1)) < 1e-5


def test_what_is_said_of_centroids_is_what_the_seeds_show():
    rows = read_json(DATA.parent / controls.RECORD)["rows"]
    ppl = {(row["line"], row["text"]): row["ppl"] for row in rows if "model" not in row}
    ends = ("", "-s1", "-s2")
    means = {}
    for text, sign in (("persuasion", 1), ("brown fiction", -1)):
        learned = [ppl[f"learned{end}", text] for end in ends]
        drawn = [ppl[f"frozen-centroids{end}", text] for end in ends]
        apart = sorted(sign * 100 * (b / a - 1) for a, b in zip(learned, drawn, strict=True))
        assert f"by {apart[0]:.1f} to {apart[2]:.1f} %" in SECTION
        means[text] = 100 * (ppl["random-k16-q4", text] / fmean(learned) - 1)
        if text == "persuasion":
            assert f"{learned[0]:.1f}, {learned[1]:.1f} and {learned[2]:.1f} on *Persuasion*" in SECTION
    assert f"are {means['persuasion']:.1f} % behind the learned ones'" in SECTION
    assert f"{-means['brown fiction']:.1f} % ahead of it on Brown's fiction (one seed)" in SECTION
