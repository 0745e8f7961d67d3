"""Which runs are made: those that no record has, those that decide most first; and what a record becomes with them."""

import dataclasses
import io
import json
from contextlib import redirect_stderr

import pytest

from data.build.vision import main
from data.build.vision_check import FLOORS, compare, passes
from data.build.vision_pack import merge
from data.build.vision_plan import Run, chosen, config_of, is_recorded, open_runs, plan, recipe_of
from focus_core.assets import DATA
from focus_core.errors import InvalidInput
from focus_core.vision.config import ViTConfig
from focus_core.vision.training import Recipe
from tests.vision.test_vision_steps import images  # noqa: F401 - a fixture


@pytest.fixture
def record():
    """A record of four runs: softmax, its other rate, and G3B at two seeds."""
    kept = [Run("tiny", "softmax", 0), Run("tiny", "G3B", 0), Run("tiny", "G3B", 1)]
    return {
        "command": "python -m data.build.vision all --data data/fashion",
        "seconds": 100.0,
        "environment": {"time": "before"},
        "cost": {"steps": [{"size": "tiny", "arm": "G3B", "step_ms": 9}], "memory_by_rank": []},
        "runs": [document(run, 0.8 + 0.02 * place) for place, run in enumerate(kept)],
        "rates": [
            {"name": "tiny-softmax-s0", "rate": 0.002, "accuracy": 0.8},
            {"name": "tiny-softmax-s0-lr0.004", "rate": 0.004, "accuracy": 0.83},
        ],
    }


def document(run, accuracy):
    spread = {"mean": 0.5, "sd": 0.1}
    return {
        "name": run.name, "size": run.size, "arm": run.arm, "seed": run.seed, "rate": recipe_of(run).learning_rate,
        "model": config_of(run).as_dict(), "recipe": dataclasses.asdict(recipe_of(run)),
        "accuracy": accuracy, "parameters": 1, "loss_spread": {"roughness": 0.1},
        "maps": {"object_mass": spread, "rollout_mass": spread},
    }  # fmt: skip


def test_a_recorded_run_is_one_of_the_same_model_by_the_same_recipe(record):
    record = json.loads(json.dumps(record))
    told = [run.name for run in plan() if is_recorded(run, record)]
    assert told == ["tiny-softmax-s0", "tiny-G3B-s0", "tiny-G3B-s1", "tiny-softmax-s0-lr0.004"]
    record["runs"][1]["recipe"]["clip"] = 2.0
    record["runs"][2]["model"]["attention"]["rank"] = 4
    assert not any(is_recorded(Run("tiny", "G3B", seed), record) for seed in (0, 1))
    record["runs"][0]["recipe"]["epochs"] = 1
    assert not is_recorded(Run("tiny", "softmax", 0, 0.004), record), "its control was made otherwise"
    assert open_runs(plan(), None) == plan()


def test_what_decides_most_comes_first():
    runs = plan()
    assert len({run.name for run in runs}) == len(runs) == 56
    place = {run.name: at for at, run in enumerate(runs)}
    order = ["tiny-G3B-s2", "tiny-softmax-s0-lr0.001", "tiny-G3B-row-s2", "tiny-G3B-rank-s2", "small-G1B-s2"]
    order += ["small-G3B-row-s2", "tiny-G3B-r4-s2", "tiny-fractal-s0", "tiny-bspline-s1"]
    assert sorted(order, key=place.__getitem__) == order


def test_some_arms_alone_give_each_a_run_before_any_a_second():
    named = ["fractal", "tiny-G1B", "tiny-G3B-r2-s1", "tiny-fractal-s1"]
    assert [run.name for run in chosen(plan(), named)] == [
        "tiny-fractal-s0", "tiny-G1B-s0", "tiny-fractal-s1", "tiny-G1B-s1", "tiny-G3B-r2-s1",
        "tiny-fractal-s2", "tiny-G1B-s2",
    ]  # fmt: skip
    with pytest.raises(InvalidInput, match=r"No run is called G9B\. Name an arm \(softmax, G3B, .*fractal\) or a run"):
        chosen(plan(), ["G5B", "G9B"])
    with pytest.raises(SystemExit), redirect_stderr(io.StringIO()) as said:
        main(["all", "--data", "x", "--only", "G9B"])
    assert "No run is called G9B." in said.getvalue()


