"""The command ``probe``: its document, what it takes up again, its table, and what it refuses."""

import json

from focus_core.cli import main
from focus_core.errors import Cancelled
from focus_core.evaluation.abilities import run as abilities
from focus_core.models.loading import load_model
from focus_core.routing.router import Router, RouterConfig

PAIRS = ("--tasks", "pairs", "--pairs", "2", "--passage", "12", "--device", "cpu")


def test_an_adapter_names_its_variant_and_the_run_goes_on_where_it_was(
    command, tiny_folder, tmp_path, monkeypatch, capsys
):
    router = Router(RouterConfig(2, 144, groups=4, dim=8, routers=3))
    router.serve = {"groups": 4, "query_topk": 2, "window": 6, "sinks": 1}
    router.save_pretrained(tmp_path / "router", load_model(tiny_folder).model)
    given = ("probe", "--model", tiny_folder, "--adapter", str(tmp_path / "router"), *PAIRS)
    whole, seen = abilities.perform, []

    def fails_later(work, unit):
        if len(seen) == 3:
            raise Cancelled
        seen.append(unit)
        return whole(work, unit)

    monkeypatch.setattr(abilities, "perform", fails_later)
    assert command(*given) == (130, None)
    assert len(json.loads((tmp_path / "result.json.partial").read_text())["done"]) == 3
    monkeypatch.setattr(abilities, "perform", whole)
    code, found = command(*given)
    assert code == 0
    assert (found["variant"], found["config"]["window"]) == ("focus", 6)
    assert found["notes"][0].startswith("3 of 24 parts")
    assert found["weights"]["same"]
    assert not (tmp_path / "result.json.partial").exists()
    assert "parts, about" in capsys.readouterr().err


def test_a_person_reads_shares_with_intervals_and_that_the_weights_stayed(tiny_folder, capsys):
    assert main(["probe", "--model", tiny_folder, *PAIRS]) == 0
    said = capsys.readouterr().out
    assert "of 24 (" in said
    assert "weights before, inside and after: the same" in said


def test_wrong_arguments_are_said_before_a_model_is_loaded(refused, tiny_folder):
    for wrong, word in (
        (("--tasks", "poetry"), "poetry"),
        (("--tasks", ","), "No task"),
        (("--lengths", "many"), "many"),
        (("--pairs", "0"), "pairs is 0"),
        (("--adapter", "nowhere"), "nowhere"),
    ):
        assert word in refused("probe", "--model", tiny_folder, *wrong)
    assert "no chat template" in refused("probe", "--model", tiny_folder, "--tasks", "refusal")
