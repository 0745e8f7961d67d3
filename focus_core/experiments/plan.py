"""What an experiment file asks for: the commands that train and measure, where each one's work lies, and what is left.

A file is TOML::

    about = "one sentence"
    model = "smollm2"
    prefix = "frontier"                 # results are PREFIX-LINE[-sSEED][-SET]-TEXT-CONTEXT.json
    train = {steps = 300}               # options of `train` that every trained line starts from
    measure = {texts = ["persuasion"], contexts = [4096], windows = 8, dtype = "bfloat16"}

    pretrain = {steps = 600}            # options of `pretrain` that every model from nothing starts from

    [[line]]
    name = "directed-k16"
    variant = "focus"
    train = {groups = 16}               # left out: nothing is trained
    adapter = "smollm2-directed-k16"    # or an adapter that is there
    pretrain = {set = {groups = 16}}    # or a whole model from nothing, through the variant with these settings
    seeds = [0, 1]                      # of training
    sets = {q2 = {query_topk = 2}}      # settings of the variant, each measured under its name
    measure = {contexts = [8192]}       # what differs from the file's; recall = 64 asks what is found again, 64 times
    seconds = {train = 70, eval = 4}    # expected, for --list
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focus_core.errors import InvalidInput
from focus_core.jobs.files import read_json, write_json
from focus_core.training.scratch_settings import adapter_kind
from focus_core.variants import make

RECORD, CONFIG = "training_record.json", "focus_config.json"
PRETRAIN, RECALL = "pretrain", "recall"
_FILE = {"about": str, "model": str, "prefix": str, "train": dict, "pretrain": dict, "measure": dict, "line": list}
_LINE = {
    **{"name": str, "variant": str, "train": dict, "pretrain": dict, "adapter": str},
    **{"seeds": list, "sets": dict, "measure": dict, "seconds": dict},
}
_MEASURE = {
    **{"texts": list, "contexts": list, "windows": int, "batch": int, "dtype": str, "probes": bool},
    **{"recall": int},
}
_SECONDS = {"train": (int, float), "eval": (int, float)}
_KINDS = {dict: "a table", list: "a list", str: "text", int: "a whole number", bool: "true or false"}
_KEPT = (
    "model revision variant config adapter adapter_parameters served ppl ppl_se nll nll_diff nll_se dense_ppl tokens "
    "kept_pairs leak flips context windows window_tokens text text_hash dtype dense_by_definition seconds environment"
)
"""Fields of an evaluation that a result keeps: windows, layers and buckets would make a grid large."""
_TOLD = (
    "step tokens seconds served_validation_ppl dense_validation_ppl trained_parameters parameters adapter_parameters "
    "precision"
)
_CURVES = "log losses"
"""Fields of a training's record that its results keep."""


@dataclass(frozen=True)
class Task:
    """One command.

    Attributes:
        name: unique in a plan; a result's file stem, or ``train-`` and the adapter's.
        arguments: of ``python -m focus_core``.
        place: the file or the adapter's folder that it makes.
        rank: the number of its line: what goes first, but for the measuring of what is trained.
        seconds: expected; None where nobody said.
        needs: the training task whose adapter or model it reads.
        asked: the settings that the record of a training must show; None for an evaluation.
    """

    name: str
    arguments: tuple[str, ...]
    place: Path
    rank: int
    seconds: float | None = None
    needs: Task | None = None
    asked: dict[str, Any] | None = None

    @property
    def command(self) -> str:
        """The command as a person types it."""
        return shlex.join(["python", "-m", "focus_core", *self.arguments])

    def done(self) -> bool:
        """Whether its work is there, whole.

        Raises:
            InvalidInput: what is there was made by another command.
        """
        if self.asked is None:
            found = read_json(self.place)
            if found is not None and (not isinstance(found, dict) or found.get("command") != self.command):
                raise InvalidInput(f"{self.place} holds another measurement.", "Rename the line, or move the file.")
            return found is not None
        config, record = read_json(self.place / CONFIG), read_json(self.place / RECORD) or {}
        if self.whole:
            config = {"record": record} if record else None
        if config is None:
            return False
        settings = config["record"].get("settings")
        if settings is None:
            return True
        changed = [name for name, value in self.asked.items() if name in settings and settings[name] != value]
        if changed:
            raise InvalidInput(
                f"{self.place} holds {'a model' if self.whole else 'an adapter'} with other settings "
                f"({', '.join(changed)}).",
                "Rename the line, or delete the folder.",
            )
        return bool(record.get("step") == settings["steps"])

    @property
    def whole(self) -> bool:
        """Whether a whole model is trained, and not an adapter."""
        return self.arguments[0] == PRETRAIN

    def finish(self, raw: Path) -> None:
        """Write the result from the evaluation's whole document, small."""
        document = read_json(raw)
        recalled, whole = self.arguments[0] == RECALL, self.arguments[0] != "eval"
        kept = {name: document[name] for name in (document if whole else _KEPT.split())}
        kept["command"] = self.command
        if self.needs is not None:
            place, names = self.needs.place, _TOLD.split()
            record = read_json(place / RECORD) if self.needs.whole else read_json(place / CONFIG)["record"]
            # The curves are as long as the rest, and stand in one result of a model.
            names += _CURVES.split() if recalled else []
            told = {n: record[n] for n in names if n in record}
            kept["training"] = {"command": self.needs.command} | (kept.get("training") or {}) | told
        write_json(self.place, kept, indent=None if whole else 1)
        raw.unlink()


