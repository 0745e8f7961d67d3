"""The measured values that README.md and docs/results.md tell are those of the recorded results."""

import json
import math
import re
from statistics import fmean

import pytest

from analysis import vision_training
from focus_core.assets import DATA

README = (DATA.parent / "README.md").read_text("utf-8")
TOLD = README + (DATA.parent / "docs/results.md").read_text("utf-8")
PROSE = " ".join(TOLD.split())
SHORT = " ".join(README.split())


def result(name: str) -> dict:
    return json.loads((DATA / "results" / f"{name}.json").read_text("utf-8"))


def row(start: str, after: str = "") -> str:
    """The one table row of both texts that begins so, from a heading on where one is named."""
    (found,) = (line for line in TOLD[TOLD.index(after) :].splitlines() if line.startswith(f"| {start}"))
    return found


def shown(text: str) -> list[str]:
    """The plain numbers of some cells, in order."""
    return re.findall(r"[-+]?\d+(?:\.\d+)?", text.replace(",", "", 0).replace("*", ""))


def ppl(name: str) -> str:
    value = result(f"eval-{name}")["ppl"]
    return f"{value:,.2f}" if value < 100 else f"{value:,.1f}" if value < 1000 and "sfa" in name else f"{value:,.0f}"


def kept(name: str) -> str:
    share = result(f"eval-{name}")["kept_pairs"]
    return f"{100 * share:.3g} %" if name.count("1024") == 0 else f"{100 * share:.0f} %"


@pytest.mark.parametrize(
    "start, names",
    [
        ("**Focus**, directed", ["directed-k16"]),
        ("Focus, one shared router", ["shared-k4", "shared-k8"]),
        ("control: one learned temperature", ["temperature"]),
        ("control: window", ["window"]),
        ("control: random", ["random"]),
    ],
)
def test_focus_and_its_controls(start, names):
    for text, cell in zip(("persuasion", "brown"), row(start).split("|")[2:4], strict=True):
        told = [f"{kept(f'{n}-{text}')}, {ppl(f'{n}-{text}')}" for n in names]
        assert cell.replace("*", "").strip().startswith(" / ".join(told)), cell
        dense = result(f"eval-{names[0]}-{text}")["dense_ppl"]
        assert f"100 %, {dense:.2f}" in row("dense | 100 %, ")


def test_the_headline():
    found = result("eval-directed-k16-persuasion")
    assert f"({100 * math.expm1(found['nll_diff']):.1f} %)" in row("**Focus**, directed")
    assert f"({found['nll_diff']:.4f} nats a token, standard error {found['nll_se']:.4f})" in PROSE
    assert f"by {-found['nll_diff'] / found['nll_se']:.0f} paired standard errors" in PROSE
    assert f"reaches {ppl('lora-dense-r8-persuasion')}**" in PROSE


@pytest.mark.parametrize(
    "start, plain, trained",
    [
        ("dense | 100 % | ", "dense", "lora-dense-r8"),
        ("XAttention, threshold", "xattention", None),
        ("Longformer, 256", "longformer", "lora-longformer"),
        ("window, 128", "window-128", "lora-window-128"),
        ("BigBird, blocks", "bigbird-matched", "lora-bigbird-matched"),
        ("Routing Transformer", "routing-k16", "lora-routing-k16"),
        ("Performer, 64", "performer-64", "lora-performer-64"),
        ("SFA, 16", "sfa-zero-k16", "sfa-k16"),
        ("short embeddings", None, "short-24"),
    ],
)
def test_the_other_systems(start, plain, trained):
    _, _, pairs, *cells, _ = row(start, "## Other systems").split("|")
    for text, cell in zip(("persuasion", "brown"), cells, strict=True):
        names = [f"{name}-{text}-1024" for name in (plain, trained) if name]
        found = [ppl(name) for name in names]
        assert cell.strip().removeprefix("trained: ").startswith(", ".join(found)), cell
        assert kept(names[0]) in pairs or "estimated" in pairs


