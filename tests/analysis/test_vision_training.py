"""Words, tables and figures of recorded vision trainings."""

import pytest

from analysis import vision_memory, vision_sweep
from analysis import vision_training as words


def run(size, arm, seed, accuracy):
    return {
        "name": f"{size}-{arm}-s{seed}",
        "size": size,
        "arm": arm,
        "seed": seed,
        "rate": 0.002,
        "accuracy": accuracy,
        "parameters": 100_000,
        "tokens": 50,
        "precision": "bf16 autocast",
        "model": {"width": 48},
        "loss": {"step": [0, 10], "loss": [2.3, 0.7]},
        "loss_spread": {"early": 2.0, "late": 0.7, "roughness": 0.02, "spikes": 0.0},
        "maps": {"object_mass": {"mean": 0.6, "sd": 0.1}, "uniform_mass": {"mean": 0.5, "sd": 0.1}},
    }


def row(size, arm, accuracy, sd, seeds=3):
    return {
        "size": size,
        "arm": arm,
        "seeds": seeds,
        "accuracy": accuracy,
        "accuracy_sd": sd,
        "gain": accuracy - 0.9,
        "parameters": 100_000,
        "object_mass": 0.6,
        "object_mass_sd": sd,
        "roughness": 0.02,
    }


@pytest.fixture
def document():
    arms = {"softmax": 0.9, "G3B": 0.91, "G3U": 0.905}
    cost = {"median": 4.0, "q1": 3.9, "q3": 4.1, "n": 20}
    ranks = [(None, 2e9), (2, 4e9), (12, 8e9)]
    return {
        "command": "python -m data.build.vision all",
        "environment": {"time": "2026-11-30", "device": "H200"},
        "summary": [row("tiny", arm, value, 0.001) for arm, value in arms.items()],
        "runs": [run("tiny", arm, seed, value + seed / 1000) for arm, value in arms.items() for seed in range(3)],
        "cost": {
            "steps": [{"size": "tiny", "arm": "softmax", "batch": 512, "step_ms": cost, "peak_memory_bytes": 10**9}],
            "memory_by_rank": [
                {"attention": "softmax", "rank": rank, "batch": 32, "step_ms": cost, "peak_memory_bytes": held}
                for rank, held in ranks
            ],
        },
    }


@pytest.mark.parametrize(
    ("learned", "sd", "seeds", "expected"),
    [
        (0.91, 0.001, 3, "a gain beyond two standard errors"),
        (0.89, 0.001, 3, "a loss beyond two standard errors"),
        (0.91, 0.02, 3, "within two standard errors"),
        (0.91, None, 1, "one seed: no spread"),
    ],
)
def test_a_difference_is_judged_by_its_spread(learned, sd, seeds, expected):
    control, other = row("tiny", "softmax", 0.9, sd, seeds), row("tiny", "G3B", learned, sd, seeds)
    assert words.verdict(learned - 0.9, control, other) == expected


def test_the_sentence_has_both_accuracies_and_their_difference(document):
    said = words.sentence(document)
    assert "Tiny: 90.0 % with softmax, 91.0 % with Fourier-KArAt G3B (+1.00 points, a gain beyond" in said
    assert words.sentence({"summary": []}) == "No size has both softmax and KArAt yet."


def test_the_table_leaves_open_what_was_not_measured(document):
    table = words.table(document).set_index("attention")
    assert table.loc["softmax", "step"] == "4.00 ms"
    assert table.loc["softmax", "memory"] == "1.00 GB"
    assert set(table["step"][1:]) == {"–"}
    assert table.loc["softmax", "accuracy"] == "90.0 % ± 0.10"


def test_captured_steps_are_told_where_they_were_timed(document):
    assert words.step_sentence(document) == ""
    document["cost"]["steps"][0]["graph_step_ms"] = {"median": 2.8225}
    document["cost"]["steps"].append({"size": "tiny", "arm": "G3U", "graph_step_ms": None})
    assert "in brackets it is captured" in words.step_sentence(document)
    assert words.table(document)["step"].tolist() == ["4.00 ms (2.82)", "–", "–"]


def test_the_arms_that_are_not_clearly_ahead_are_named(document):
    assert words.table(document)["against softmax"].tolist() == ["–", "+1.00 ± 0.16", "+0.50 ± 0.16"]
    said = "Ahead of softmax at the same rate beyond two standard errors: tiny "
    assert words.arms_sentence(document) == f"{said}2 of 2."
    for arm, accuracy, sd, seeds in (
        ("G3B-r2", 0.901, 0.001, 3),
        ("fractal", 0.89, 0.001, 3),
        ("G3B-row", 0.901, 0.002, 3),
        ("G1B", 0.92, None, 1),
    ):
        document["summary"].append(row("tiny", arm, accuracy, sd, seeds))
    told = "within: G3B rank 2, G3B simplex; loss: fractal; one seed: G1B"
    assert words.arms_sentence(document) == f"{said}2 of 6 ({told})."
    assert words.table(document)["against softmax"].tolist()[-1] == "+2.00"
    document["summary"] = document["summary"][:2]
    assert words.arms_sentence(document) == ""


