"""Retrofitted models under EleutherAI's lm-evaluation-harness, which brings its own tasks and ways of scoring."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from focus_core.errors import InvalidInput, NotAvailable
from focus_core.evaluation.environment import environment

INSTALL = "Install it: .venv/bin/python -m pip install -r requirements-eval.txt"
_SEED = 1234
"""The harness's own, of the examples that are shown before a question."""
_BOOTSTRAPS = 1000
"""Draws for the standard errors of metrics that have no formula for theirs."""


def harness_model(loaded: Any, *, batch: int = 1, context: int | None = None) -> Any:
    """A loaded model as the harness's own ``HFLM``, with its tokenizer.

    What is run is the model as it is at the time: inside ``with retrofit(...)`` the variant. The harness pads a batch
    on the right, where causal attention never looks.

    Args:
        loaded: what ``load_model`` returned.
        batch: requests that run together.
        context: tokens that are read at most; the model's own limit by default.

    Raises:
        NotAvailable: the harness is not installed.
    """
    return _harness().HFLM(
        pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=batch, max_length=context, backend="causal"
    )


def run_harness(
    loaded: Any,
    variant: Any,
    adapter: Any,
    tasks: Sequence[str],
    *,
    limit: int | None = None,
    shots: int | None = None,
    batch: int = 1,
    context: int | None = None,
    beside_dense: bool = False,
) -> dict[str, Any]:
    """Measure a model with a variant on tasks of the harness.

    Args:
        loaded: what ``load_model`` returned.
        variant: the attention.
        adapter: what it reads; None where it needs none.
        tasks: names that the harness knows, or YAML files of tasks; paths in a file are seen from its folder.
        limit: the first questions of each task; all by default.
        shots: examples shown before each question; the task's own number by default.
        batch: requests that run together.
        context: tokens that are read at most.
        beside_dense: measure the model as it was on the same questions too.

    Returns:
        ``tasks``: by name ``metrics`` (and with them the standard errors), ``dense`` (the same, or None),
        ``questions``, ``shots`` and ``version``; and the model, the variant, the harness's version, the seconds and
        the environment.

    Raises:
        NotAvailable: the harness, or the data of a task, is not here.
        InvalidInput: there is no such task.
        Unsupported: the variant cannot serve the model.
    """
    from focus_core.retrofit import retrofit
    from focus_core.variants import make

    api, began = _harness(), time.monotonic()
    found = _load(api, tasks)
    for task in found["tasks"].values():
        own = task.get_config("num_fewshot")
        # A task that says 0 shows none whatever is asked for, as the harness has it.
        if own is None or (shots is not None and own != 0):
            task.set_config(key="num_fewshot", value=shots or 0)
        task.set_fewshot_seed(seed=_SEED)
    model = harness_model(loaded, batch=batch, context=context)

    def measure(kind: Any, reads: Any) -> Any:
        with retrofit(loaded.model, kind, adapter=reads):
            return api.evaluate(lm=model, task_dict=found, limit=limit, log_samples=False, bootstrap_iters=_BOOTSTRAPS)

    served = measure(variant, adapter)
    dense = measure(make("dense"), None) if beside_dense and variant.name != "dense" else None
    named = {
        name: {
            "metrics": _numbers(served["results"][name]),
            "dense": None if dense is None else _numbers(dense["results"][name]),
            "questions": served["n-samples"][name]["effective"] if name in served["n-samples"] else None,
            "shots": served["n-shot"].get(name),
            "version": served["versions"].get(name),
        }
        for name in served["results"]
    }
    return {
        "tasks": named,
        "model": loaded.name,
        "revision": loaded.facts.revision,
        "variant": variant.name,
        "config": variant.to_dict(),
        "limit": limit,
        "batch": batch,
        "context": model.max_length,
        "harness": api.version,
        "seconds": round(time.monotonic() - began, 1),
        "environment": environment(loaded.model.device),
    }


class _Api:
    """The parts of the harness that are used."""

    def __init__(self) -> None:
        import importlib.metadata

        # It tells of every default on stderr.
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        from lm_eval.evaluator import evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager

        self.evaluate, self.HFLM, self.TaskManager = evaluate, HFLM, TaskManager
        self.version = importlib.metadata.version("lm_eval")


def check_installed() -> None:
    """Refuse before a model is loaded for nothing.

    Raises:
        NotAvailable: the harness is not installed.
    """
    _harness()


def _harness() -> _Api:
    try:
        return _Api()
    except ImportError as error:
        raise NotAvailable(f"lm-evaluation-harness is not installed ({error}).", INSTALL) from None


def _load(api: _Api, tasks: Sequence[str]) -> dict[str, Any]:
    files = [task for task in tasks if task.endswith((".yaml", ".yml"))]
    # Its own thousands of task files are read only where one of them is asked for.
    manager = api.TaskManager(include_defaults=len(files) < len(tasks))
    found: dict[str, Any] = {"tasks": {}, "groups": {}, "group_map": {}}
    for task in tasks:
        path = Path(task).absolute()
        if task in files and not path.is_file():
            raise InvalidInput(f"There is no file {task}.", "Name a task's YAML file, or a task of the harness.")
        place = contextlib.chdir(path.parent) if task in files else contextlib.nullcontext()
        try:
            with place:
                loaded = manager.load([str(path) if task in files else task])
        except KeyError:
            raise InvalidInput(
                f"lm-evaluation-harness {api.version} has no task {task!r}.", "`lm_eval ls tasks` lists them."
            ) from None
        except Exception as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise NotAvailable(
                f"The task {task} cannot be loaded ({reason}).",
                "Its data comes over the network, unless its YAML names files that are here.",
            ) from None
        for part, items in found.items():
            items.update(loaded[part])
    return found


def _numbers(measured: dict[str, Any]) -> dict[str, float]:
    """The metrics of a task by name; ``_stderr`` marks their standard errors."""
    return {
        key.replace(",none", ""): value
        for key, value in measured.items()
        if isinstance(value, (int, float)) and "," in key
    }