def test_the_shipped_record_names_what_is_open():
    recorded = json.loads((DATA / "results" / "vision-fashion.json").read_text())
    assert {run.name for run in open_runs(plan(), recorded)} == set(recorded["not_made"])
    assert recorded["done"] + len(recorded["not_made"]) == recorded["planned"]


def test_a_sessions_runs_are_put_beside_those_of_the_record(record):
    made = [document(Run("tiny", "G3B-row", seed), 0.7) for seed in range(3)]
    made.append(document(Run("tiny", "G3B", 1), 0.9))
    for run in made:
        run |= {"environment": {"time": "after"}, "step": {"captured": True}}
    session = {"command": "python -m data.build.vision all --data /x/y --out /z", "seconds": 50.0, "rates": []}
    session |= {"cost": None, "check": {"captured": ["G3B-row"]}}
    both = merge(record, session, made, plan())
    assert [run["name"] for run in both["runs"]] == [
        "tiny-G3B-row-s0", "tiny-G3B-row-s1", "tiny-G3B-row-s2", "tiny-G3B-s0", "tiny-G3B-s1", "tiny-softmax-s0",
    ]  # fmt: skip
    table = {row["arm"]: row for row in both["summary"]}
    assert list(table) == ["softmax", "G3B", "G3B-row"]
    assert table["G3B"]["accuracy"] == pytest.approx((0.82 + 0.9) / 2), "made again, it replaces the one before"
    assert table["G3B-row"]["seeds"] == 3
    assert (both["done"], both["planned"], both["seconds"], both["cost"]) == (7, 56, 150.0, record["cost"])
    assert len(both["not_made"]) == 49
    first, second = both["parts"]
    assert first["runs"] == ["tiny-G3B-s0", "tiny-G3B-s1", "tiny-softmax-s0", "tiny-softmax-s0-lr0.004"]
    assert (second["check"], second["environment"]) == ({"captured": ["G3B-row"]}, {"time": "after"})
    assert "/x/y" not in second["command"]
    assert both["runs"][0]["step"] == {"captured": True}
    assert both["runs"][3]["step"]["captured"] is False
    assert "environment" not in both["runs"][0]
    cost = {"steps": [{"size": "tiny", "arm": "G3B", "graph_step_ms": 5}]}
    third = merge(json.loads(json.dumps(both)), session | {"cost": cost}, [], plan())
    assert third["runs"] == both["runs"]
    assert (len(third["parts"]), third["cost"], third["environment"]) == (
        3,
        {"steps": [{"size": "tiny", "arm": "G3B", "step_ms": 9, "graph_step_ms": 5}], "memory_by_rank": []},
        {"time": "after"},
    )
    alone = merge(None, session, made, plan())
    assert (alone["done"], len(alone["parts"])) == (4, 1)


def test_a_captured_step_passes_only_as_near_as_uncaptured_ones_are(images):  # noqa: F811 - the fixture
    still = dict.fromkeys(FLOORS, 0.0)
    assert passes(still, still)
    assert passes({"loss": 0.01, "update": 0.05}, {"loss": 0.03, "update": 0.1})
    assert not passes(still, still | {"update": 0.5})
    assert not passes({"loss": 0.001, "update": 0.1}, {"loss": 0.01, "update": 0.1})
    assert not passes(still, still | {"loss": float("nan")})
    config = ViTConfig(8, patch=2, width=12, depth=1, heads=3).with_attention(kind="karat", grid=1, rank=2)
    found = compare(config, images, Recipe(epochs=2, batch=10, validation=20, warmup=1), "cpu")
    assert (found["steps"], found["passed"], found["why_not"]) == (8, False, "CUDA graphs need a GPU.")
    assert found["graph"]["loss"] < 1e-4
    assert found["graph"]["update"] < 1e-2