def test_figures_hold_every_seed_and_rank(document):
    means, dots = words.accuracy_figure(document).data
    assert list(means.x) == pytest.approx([0, 1, 0.5])
    assert sorted(dots.x) == pytest.approx([0, 0.1, 0.2, 0.5, 0.6, 0.7, 1, 1.1, 1.2])
    assert len(words.loss_figure(document, "tiny").data) == 9
    assert list(vision_memory.rank_figure(document).data[0].x) == [2, 4, 8]
    assert vision_memory.rank_sentence(document).endswith(
        "batch 32, takes, of softmax's memory: rank 2 2.00×, rank 12 4.00×."
    )
    full = {"attention": "full", "rank": 197, "batch": 32, "step_ms": {"median": 4.0}, "peak_memory_bytes": 1e10}
    document["cost"]["memory_by_rank"].append(full)
    assert list(vision_memory.rank_figure(document).data[0].y) == [
        "softmax",
        "G3B, rank 2",
        "G3B, rank 12",
        "full operator",
    ]
    assert vision_memory.rank_sentence(document).endswith("rank 12 4.00×, full operator 5.00×.")
    assert "equal weights have 50.0 %" in words.mass_sentence(document)


def test_where_it_was_measured_is_said(document):
    assert words.about(document) == "2026-11-30, H200, bf16 autocast; python -m data.build.vision all"
    first = {"environment": {"time": "2026-11-29", "device": "H100"}, "command": "before", "runs": ["tiny-G3B-s1"]}
    document["parts"] = [first, {**document, "runs": ["tiny-G3B-s0"]}]
    assert words.about(document).startswith("2026-11-30, H200")
    assert words.about(document, run("tiny", "G3B", 1, 0.9)) == "2026-11-29, H100, bf16 autocast; before"
    assert words.made_on(document) == "H200, bf16 autocast, 2026-11-30"


def test_a_run_at_another_rate_is_no_seed(document):
    document["runs"].append({**run("tiny", "softmax", 0, 0.5), "rate": 0.004})
    assert min(words.accuracy_figure(document).data[1].x) == pytest.approx(0)


def test_nothing_recorded_draws_a_sentence():
    empty = {"summary": [], "runs": [], "cost": None}
    for fig in (words.accuracy_figure(empty), words.loss_figure(empty, ""), vision_memory.rank_figure(empty)):
        assert fig.layout.annotations[0].text


def test_the_fewest_pairs_within_half_a_point_are_named():
    settings = [(0.5, 0, 0.4, 0.7), (0.9, 1, 0.7, 0.898), (1.0, 0, 1.0, 0.9)]
    names = ("threshold", "warm_up", "kept_pairs", "accuracy")
    sweep = [dict(zip(names, values, strict=True)) | {"stride": 4, "block": 16} for values in settings]
    found = {**run("long", "softmax", 0, 0.9), "xattention": sweep}
    said = vision_sweep.sweep_sentence(found)
    assert said.startswith("With threshold 0.9 and 1 dense first layers, 70.0 % of the pairs give 89.8 %")
    assert len(vision_sweep.sweep_figure(found).data) == 2
    assert len(vision_sweep.sweep_table(found)) == 3


def test_dense_is_counted_on_the_images_of_the_sweep():
    rows = [
        {"threshold": t, "warm_up": 0, "kept_pairs": k, "accuracy": a} for t, k, a in ((0.9, 0.7, 0.845), (1, 1, 0.86))
    ]
    said = vision_sweep.sweep_sentence({"accuracy": 0.845, "xattention": rows})
    assert said.startswith("With threshold 1 and 0 dense first layers, 100 % of the pairs give 86.0 %")
    assert vision_sweep.dense({"accuracy": 0.845, "xattention": rows[:1]}) == 0.845


def test_the_best_rate_of_softmax_stands_beside_the_gain(document):
    rates = [
        ("tiny-softmax-s0", 0.002, 0.9),
        ("tiny-softmax-s1", 0.002, 0.8),
        ("tiny-softmax-s0-lr0.004", 0.004, 0.908),
    ]
    document["rates"] = [dict(zip(("name", "rate", "accuracy"), values, strict=True)) for values in rates]
    said = words.rates_sentence(document)
    assert "tiny 90.0 % at 0.002, 90.8 % at 0.004 (G3B's mean less the best: +0.20 points)." in said
    document["rates"] = document["rates"][:2]
    assert words.rates_sentence(document) == ""


def test_a_single_seed_and_runs_that_were_not_made_are_said(document):
    document["summary"].append(row("tiny", "G1B", 0.92, None, seeds=1))
    fig = words.accuracy_figure(document)
    assert list(fig.layout.yaxis.ticktext) == ["softmax", "G3B", "G3U, shared", "G1B, n = 1"]
    assert fig.data[0].text[3] == "G1B: 1 frequency, tiny: 92.0 % (n = 1)"
    assert words.table(document)["seeds"].tolist() == [3, 3, 3, 1]
    assert words.made_sentence(document) == ""
    document |= {"done": 10, "planned": 13, "not_made": ["tiny-G3B-row-s0", "tiny-G3B-row-s1", "small-G1B-s2"]}
    said = words.made_sentence(document)
    assert said == ("10 of 13 planned runs were made; not made (how many seeds): tiny G3B, simplex (2); small G1B (1).")
