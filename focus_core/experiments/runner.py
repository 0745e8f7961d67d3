"""Runs a plan on a pool of processes a device; what is done is skipped, and what was stopped goes on."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from focus_core.experiments.plan import Task, missing
from focus_core.experiments.worker import ELSEWHERE, STOPPED, perform_once, start

THREADS = 2
"""Of one process."""
LOOK_AGAIN = 1.0
"""Seconds between looks at what another process is at."""
Job = tuple[Task, list[str], str, str, str]
"""A task, its command line, and the files of its log, its lock and its whole result."""


def run_plan(
    tasks: Sequence[Task],
    work: Path,
    *,
    gpus: Sequence[str] = ("",),
    workers: int = 1,
    seconds: float | None = None,
    told: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Do what is missing of a plan.

    Args:
        tasks: of ``read_plan``.
        work: folder of logs and locks.
        gpus: numbers of devices, each with its own processes; '' stands for what torch finds.
        workers: processes a device.
        seconds: after so many, nothing starts and what runs is interrupted: a training run leaves a checkpoint and a
            measurement its windows.
        told: called with one line for every task that ended.

    Returns:
        Names: ``made``, ``failed`` (with the reason), ``left``; and the ``seconds`` it took.

    Raises:
        OSError: a folder of results or of the work cannot be written.
    """
    prepare(tasks, work)
    tally = Tally(tasks, told)
    deadline = None if seconds is None else time.time() + seconds
    with contextlib.ExitStack() as stack:
        pools = [
            stack.enter_context(
                ProcessPoolExecutor(workers, get_context("spawn"), initializer=start, initargs=(gpu, THREADS))
            )
            for gpu in gpus
        ]
        _Run(tally, work, [pool for _ in range(workers) for pool in pools], deadline).go()
    return tally.summary()


def prepare(tasks: Sequence[Task], work: Path) -> None:
    """Make the folders, and fail before anything was computed for nothing."""
    for folder in {task.place.parent for task in tasks if task.asked is None}:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    for name in ("logs", "locks", "raw"):
        (work / name).mkdir(parents=True, exist_ok=True)


def order(task: Task) -> tuple[bool, int]:
    """What goes first of what can be done: measuring what was trained, and then the lines as they stand.

    A model that nobody measured is of no use where the work ends or the machine goes.
    """
    return task.needs is None, task.rank


def job_of(task: Task, work: Path) -> Job:
    """What a process needs to know of a task."""
    raw = str(work / "raw" / f"{task.name}.json")
    arguments = [*task.arguments, *(["--json", raw] if task.asked is None else [])]
    return task, arguments, str(work / "logs" / f"{task.name}.log"), str(work / "locks" / f"{task.name}.lock"), raw


class Tally:
    """What a run of a plan has to do, made and failed at.

    Attributes:
        waiting: tasks that are neither done nor begun.
        made: names of those done here.
        failed: reasons by name.
        told: called with one line for every task that ended.
    """

    def __init__(self, tasks: Sequence[Task], told: Callable[[str], None]) -> None:
        self.tasks, self.told = tasks, told
        self.began = time.monotonic()
        self.waiting = missing(tasks)
        self.made: list[str] = []
        self.failed: dict[str, str] = {}

    def ended(self, task: Task, found: float | str | BaseException) -> bool:
        """Take note of a task's seconds, its mark or its error; whether another process is at it."""
        if isinstance(found, BaseException):
            self.failed[task.name] = f"{type(found).__name__}: {' '.join(str(found).split())[:300]}"
            self.told(f"FAILED {task.name}: {self.failed[task.name]}")
        elif found == ELSEWHERE:
            self.waiting.append(task)
        elif found == STOPPED:
            self.told(f"stopped {task.name}")
        else:
            self.made.append(task.name)
            self.told(f"{task.name}: {found} s")
        return found == ELSEWHERE

    def summary(self) -> dict[str, Any]:
        """What a run gives back."""
        left = [task.name for task in missing(self.tasks) if task.name not in self.failed]
        seconds = round(time.monotonic() - self.began, 1)
        return {"made": self.made, "failed": self.failed, "left": left, "seconds": seconds}


class _Run:
    def __init__(self, tally: Tally, work: Path, free: list[ProcessPoolExecutor], deadline: float | None) -> None:
        self.tally, self.work, self.free, self.deadline = tally, work, free, deadline
        self.running: dict[Future, tuple[Task, ProcessPoolExecutor]] = {}

    def go(self) -> None:
        while (self.tally.waiting and not self._late()) or self.running:
            ready = [] if self._late() else sorted(filter(self._ready, self.tally.waiting), key=order)
            for task in ready[: len(self.free)]:
                self._begin(task)
            if not self.running:
                if not any(self._ready(task) for task in self.tally.waiting):
                    return
                continue
            elsewhere = [self._end(f) for f in wait(self.running, return_when=FIRST_COMPLETED).done]
            if any(elsewhere):
                time.sleep(LOOK_AGAIN)

    def _late(self) -> bool:
        return self.deadline is not None and time.time() >= self.deadline

    def _ready(self, task: Task) -> bool:
        return task.needs is None or task.needs.done()

    def _begin(self, task: Task) -> None:
        self.tally.waiting.remove(task)
        pool = self.free.pop(0)
        self.running[pool.submit(perform_task, *job_of(task, self.work), self.deadline)] = (task, pool)

    def _end(self, future: Future) -> bool:
        task, pool = self.running.pop(future)
        self.free.append(pool)
        return self.tally.ended(task, future.exception() or future.result())


def perform_task(
    task: Task, arguments: list[str], log: str, lock: str, raw: str, deadline: float | None
) -> float | str:
    """One task in a worker's process; a result is written under the same lock."""
    finish = None if task.asked is not None else lambda: task.finish(Path(raw))
    return perform_once(arguments, log, lock, task.done, deadline, finish)
