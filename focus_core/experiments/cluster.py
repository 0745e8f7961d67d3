"""Runs a plan on a Ray cluster: Ray places the tasks, and starts anew those whose worker or machine is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from focus_core.errors import InvalidInput, NotAvailable
from focus_core.experiments.plan import Task
from focus_core.experiments.runner import LOOK_AGAIN, THREADS, Job, Tally, job_of, order, perform_task, prepare
from focus_core.experiments.worker import STOPPED, start

INSTALL = "Install it: .venv/bin/python -m pip install -r requirements-ray.txt"
_TRIES = 5
"""How often Ray starts a task again whose worker died."""
_ANSWER = 10.0
"""Seconds in which a cluster's head takes a connection."""
_GRACE = 60.0
"""Seconds for what runs to leave a checkpoint when a person stops the run."""


def run_on_ray(
    tasks: Sequence[Task],
    work: Path,
    address: str,
    *,
    workers: int = 1,
    seconds: float | None = None,
    told: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Do what is missing of a plan on a cluster; ``run_plan`` otherwise.

    All machines must see this folder, the work and the results under the same paths (a shared file system): what is
    done, what is locked and where a training run was is told there, so that a task that is started again goes on.

    Args:
        tasks: of ``read_plan``.
        work: folder of logs and locks.
        address: of the cluster's head (``host:6379``, ``ray://host:10001``), ``auto``, or ``local`` for one that is
            started here and ends with the run.
        workers: processes a GPU, where the cluster has GPUs.
        seconds: after so many, nothing starts and what runs is interrupted.
        told: called with one line for every task that ended.

    Raises:
        NotAvailable: Ray is not installed, or no cluster answers.
        OSError: a folder of results or of the work cannot be written.
    """
    ray = _ray()
    prepare(tasks, work)
    tally = Tally(tasks, told)
    deadline = None if seconds is None else time.time() + seconds
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise NotAvailable(
            f"No Ray cluster answers at {address} ({reason}).", "Start one with `ray start --head`, or say --ray local."
        ) from None
    mark = work.absolute() / f".seen-{uuid.uuid4().hex}"
    mark.touch()
    try:
        _Run(ray, tally, work, mark, deadline, workers).go()
    finally:
        mark.unlink(missing_ok=True)
        ray.shutdown()
    return tally.summary()


def _knock(address: str) -> None:
    """Fail at once where nobody listens: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise NotAvailable(f"Ray is not installed ({error}).", INSTALL) from None
    return ray


class _Run:
    def __init__(self, ray: Any, tally: Tally, work: Path, mark: Path, deadline: float | None, workers: int) -> None:
        self.ray, self.tally, self.work, self.mark, self.deadline = ray, tally, work, mark, deadline
        self.running: dict[Any, Task] = {}
        self.perform = ray.remote(perform_there).options(max_retries=_TRIES, **self._share(workers))

    def _share(self, workers: int) -> dict[str, float]:
        """What one task takes of a machine: a GPU's share, or the cores of one process."""
        machines = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if any(machine.get("GPU") for machine in machines):
            return {"num_gpus": 1 / workers, "num_cpus": 0}
        if workers > 1:
            raise InvalidInput(f"--workers {workers} is for GPUs, and the cluster has none.", "Ray counts its cores.")
        most = max(machine.get("CPU", 0) for machine in machines)
        return {"num_cpus": min(THREADS, int(most))}

    def go(self) -> None:
        """Hand over what can be done; what needs an adapter follows when it is there."""
        try:
            while True:
                ready = [task for task in self.tally.waiting if task.needs is None or task.needs.done()]
                for task in sorted(ready, key=order):
                    self.tally.waiting.remove(task)
                    job = job_of(task, self.work)
                    self.running[self.perform.remote(os.getcwd(), str(self.mark), job, self.deadline)] = task
                if not self.running:
                    return
                ended, _ = self.ray.wait(list(self.running), num_returns=1)
                if self._end(ended[0]):
                    time.sleep(LOOK_AGAIN)
        except KeyboardInterrupt:
            for reference in self.running:
                self.ray.cancel(reference)
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=_GRACE)
            raise

    def _end(self, reference: Any) -> bool:
        task = self.running.pop(reference)
        try:
            found = self.ray.get(reference)
        except Exception as error:
            found = getattr(error, "cause", None) or error
        return self.tally.ended(task, found)


def perform_there(folder: str, mark: str, job: Job, deadline: float | None) -> float | str:
    """One task in a worker of the cluster.

    Raises:
        OSError: the machine does not see the folder of the run.
        RuntimeError: the task failed.
    """
    if deadline is not None and time.time() >= deadline:
        return STOPPED
    with contextlib.suppress(OSError):
        os.chdir(folder)
    if not Path(mark).exists():
        raise OSError(f"{os.uname().nodename} does not see {Path(mark).parent}: the cluster's machines must share it")
    start("", THREADS)
    # Ray's workers take no SIGINT, by which a deadline asks a command to end well.
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        return perform_task(*job, deadline)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
