"""What docs/results.md says of the groups is what the recorded interpretations say."""

import re

import pytest

from focus_core.assets import DATA
from focus_core.jobs.files import read_json

TOLD = (DATA.parent / "docs/results.md").read_text("utf-8")
SECTION = " ".join(TOLD[TOLD.index("## What the groups are") : TOLD.index("## What a router learns")].split())
COLUMNS = ("groups", "shuffled", "frequency", "untrained", "kmeans")


def summary(name):
    return read_json(DATA / "results" / f"interpret-{name}.json.gz")["summary"]


@pytest.fixture(scope="module")
def found():
    return {name: summary(name) for name in ("directed-k16", "shared-k8", "gpt2-novels-k16")}


@pytest.mark.parametrize(
    ("start", "name"),
    [
        ("SmolLM2, directed, 16", "directed-k16"),
        ("SmolLM2, shared, 8", "shared-k8"),
        ("the small GPT-2, directed, 16", "gpt2-novels-k16"),
    ],
)
def test_the_table_is_that_of_the_records(start, name, found):
    (row,) = (line for line in TOLD.splitlines() if line.startswith(f"| {start}"))
    mean = found[name]["keys"]["mean"]
    assert [cell.strip() for cell in row.split("|")[2:-1]] == [f"{mean[of]['v_measure']:.3f}" for of in COLUMNS]


def test_the_sentences_are_those_of_the_records(found):
    directed, shared, small = found.values()
    above = {one["keys"]["layers_above"]["frequency"] for one in (directed, shared)}
    assert f"above one random group a word in {above.pop()} of {directed['layers']} layers" in SECTION
    assert not above
    assert {one["keys"]["layers_below"]["kmeans"] for one in (directed, shared)} == {directed["layers"]}
    share = {name: f"{100 * value:.0f} %" for name, value in directed["keys"]["about_share"].items()}
    assert f"part of speech for {share['part of speech']} of the directed router's groups" in SECTION
    assert f"frequency for {share['frequency']}, nothing that was looked at for {share['nothing found']}" in SECTION
    assert f"position tells best for {100 * small['keys']['about_share']['position']:.0f} %" in SECTION
    assert f"router's {directed['keys']['groups']:,} groups {directed['keys']['pure_90']} hold" in SECTION
    assert f"shared one's {shared['keys']['groups']} groups {shared['keys']['pure_90']}." in SECTION
    seeds = sorted(f"{value:.2f}" for value in small["stability"]["against"].values())
    assert f"adjusted Rand index {seeds[0]} and {seeds[1]}, small GPT-2" in SECTION
    assert f"keeps its directed group in {100 * directed['stability']['texts_same']:.0f} % of cases" in SECTION
    kept = re.findall(r"(\d\.\d\d) times", SECTION)
    assert kept == [f"{one['own_tag_lift']:.2f}" for one in (directed, shared)]