def test_the_small_gpt2():
    names = ("sfa-gpt2-novels-k16", "short-gpt2-novels-24", "short-gpt2-novels-12", "lora-dense-gpt2-novels")
    for name, told in zip(
        names, ("reach {}, as dense", "bytes {} and", "half the bytes {}", "the tokens, reaches {}."), strict=True
    ):
        assert told.format(ppl(f"{name}-persuasion-1024")) in PROSE, name
    for text, told in (("persuasion", "costs {:.1f} % perplexity"), ("brown-fiction", "({:.1f} % on Brown's fiction)")):
        found = result(f"eval-latent-fitted-gpt2-novels-r96-{text}-1024")
        assert told.format(100 * (found["ppl"] / found["dense_ppl"] - 1)) in PROSE
    rows = {r["label"]: r["layers"] for r in result("cache-gpt2-novels-cpu")["rows"]}
    worst = {key: max(rows[f"Slim, {key[0]}-cache"][key[1]]["error"]) for key in (("K", "float32"), ("K", "bfloat16"))}
    assert f"by {100 * worst['K', 'float32']:.2f} % of dense's output" in PROSE
    assert f"by {100 * worst['K', 'bfloat16']:.0f} % in bfloat16" in PROSE
    assert f"X-cache errs by {100 * max(rows['Slim, X-cache']['bfloat16']['error']):.1f} %" in PROSE


def test_times_on_a_gpu():
    rows = [found for found in result("bench-focus-h200")["rows"] if found.get("kept", True) and found["looks"] == 1]
    told = [found for found in rows if found["groups"] == 16 and found["tokens"] in (8192, 32768, 131072, 1 << 20)]
    assert len(told) == 8
    for found in told:
        cell = row(f"{found['tokens']:,} | ", "## Times on a GPU").split("|")[2 + (found["dim"] == 128)].strip()
        digits = 2 if found["speedup"] < 1 else 1
        graph = f" ({found['speedup_graph']:.1f})" if "speedup_graph" in found else ""
        assert cell == f"{found['speedup']:.{digits}f}{graph}"
    longest = max(told, key=lambda found: (found["tokens"], -found["dim"]))
    assert f"the last row is {longest['against_fa2']:.1f}." in PROSE
    steps = {found["batch"]: found for found in result("bench-focus-decode-h200")["rows"] if found["tokens"] == 131072}
    one, many = (f"{steps[n]['speedup']:.1f} ({steps[n]['speedup_graph']:.1f})" for n in (1, 16))
    assert f"{one} alone, {many} for 16 sequences together" in PROSE
    models = {(r["tokens"], r["phase"], r["line"]): r["speedup"] for r in result("bench-models-h200")["rows"]}
    assert f"131,072 tokens are read {models[131072, 'prefill', 'Focus K=16 q1k1']:.1f} times as fast" in PROSE
    step, four = (models[131072, "decode as a graph", f"Focus K=16 {looks}"] for looks in ("q1k1", "q4k1"))
    called = [faster for (_, phase, line), faster in models.items() if phase == "decode" and line != "dense"]
    span = f"{min(called):.2f} to {max(called):.2f} times as fast"
    assert f"{span} as dense" in PROSE
    times = {
        (r["tokens"], r["phase"]): r["ms"]["median"]
        for r in result("bench-models-h200")["rows"]
        if r["line"] == "dense"
    }
    short, long = (f"{times[n, 'decode']:.0f}" for n in (32768, 131072))
    assert f"token takes {short} ms at 32,768 tokens and {long} at 131,072" in PROSE
    short, long = (f"{times[n, 'decode as a graph']:.0f}" for n in (32768, 131072))
    assert f"its graph takes {short} and {long}" in PROSE
    assert f"{step:.2f} times as fast with one group a query and {four:.2f} with four" in PROSE
    assert f"decodes {step:.2f} times as fast with each token a CUDA graph" in SHORT
    short = [
        next(r["speedup"] for r in result(name)["rows"] if (r["tokens"], r["phase"], r["line"]) == found)
        for name in ("bench-models-h200", "bench-models-smollm2-h200")
        for found in [(32768, "decode as a graph", "Focus K=16 q1k1")]
    ]
    assert max(short) < 1
    assert f"cached tokens decoding is slower in both ({short[0]:.2f} and {short[1]:.2f} by graphs)" in PROSE
    small = {(r["tokens"], r["phase"], r["line"]): r["speedup"] for r in result("bench-models-smollm2-h200")["rows"]}
    step, four = (small[131072, "decode as a graph", f"Focus K=16 {looks}"] for looks in ("q1k1", "q4k1"))
    assert f"decodes {step:.2f} times as fast by graphs ({four:.2f} with four groups;" in PROSE
    read = [small[131072, "prefill", f"Focus K=16 {looks}"] for looks in ("q1k1", "q4k1")]
    assert f"is read {read[0]:.1f} times as fast with one group a query, {read[1]:.1f} with four" in PROSE
    assert f"takes most of the time ({span})" in SHORT
    slim = {
        (r["batch"], r["turned"]): r["speedup_graph"]
        for r in result("bench-slim-clusters-h200")["rows"]
        if "kept" not in r
    }
    assert f"{slim[16, False]:.2f} times as fast as dense's as graphs where keys do not rotate" in PROSE
    assert f"and {slim[16, True]:.2f} where they do; for one sequence it is slower ({slim[1, True]:.2f})" in PROSE


