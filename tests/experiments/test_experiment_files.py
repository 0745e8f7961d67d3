"""The shipped experiment files ask for what there is, and a plan says truly what is done."""

import json
from pathlib import Path

import pytest

from focus_core.assets import DATA, adapters, load_text
from focus_core.cli import parser
from focus_core.cli.options import settings
from focus_core.cli.train import _texts
from focus_core.errors import InvalidInput
from focus_core.experiments.plan import left, missing, read_plan
from focus_core.training.scratch_settings import ScratchSettings, schedule
from focus_core.training.settings import TrainSettings
from focus_core.variants import make

FILES = sorted((DATA.parent / "experiments").glob("*.toml"))
ONE = """
model = "tiny"
prefix = "t"
train = {groups = 4, query_topk = 2, window = 8}
measure = {texts = ["brown fiction"], contexts = [64, 128]}
[[line]]
name = "a"
variant = "focus"
train = {groups = 8, router_per_kv_head = false}
seeds = [0, 3]
sets = {q1 = {query_topk = 1}, q2 = {}}
seconds = {train = 7, eval = 1}
"""


def scratch_settings(args):
    return ScratchSettings(**{name: getattr(args, name) for name in ScratchSettings.__dataclass_fields__})


def plan(tmp_path, text=ONE):
    (tmp_path / "one.toml").write_text(text)
    return read_plan([tmp_path / "one.toml"], tmp_path / "work", tmp_path / "results")


def test_every_command_of_the_shipped_files_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(DATA.parent)
    known = parser()
    tasks = read_plan(FILES, tmp_path / "work", tmp_path / "results")
    assert len(tasks) > 100
    for task in tasks:
        args = known.parse_args(list(task.arguments))
        if args.command == "pretrain":
            schedule(make(args.variant, settings(args.set)), scratch_settings(args))
            assert len(_texts(args.text)[1]) > 100_000
        elif task.asked is None:
            assert load_text(args.text).text
            assert make(args.variant, settings(args.set)).name == args.variant
            whole = task.needs is not None and task.needs.whole
            read = args.model if whole else args.adapter
            assert (task.needs is not None) == (read == str(task.needs and task.needs.place))
            assert task.needs or args.adapter is None or args.adapter in adapters()
        else:
            # A router that another line makes is not there yet.
            made = Path(task.asked.get("start_from", "")).name in {other.place.name for other in tasks}
            left_out = {"text", "start_from"} if made else {"text"}
            TrainSettings(**({"kind": args.kind} | {k: v for k, v in task.asked.items() if k not in left_out}))
            assert len(_texts(args.text)[1]) > 100_000


def test_no_evaluation_text_is_trained_on(tmp_path, monkeypatch):
    monkeypatch.chdir(DATA.parent)
    tasks = read_plan(FILES, tmp_path, tmp_path)
    args = [parser().parse_args(list(task.arguments)) for task in tasks]
    measured = {a.text for a in args if a.command in ("eval", "recall")}
    for training in {a.text for a in args if a.command in ("train", "pretrain")}:
        assert not measured & {part.strip() for part in training.split("+")}


def test_a_line_becomes_its_commands(tmp_path):
    tasks = plan(tmp_path)
    assert [t.name for t in tasks[:3]] == ["train-a", "t-a-q1-brown-fiction-64", "t-a-q1-brown-fiction-128"]
    assert len(tasks) == 2 * (1 + 4)
    assert tasks[5].arguments[3:] == (
        *("--groups", "8", "--query-topk", "2", "--window", "8", "--no-router-per-kv-head", "--seed", "3"),
        *("--out", str(tmp_path / "work" / "tiny-a-s3")),
    )
    assert tasks[6].needs is tasks[5]
    assert [row["seconds"] for row in left(tasks)[:2]] == [7, 1]


def test_what_is_there_is_done_only_if_it_is_what_is_asked_for(tmp_path):
    train, measure, *_ = plan(tmp_path)
    assert not train.done()
    assert not measure.done()
    train.place.mkdir(parents=True)
    asked = {"groups": 8, "query_topk": 2, "window": 8, "router_per_kv_head": False, "seed": 0, "steps": 5}
    (train.place / "focus_config.json").write_text(json.dumps({"record": {"settings": asked}}))
    (train.place / "training_record.json").write_text(json.dumps({"step": 4}))
    assert not train.done()
    (train.place / "training_record.json").write_text(json.dumps({"step": 5}))
    assert train.done()
    (train.place / "focus_config.json").write_text(json.dumps({"record": {"settings": asked | {"groups": 4}}}))
    with pytest.raises(InvalidInput, match="groups"):
        train.done()
    measure.place.parent.mkdir()
    measure.place.write_text(json.dumps({"command": measure.command}))
    assert measure.done()
    measure.place.write_text(json.dumps({"command": "another"}))
    with pytest.raises(InvalidInput, match="another measurement"):
        measure.done()


def test_a_training_that_nothing_needs_any_more_is_not_made(tmp_path):
    """As in a fresh checkout, which has the results and not the adapters."""
    tasks = plan(tmp_path)
    (tmp_path / "results").mkdir()
    for task in tasks[1:5]:
        assert tasks[0] in missing(tasks)
        task.place.write_text(json.dumps({"command": task.command}))
    assert [task.name for task in missing(tasks)] == [task.name for task in tasks[5:]]
    assert [row["done"] for row in left(tasks)] == [True] * 5 + [False] * 5
    # Asked for alone, it is.
    assert missing(tasks[:1]) == tasks[:1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model = [", "TOML"),
        ("", "model"),
        (ONE + "colour = 1", "colour"),
        (ONE + ONE[ONE.index("[[") :], "twice"),
        (ONE.replace('prefix = "t"', ""), "prefix"),
        (ONE.replace('"a"', '"../a"'), "name '../a'"),
        (ONE.replace('"a"', "3"), "name is 3, not text"),
        (ONE.replace("[0, 3]", "3"), "seeds is 3, not a list"),
        (ONE.replace("[0, 3]", "[true]"), "seeds is True, not a whole number"),
        (ONE.replace("q2 = {}", "q2 = 2"), "sets is 2, not a table"),
        (ONE.replace('["brown fiction"]', '"brown fiction"'), "texts is 'brown fiction', not a list"),
        (ONE.replace("train = 7", "train = '7'"), "train is '7', not a number"),
        (ONE.replace("groups = 8", "seed = 8"), "a seed among"),
        (ONE + "adapter = 'x'", "an adapter and trains"),
        (ONE + "pretrain = {}", "trains two things"),
        (ONE.replace("train = {groups = 8, router_per_kv_head = false}", "pretrain = {set = 3}"), "set is 3"),
        (
            ONE.replace("train = {groups = 8, router_per_kv_head = false}", "pretrain = {seed = 3}"),
            "options of pretrain",
        ),
        (ONE.replace("train = {groups = 8, router_per_kv_head = false}", ""), "seeds of a training"),
        (ONE[: ONE.index("[[")] + "line = [1]", "line 1 is 1, not a table"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path, text, told):
    with pytest.raises(InvalidInput, match=told):
        plan(tmp_path, text)
