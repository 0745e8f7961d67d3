"""The record of models trained from nothing, and the table that is made of it."""

import json
from pathlib import Path
from statistics import fmean, variance

import pytest

from data.build import scratch
from focus_core.assets import DATA
from focus_core.experiments.plan import read_plan

ROOT = DATA.parent
RECORD = ROOT / scratch.RECORD


def results(folder, work):
    """Every result of the plan but one, with figures that tell where they come from."""
    tasks = [t for t in read_plan([ROOT / scratch.PLAN], work, folder) if t.asked is None]
    for task in tasks[:-1]:
        seed = int(task.needs.asked["seed"])
        found = dict.fromkeys((*scratch._MEASURED.split(), *scratch._RUN.split()), 1)
        found |= {"command": task.command, "environment": {"device": "a card", "time": "now"}, "config": {"x": seed}}
        found |= {"text": "brown fiction" if "fiction" in task.name else "persuasion", "ppl": 50.0 + seed}
        found |= {"dense_ppl": 70.123456789, "kept_pairs": 0.25}
        found["training"] = {**found, "losses": [[1, 2.0]], "log": [{"served_ppl": 90.0}, {"served_ppl": 80.0 + seed}]}
        if task.arguments[0] == "recall":
            one = {"nll": 2.0 + seed / 10, "control": 3.0, "right": 0.5, "right_control": 0.125}
            found |= {"random": {"32": one, "512": one}, "text": {"512": one}, "pairs": {"0.1": one, "0.5": one}}
            found |= {"count": 64, "context": 1024}
        (folder / f"{task.name}.json").write_text(json.dumps(found))
    return tasks


def test_the_record_holds_every_run_and_names_what_is_missing(tmp_path):
    tasks = results(tmp_path, tmp_path / "work")
    record = scratch.pack(tmp_path, ROOT / scratch.PLAN, tmp_path / "work")
    assert record["not_made"] == [tasks[-1].name]
    assert record["not_trained"] == []
    assert record["planned"] == {"models": 20, "measurements": len(tasks)}
    assert record["made"] == {"models": 20, "measurements": len(tasks) - 1}
    assert record["recipe"]["steps"] > 0
    assert len({(run["line"], run["seed"]) for run in record["runs"]}) == len(record["runs"]) == 20
    assert sum(len(run["measured"]) + len(run["recall"]) for run in record["runs"]) == len(tasks) - 1
    assert len(json.dumps(record)) < 100_000
    focus = next(run for run in record["runs"] if run["line"] == "focus-k16" and run["seed"] == 2)
    assert focus["config"] == {"x": 2}
    assert [one["set"] for one in focus["measured"]] == ["served", "served", "soft", "soft"]
    assert focus["measured"][0]["dense_ppl"] == 70.1235
    assert focus["training"]["losses"] == [[1, 2.0]]


def test_the_table_tells_means_and_spreads(tmp_path):
    results(tmp_path, tmp_path / "work")
    record = scratch.pack(tmp_path, ROOT / scratch.PLAN, tmp_path / "work")
    rows = {line.split(" | ")[0]: line for line in scratch.table(record).splitlines()}
    dense = record["lines"][0]
    assert dense["persuasion"] == {"mean": 51.0, "sd": 1.0, "seeds": 3}
    assert (dense["distance"], dense["seeds"], dense["set"]) == (512, 3, "served")
    copied = "50.0 ± 0.0 % (12.5 %) | 0.900 ± 0.100 | 0.900 ± 0.100 |"
    assert (
        rows["| dense"]
        == f"| dense | 3 | 25.0 % | 81.00 ± 1.00 | 51.00 ± 1.00 | 51.00 ± 1.00 | 70.12 ± 0.00 | {copied}"
    )
    short = "| short-24 | 1 | 25.0 % | 80.00 | 50.00 | 50.00 | 70.12 | 50.0 % (12.5 %) | 1.000 |"
    assert rows["| short-24"].startswith(short)
    assert rows["| focus-k16, served"].startswith("| focus-k16, served | 3 | 25.0 % | 81.00 ± 1.00 |")


def test_a_partial_record_says_what_it_lacks(tmp_path):
    """Of three models two were trained, one of them measured in part; the records of training tell of both."""
    work = tmp_path / "work"
    for task in results(tmp_path, work):
        if task.needs.name != "pretrain-dense" or "recall" in task.name:
            (tmp_path / f"{task.name}.json").unlink(missing_ok=True)
    for name, step, ppl in (
        ("dense", 600, 81.0),
        ("dense-s1", 600, 83.0),
        ("dense-s2", 599, 1.0),
        ("sfa-k16", 600, 90),
    ):
        place = work / f"scratch-{name}"
        place.mkdir(parents=True)
        told = dict.fromkeys(scratch._RUN.split(), 1) | {"step": step, "log": [{"served_ppl": ppl}]}
        told |= {"environment": {"device": "a card"}, "settings": {"steps": 600, "config": {"y": 1}}}
        (place / "training_record.json").write_text(json.dumps(told))
    record = scratch.pack(tmp_path, ROOT / scratch.PLAN, work)
    assert record["made"] == {"models": 3, "measurements": 2}
    assert {"dense-s2", "sfa-k16-s1", "window-128"} <= set(record["not_trained"])
    assert len(record["not_trained"]) == 17
    rows = [line for line in scratch.table(record).splitlines() if line.startswith(("| dense", "| sfa"))]
    bare = " | ".join(["not measured"] * 6)
    assert rows == [
        "| dense | 2 | 25.0 % | 82.00 ± 1.41 | 50.00 (1 of 2) | 50.00 (1 of 2) | 70.12 (1 of 2) | "
        "not measured | not measured | not measured |",
        f"| sfa-k16 | 1 | not measured | 90.00 | {bare} |",
    ]
    section = scratch.section(record)
    assert f"Partial: 3 of 20 models were trained, and 2 of {record['planned']['measurements']} measurements" in section
    assert "validation slice alone: sfa-k16, dense-s1." in section
    assert next(run for run in record["runs"] if run["line"] == "sfa-k16")["config"] == {"y": 1}