def test_xattention_on_a_gpu_is_told_with_what_it_holds():
    rows = result("bench-xattention-h200")["rows"]
    whole = {r["form"]: r for r in rows if r["tokens"] == 131072 and r.get("kept") and "form" in r}
    own, served = whole["own"], whole["before"]
    told = (
        f"is {own['speedup']:.1f} ({own['speedup_graph']:.1f}) times as fast as dense at {100 * own['density']:.1f} %"
    )
    assert f"{told} of the pairs (as served, {served['speedup']:.1f})" in PROSE
    held = [100 * r["recall"] for r in rows if r["tokens"] == 131072 and "recall" in r]
    assert f"by layer these hold {min(held):.0f} to {max(held):.0f} % of dense attention's weights" in PROSE
    assert len(held) == own["layers"] == 5
    assert all(r["kept_own"] == 0 for r in rows if r.get("what") == "needles"), "a lone key is kept: say so"


def test_times_on_a_cpu():
    for found in result("bench-focus-cpu")["rows"]:
        low, high = (f"{found[f'speedup_{end}']:.2g}" for end in ("p10", "p90"))
        assert f"| {found['length']:,} | {found['speedup']:.2g} ({low} to {high})" in TOLD
        assert f"{100 * found['kept_pairs']:.2g} %" in TOLD
    layers = result("bench-xattention-cpu")["rows"]
    speeds, shares = ([f(r) for r in layers] for f in (lambda r: r["speedup"]["median"], lambda r: r["density"]))
    assert f"{min(speeds):.1f} to {max(speeds):.1f} by layer" in TOLD
    assert f"{100 * min(shares):.0f} to {100 * max(shares):.0f} % of the pairs by layer" in TOLD


def test_the_headlines_of_the_other_tables_stand_in_the_readme():
    def trained(name: str) -> str:
        return ppl(f"{name}-persuasion-1024")

    def pairs(name: str) -> str:
        return kept(f"{name}-persuasion-1024")

    for told in (
        f"dense with LoRA {trained('lora-dense-r8')}, the Routing Transformer {trained('lora-routing-k16')} "
        f"with {pairs('routing-k16')} of the pairs, Longformer {trained('lora-longformer')} with {pairs('longformer')}",
        f"SFA ({trained('sfa-k16')}) loses to short embeddings of the same bytes ({trained('short-24')})",
    ):
        assert told in SHORT
    alone = {found["length"]: found["speedup"] for found in result("bench-focus-cpu")["rows"]}
    assert f"{alone[8192]:.2g} times as fast as dense at 8,192 tokens and slower ({alone[1024]:.2g}) at 1,024" in SHORT
    rows = [r for r in result("compare-smollm2-cpu")["rows"] if (r["variant"], r["length"]) == ("focus", 4096)]
    (whole,) = (r["ratio"] for r in rows if f"{100 * r['kept_pairs']:.0f}" == "30")
    assert f"gains nothing clear ({1 / whole['median']:.2f})" in SHORT
    assert whole["p10"] < 1 < whole["p90"]
    gpu = {r["tokens"]: r["speedup"] for r in result("bench-focus-h200")["rows"] if is_headline(r)}
    assert f"{gpu[131072]:.1f} times as fast as the fastest of three dense kernels at 131,072 tokens" in SHORT
    assert f"and slower ({gpu[8192]:.2f}) at 8,192" in SHORT
    models = {(r["tokens"], r["phase"], r["line"]): r["speedup"] for r in result("bench-models-h200")["rows"]}
    assert f"reads 131,072 tokens {models[131072, 'prefill', 'Focus K=16 q1k1']:.1f} times as fast" in SHORT


