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


def test_what_the_model_cannot_read_is_refused_before_anything_is_measured(refused, tiny_folder):
    given = ("probe", "--model", tiny_folder, "--device", "cpu", "--tasks")
    # The tiny model reads 1,024 tokens; the last one of an answer is only predicted.
    assert "Make lengths smaller" in refused(*given, "needle", "--lengths", "1024")
    assert "Make passage smaller" in refused(*given, "pairs,needle", "--pairs", "1", "--passage", "1020")
    assert "The text has 1,100 tokens" in refused("recall", *given[1:5], "--variant", "dense", "--context", "1100")


def test_a_file_of_parts_is_taken_only_where_it_is_one_of_the_same_sizes(command, tiny_folder, tmp_path, monkeypatch):
    given = ("probe", "--model", tiny_folder, "--device", "cpu", "--tasks", "texts", "--windows", "1", "--context")
    partial, whole = tmp_path / "result.json.partial", abilities.perform
    partial.write_text('["half a')
    assert command(*given, "24")[0] == 0
    partial.write_text("3")

    def stops(work, unit):
        if unit.part != "persuasion":
            raise Cancelled
        return whole(work, unit)

    monkeypatch.setattr(abilities, "perform", stops)
    assert command(*given, "24") == (130, None)
    monkeypatch.setattr(abilities, "perform", whole)
    code, found = command(*given, "16")
    assert (code, found["notes"]) == (0, [])


def test_wrong_arguments_are_said_before_a_model_is_loaded(refused, tiny_folder):
    for wrong, word in (
        (("--tasks", "poetry"), "poetry"),
        (("--tasks", ","), "No task"),
        (("--lengths", "many"), "many"),
        (("--pairs", "0"), "pairs is 0"),
        (("--pairs", "400"), "Ask for up to"),
        (("--lengths", "0"), "needles of 0 tokens"),
        (("--adapter", "nowhere"), "nowhere"),
    ):
        assert word in refused("probe", "--model", tiny_folder, *wrong)
    assert "no chat template" in refused("probe", "--model", tiny_folder, "--tasks", "refusal")