def test_a_section_takes_its_own_place_alone(tmp_path):
    results(tmp_path, tmp_path / "work")
    record = scratch.pack(tmp_path, ROOT / scratch.PLAN, tmp_path / "work")
    page = tmp_path / "page.md"
    page.write_text("before\n\n## Times on a CPU\n\nafter\n")
    scratch.write_section(record, page)
    first = page.read_text()
    assert first.startswith("before\n\n## From scratch\n\n" + scratch.BEGIN)
    assert first.endswith(scratch.END + "\n\n## Times on a CPU\n\nafter\n")
    assert "Partial: 20 of 20 models" in first
    page.write_text(first.replace("51.00", "wrong"))
    scratch.write_section(record, page)
    assert page.read_text() == first


def test_the_page_tells_the_record():
    """Both are there, or neither."""
    page = (ROOT / scratch.PAGE).read_text("utf-8")
    assert RECORD.exists() == (scratch.BEGIN in page)
    if RECORD.exists():
        assert scratch.section(json.loads(Path(RECORD).read_text("utf-8"))) in page


@pytest.fixture(scope="module")
def recorded():
    """The record, and the page and README.md with all white space alike."""
    pages = [(ROOT / name).read_text("utf-8") for name in (scratch.PAGE, "README.md")]
    return json.loads(RECORD.read_text("utf-8")), *(" ".join(page.split()) for page in pages)


def seeds(record, line, text, label="served"):
    """A line's perplexities on a text, seed by seed; no text: on the validation slice."""
    runs = [run for run in record["runs"] if run["line"] == line]
    if text is None:
        return [run["training"]["log"][-1]["served_ppl"] for run in runs]
    return [one["ppl"] for run in runs for one in run["measured"] if (one["text"], one["set"]) == (text, label)]


def apart(record, line, other, text):
    """How far a line is below another, and two standard errors of that."""
    pair = [seeds(record, name, text) for name in (other, line)]
    error = 2 * sum(variance(values) / len(values) for values in pair) ** 0.5
    return fmean(pair[0]) - fmean(pair[1]), error, fmean(pair[0])


def test_what_is_said_of_random_groups_follows_from_the_record(recorded):
    record, page, readme = recorded
    texts = ("persuasion", "brown fiction", None)
    found = [apart(record, "random-k16", "focus-k16", text) for text in texts]
    told = "by {} on *Persuasion*, {} on Brown's fiction and {} on the validation slice"
    assert told.format(*(f"{gap:.1f} ± {error:.1f}" for gap, error, _ in found)) in page
    for text in texts:
        learned, drawn = seeds(record, "focus-k16", text), seeds(record, "random-k16", text)
        assert (len(learned), len(drawn)) == (3, 3)
        assert max(drawn) < min(learned)
    shares = [100 * gap / of for gap, _, of in found]
    assert f"{min(shares):.0f} to {max(shares):.0f} %. They" in page
    dense = [apart(record, "random-k16", "dense", text) for text in texts]
    shown = [f"{100 * gap / of:.1f} ± {100 * error / of:.1f} %" for gap, error, of in dense]
    assert "ahead of dense by {}, {} and {}.".format(*shown) in page
    gap, error, of = apart(record, "focus-k16", "dense", "persuasion")
    learned = f"{100 * gap / of:.1f} ± {100 * error / of:.1f} %"
    assert f"learned groups lower the perplexity of *Persuasion* by {learned}, random groups" in readme
    assert f"random groups of as many pairs by {shown[0]}." in readme


def test_what_is_said_of_the_soft_half_follows_from_the_record(recorded):
    record, page, _ = recorded

    def halfway(line):
        losses = [run["training"]["losses"] for run in record["runs"] if run["line"] == line]
        means = [fmean(loss for step, loss in one if 240 < step <= 300) for one in losses]
        return f"{min(means):.2f} to {max(means):.2f}"

    told = f"{halfway('focus-k16')} and {halfway('random-k16')}, dense {halfway('dense')}"
    assert told in page
    (hard,) = (run["training"] for run in record["runs"] if run["line"] == "hard-k16")
    losses = dict(map(tuple, hard["losses"]))
    assert f"from {losses[120]:.2f} to {losses[165]:.2f} by step 165" in page
    assert max(losses[step] for step in losses if step > 120) == losses[165]
    assert f"{max(one['largest_group'] for one in hard['log']):.1f} times an even share" in page
    texts = ("persuasion", "brown fiction")
    (novel,), (fiction,) = (seeds(record, "hard-k16", text) for text in texts)
    assert f"({novel:.2f} and {fiction:.2f})" in page
    lost = [
        100 * (seeds(record, "soft-k16", text)[0] / seeds(record, "soft-k16", text, "soft")[0] - 1) for text in texts
    ]
    assert "loses {:.1f} % on *Persuasion* and {:.1f} % on Brown's fiction when served".format(*lost) in page
    assert seeds(record, "soft-k16", "persuasion")[0] > fmean(seeds(record, "dense", "persuasion"))