def read_plan(files: Sequence[str | Path], work: Path, results: Path) -> list[Task]:
    """Every task of these files, in the order in which they should be done.

    Args:
        files: experiment files.
        work: folder of the adapters that are trained.
        results: folder of the results.

    Raises:
        InvalidInput: a file that cannot be read, an unknown field, or two tasks of one name.
    """
    tasks: list[Task] = []
    for file in files:
        tasks += _tasks(Path(file), work, results, len(tasks))
    names = [task.name for task in tasks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInput(f"{twice[0]} is asked for twice.", "Give every line, set and text a name of its own.")
    return tasks


def _tasks(file: Path, work: Path, results: Path, rank: int) -> list[Task]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{file} cannot be read as TOML: {error}.") from None
    _known(document, _FILE, str(file), ("model", "prefix", "line"))
    _named(document["prefix"], str(file))
    found: list[Task] = []
    for at, line in enumerate(document["line"], 1):
        where = f"{file}, line {line.get('name', at) if isinstance(line, dict) else at!r}"
        _known(line, _LINE, where, ("name", "variant"))
        _known(line.get("seconds", {}), _SECONDS, where)
        for name in (line["name"], *line.get("sets", {})):
            _named(name, where)
        makes = [kind for kind in ("train", PRETRAIN, "adapter") if kind in line]
        if len(makes) > 1:
            raise InvalidInput(
                f"{where} has an adapter and trains one, or trains two things ({', '.join(makes)}).",
                "Leave out all but one.",
            )
        kind = makes[0] if makes and makes[0] != "adapter" else None
        if "seeds" in line and kind is None:
            raise InvalidInput(f"{where} has seeds of a training that it does not ask for.", "train = {} asks for it.")
        if kind and "seed" in {**document.get(kind, {}), **line[kind]}:
            raise InvalidInput(f"{where} has a seed among the options of {kind}.", "A line has seeds = [0, 1].")
        if kind == PRETRAIN:
            _each([one.get("set", {}) for one in (document.get(kind, {}), line[kind])], dict, f"{where}: set")
        _each(line.get("seeds", []), int, f"{where}: seeds")
        _each(line.get("sets", {}).values(), dict, f"{where}: sets")
        measure = {**document.get("measure", {}), **line.get("measure", {})}
        _known(measure, _MEASURE, where)
        _each(measure.get("contexts", []), int, f"{where}: contexts")
        _each(measure.get("texts", []), str, f"{where}: texts")
        rank += 1
        for seed in line.get("seeds", [0]) if kind else [None]:
            name = line["name"] + (f"-s{seed}" if seed else "")
            trained = None
            if kind is not None:
                options = {**document.get(kind, {}), **line[kind], "seed": seed}
                task_of = _pretrain if kind == PRETRAIN else _train
                trained = task_of(document, line, name, options, work, rank)
                found.append(trained)
            found += _evals(document, line, name, measure, trained, results, rank)
    return found


def _train(document: dict, line: dict, name: str, options: dict, work: Path, rank: int) -> Task:
    place = work / f"{Path(document['model']).name}-{name}"
    arguments = ("train", "--model", document["model"], *_flags(options), "--out", str(place))
    asked = {key.replace("-", "_"): value for key, value in options.items() if key != "kind"}
    return Task(f"train-{name}", arguments, place, rank, line.get("seconds", {}).get("train"), asked=asked)


def _pretrain(document: dict, line: dict, name: str, options: dict, work: Path, rank: int) -> Task:
    place = work / f"{document['prefix']}-{name}"
    own = _own(document, line)
    options = {key.replace("-", "_"): value for key, value in options.items() if key != "set"}
    arguments = (PRETRAIN, "--model", document["model"], "--variant", line["variant"], *_sets(own), *_flags(options))
    asked = {key: value for key, value in options.items() if key != "text"}
    asked |= {"variant": line["variant"], "config": make(line["variant"], own).to_dict()}
    seconds = line.get("seconds", {}).get("train")
    return Task(f"{PRETRAIN}-{name}", (*arguments, "--out", str(place)), place, rank, seconds, asked=asked)


def _own(document: dict, line: dict) -> dict[str, Any]:
    """Settings of the variant that a model from nothing is trained through."""
    return {**document.get(PRETRAIN, {}).get("set", {}), **line[PRETRAIN].get("set", {})}


def _flags(options: dict) -> list[str]:
    given: list[str] = []
    for key, value in options.items():
        flag = key.replace("_", "-")
        given += (
            ([f"--{flag}"] if value else [f"--no-{flag}"]) if isinstance(value, bool) else [f"--{flag}", f"{value}"]
        )
    return given


def _sets(settings: dict) -> list[str]:
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def _evals(
    document: dict, line: dict, name: str, measure: dict, trained: Task | None, results: Path, rank: int
) -> list[Task]:
    found = []
    adapter = str(trained.place) if trained else line.get("adapter")
    model, own = document["model"], {}
    if trained and trained.whole:
        own = _own(document, line)
        model = str(trained.place)
        adapter = str(trained.place / "adapter") if adapter_kind(make(line["variant"], own)) else None
    seconds, texts = line.get("seconds", {}).get("eval"), measure.get("texts", ["persuasion"])
    for label, settings in line.get("sets", {"": {}}).items():
        given = ["--model", model, "--variant", line["variant"], *_sets({**own, **settings})]
        given += ["--adapter", adapter] if adapter else []
        for context in measure.get("contexts", [1024]):
            for text in texts:
                stem = _stem(document["prefix"], name, label, Path(text).stem, context)
                arguments = ["eval", *given, "--text", text, "--context", str(context)]
                for option in ("windows", "batch", "dtype"):
                    arguments += [f"--{option}", str(measure[option])] if option in measure else []
                arguments += [] if measure.get("probes") else ["--no-probes"]
                found.append(Task(stem, tuple(arguments), results / f"{stem}.json", rank, seconds, trained))
            if RECALL in measure:
                stem = _stem(document["prefix"], name, label, RECALL, context)
                arguments = [RECALL, *given, "--text", texts[0], "--context", str(context)]
                arguments += ["--count", str(measure[RECALL])]
                for option in ("batch", "dtype"):
                    arguments += [f"--{option}", str(measure[option])] if option in measure else []
                found.append(Task(stem, tuple(arguments), results / f"{stem}.json", rank, seconds, trained))
    return found


def _stem(*parts: Any) -> str:
    return "-".join(str(part).replace(" ", "-") for part in parts if part)


def _known(given: Any, kinds: dict[str, Any], where: str, needed: Sequence[str] = ()) -> None:
    """Refuse what is no table of these fields, a value of another kind, and a needed field that is not there."""
    _each([given], dict, where)
    if wrong := sorted(set(given) - set(kinds)):
        raise InvalidInput(f"{where} has no field {wrong[0]!r}.", f"There are {', '.join(sorted(kinds))}.")
    if missing := [name for name in needed if name not in given]:
        raise InvalidInput(f"{where} does not say {missing[0]!r}.", f"It needs {', '.join(needed)}.")
    for name, value in given.items():
        _each([value], kinds[name], f"{where}: {name}")


def _each(values: Iterable[Any], kind: Any, where: str) -> None:
    for value in values:
        # True is a whole number to Python.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InvalidInput(f"{where} is {value!r:.60}, not {_KINDS.get(kind, 'a number')}.")


def _named(name: str, where: str) -> None:
    if not re.fullmatch(r"[\w.+-]*\w[\w.+-]*", name):
        raise InvalidInput(f"{where} has the name {name!r:.60}.", "Files are called so: letters, digits and . + - _.")


def missing(tasks: Sequence[Task]) -> list[Task]:
    """What is not done, without the trainings that nobody needs any more: all that reads them is measured."""
    waiting = [task for task in tasks if not task.done()]
    measured = {task.needs.name for task in tasks if task.needs}
    needed = {task.needs.name for task in waiting if task.needs}
    return [task for task in waiting if task.name in needed or task.name not in measured]


def left(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """What ``--list`` shows: every task, whether it is done, and the seconds that a missing one is expected to take."""
    waiting, rows = {task.name for task in missing(tasks)}, []
    for task in tasks:
        done = task.name not in waiting
        rows.append({"task": task.name, "done": done, "seconds": 0 if done else task.seconds, "command": task.command})
    return rows