def test_images():
    fashion, digits = result("vision-fashion"), result("vision-digits")
    cost = {(found["size"], found["arm"]): found for found in fashion["cost"]["steps"]}
    graph = {of: found["graph_step_ms"]["median"] for of, found in cost.items()}
    width = {"tiny": 48, "small": 112}
    arms = {(found["size"], found["arm"]): found for found in [*fashion["summary"], *digits["summary"]]}

    def mean(found: dict, key: str, digits: int) -> str:
        return f"{100 * found[key]:.{digits}f} % ± {100 * found[f'{key}_sd']:.{digits}f}"

    def apart(size: str, arm: str, other: str = "softmax", key: str = "accuracy") -> tuple[float, float]:
        """Points between two arms, and two standard errors of that."""
        pair = arms[size, arm], arms[size, other]
        error = sum(found[f"{key}_sd"] ** 2 / found["seeds"] for found in pair) ** 0.5
        return 100 * (pair[0][key] - pair[1][key]), 200 * error

    def clear(size: str, *of: str, **key: str) -> list[str]:
        """The arms that are further from softmax than two standard errors."""
        gaps = {arm: apart(size, arm, **key) for arm in (of or [arm for at, arm in cost if at == size])}
        return [arm for arm, (gap, error) in gaps.items() if abs(gap) > error]

    for (size, arm), step in cost.items():
        found, (gap, error) = arms[size, arm], apart(size, arm)
        name = arm if arm == "G3U" else vision_training.SHORT.get(arm, arm)
        assert found["seeds"] == 3
        assert row(f"{name}, width {width[size]} |").endswith(
            f"| {mean(found, 'accuracy', 2)} | {'–' if arm == 'softmax' else f'{gap:+.2f} ± {error:.2f}'} | "
            f"{found['parameters']:,} | {step['step_ms']['median']:.1f} ms ({graph[size, arm]:.1f}), "
            f"{step['peak_memory_bytes'] / 1e6:,.0f} MB | {mean(found, 'object_mass', 1)} |"
        )
    learned = {at: [arm for of, arm in cost if of == at and arm != "softmax"] for at in width}
    assert all(apart("tiny", arm)[0] > 0 for arm in learned["tiny"])
    assert set(learned["tiny"]) - set(clear("tiny")) == {"G3B-r2", "G3B-rank"}
    assert clear("small") == ["G1B"]
    assert len(learned["small"]) == 4
    assert all(apart("small", arm)[0] < apart("tiny", arm)[0] for arm in learned["small"])
    rates = {found["name"]: 100 * found["accuracy"] for found in [*fashion["rates"], *digits["rates"]]}
    best, g3b = rates["tiny-softmax-s0-lr0.004"], 100 * arms["tiny", "G3B"]["accuracy"]
    lead = {arm: 100 * arms["tiny", arm]["accuracy"] - best for arm in learned["tiny"]}
    assert f"{best:.2f} % at rate 0.004 and {rates['tiny-softmax-s0-lr0.001']:.2f} % at 0.001" in PROSE
    assert f"G3B is {lead['G3B']:.2f} points ahead and B-splines {lead['bspline']:.2f};" in PROSE
    assert {arm for arm, ahead in lead.items() if ahead < 0} == {"G3U", "G3B-r2", "G3B-r4", "G3B-rank"}
    small = [f"{rates[f'small-softmax-s0-lr{rate}']:.2f} %" for rate in ("0.001", "0.004")]
    assert f"softmax reaches {small[0]} at 0.001 and {small[1]} at 0.004" in PROSE
    memory = {of: found["peak_memory_bytes"] for of, found in cost.items()}
    for pair in (("G1B", "G3B"), ("G3B", "G5B"), ("G1B", "G5B")):
        assert not clear("tiny", pair[0], other=pair[1])
    assert "one frequency is {:.2f} ± {:.2f} points ahead of three".format(*apart("small", "G1B", "G3B")) in PROSE
    assert f"in {100 - 100 * memory['small', 'G1B'] / memory['small', 'G3B']:.0f} % less memory" in PROSE
    ranks = [(apart("tiny", "G3B", f"G3B-r{rank}"), memory["tiny", f"G3B-r{rank}"]) for rank in (2, 4)]
    told = " and ".join(f"{gap:.2f} ± {error:.2f}" for (gap, error), _ in ranks)
    saved = " and ".join(f"{100 - 100 * held / memory['tiny', 'G3B']:.0f}" for _, held in ranks)
    assert f"lose {told} points of rank 12's accuracy, and save {saved} % of its memory" in PROSE
    gap, error = apart("tiny", "bspline", "G3B")
    more, slower = (of["tiny", "bspline"] / of["tiny", "G3B"] for of in (memory, graph))
    assert f"{gap:.2f} ± {error:.2f} points ahead of sines with as many parameters, at {more:.1f} times" in PROSE
    assert f"the memory and {slower:.1f} times the captured step" in PROSE
    splines, wide = arms["tiny", "bspline"], arms["small", "softmax"]
    error = sum(found["accuracy_sd"] ** 2 / found["seeds"] for found in (splines, wide)) ** 0.5
    assert f"within {100 * (wide['accuracy'] - splines['accuracy']):.2f} ± {200 * error:.2f} points" in PROSE
    assert f"which has {wide['parameters'] / splines['parameters']:.1f} times the parameters" in PROSE
    assert "do not differ from sines ({:+.2f} ± {:.2f})".format(*apart("tiny", "wavelet", "G3B")) in PROSE
    assert "are behind them ({:+.2f} ± {:.2f})".format(*apart("tiny", "fractal", "G3B")) in PROSE
    loss = {
        (size, arm, part): fmean(
            found["loss_spread"][part] for found in fashion["runs"] if (found["size"], found["arm"]) == (size, arm)
        )
        for size in width
        for arm in ("softmax", "G3B")
        for part in ("early", "late", "roughness")
    }
    below = {(s, part): 100 - 100 * loss[s, "G3B", part] / loss[s, "softmax", part] for s, _, part in loss}
    assert f"is {below['tiny', 'early']:.0f} % below softmax's over the first tenth of the steps" in PROSE
    assert f"at width 48 and {below['small', 'early']:.0f} % at 112, over the last tenth" in PROSE
    assert f"over the last tenth {below['tiny', 'late']:.0f} and {below['small', 'late']:.0f} %." in PROSE
    assert all(below[size, "roughness"] > 0 for size in width)
    assert {found["loss_spread"]["spikes"] for found in fashion["runs"]} == {0.0}
    assert set(clear("tiny", key="object_mass")) == set(learned["tiny"])
    assert clear("small", key="object_mass") == ["G3B", "G3B-row"]
    equal = fashion["runs"][0 if fashion["runs"][0]["size"] != "long" else 1]["maps"]["uniform_mass"]["mean"]
    more = " and ".join(f"{100 * (arms[size, 'G3B']['object_mass'] - equal):.1f}" for size in width)
    assert f"and {more} points more than equal weights would" in PROSE
    assert f"equal weights have {100 * equal:.1f} %" in PROSE
    cut = {size: apart(size, "G3B", "G3B-row") for size in width}
    drawn = {size: apart(size, "G3B-row", "G3B", "object_mass") for size in width}
    assert "cost {:.2f} ± {:.2f} points of G3B's accuracy at width 48".format(*cut["tiny"]) in PROSE
    assert "put {:.1f} ± {:.1f} points more of the attention on the object".format(*drawn["tiny"]) in PROSE
    assert "in mean {:.2f} ± {:.2f} points less, which tells nothing".format(*cut["small"]) in PROSE
    assert "with {:.1f} ± {:.1f} points more on the object".format(*drawn["small"]) in PROSE
    runs = [found for found in fashion["runs"] if found["name"].startswith("small-G3B-row-")]
    ends = [f"{100 * found['accuracy']:.2f}" for found in runs]
    assert f"two seeds reach {ends[0]} and {ends[1]} %, and the third" in PROSE
    assert f"from the eighth epoch on, ends at {ends[2]} %" in PROSE
    behind = [min(a, b) - c for a, b, c in zip(*(found["validation"] for found in runs), strict=True)]
    assert [gap > 0.01 for gap in behind] == [False] * 7 + [True] * 13
    rank = [found["maps"] for found in fashion["runs"] if found["name"].startswith("tiny-G3B-rank-")]
    negative = 100 * fmean(share for found in rank for heads in found["negative_share"] for share in heads)
    total = fmean(found["row_sum"]["mean"] for found in rank)
    assert "costs {:.2f} ± {:.2f} points, ".format(*apart("tiny", "G3B", "G3B-rank")) in PROSE
    assert f"points, {negative:.0f} % of the weights are negative, and a row's sum is {total:.2f} in mean" in PROSE
    checks = [part["check"] for part in fashion["parts"] if part["check"]]
    assert all(set(found["graph"].values()) == {0.0} for check in checks for found in check["arms"].values())
    told = [mean(arms["digits", arm], "accuracy", 1) for arm in ("softmax", "G3B", "full")]
    assert f"{told[0]} with softmax ({rates['digits-softmax-s0-lr0.008']:.1f} % at its best rate" in PROSE
    assert f"{told[1]} with G3B and {told[2]} with the full operator" in PROSE
    told = [mean(arms["digits", arm], "object_mass", 1) for arm in ("softmax", "G3B")]
    assert f"{told[0]} with softmax, {told[1]} with G3B" in PROSE
    held = {found["rank"]: found["peak_memory_bytes"] for found in fashion["cost"]["memory_by_rank"]}
    low, lower, least, full = (f"{held[rank] / held[None]:.2f} times" for rank in (12, 4, 2, 197))
    assert f"takes {low} softmax's memory at rank 12, {lower} at rank 4, {least} at rank 2 and {full} with" in PROSE
    assert f"All {fashion['planned']} planned runs were made, in three sessions" in PROSE
    assert (fashion["done"], fashion["not_made"], len(fashion["parts"])) == (fashion["planned"], [], 3)
    assert (
        f"gets {g3b:.1f} % of Fashion-MNIST right and {100 * arms['tiny', 'softmax']['accuracy']:.1f} % with softmax "
        f"({best:.1f} % at its best rate); in a larger one ({100 * arms['small', 'G3B']['accuracy']:.1f} and "
        f"{100 * wide['accuracy']:.1f} %) three of four forms of KArAt gain nothing clear" in SHORT
    )


@pytest.mark.parametrize(
    "start, signs", [("Focus K=16 q4k1 (", "+ - "), ("Focus K=8 q1k1 (", "+ - "), ("LoRA r=8, rate 0.003", "-+  ")]
)
def test_what_is_said_of_adapting_is_what_the_intervals_say(start, signs):
    """Other texts' perplexity, grammar, needles and instructions: an interval above zero, below it, or over it."""
    cells = [row(start).split("|")[at] for at in (4, 5, 6, 8)]
    spans = [tuple(map(float, re.search(r"\((.+) to (.+)\)", cell).groups())) for cell in cells]
    assert "".join("+" if low > 0 else "-" if high < 0 else " " for low, high in spans) == signs


def is_headline(found: dict) -> bool:
    return found.get("kept", True) and (found["looks"], found["groups"], found["dim"]) == (1, 16, 64)


def test_every_file_that_the_readme_links_is_there():
    for text, folder in ((README, "."), (TOLD.removeprefix(README), "docs")):
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (DATA.parent / folder / target).exists(), target
