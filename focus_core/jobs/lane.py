"""One device's queue: jobs in order, one at a time, on one worker that is started when it is needed."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from focus_core.jobs.job import CANCELLED, DONE, FAILED, RUNNING, Job, Problem
from focus_core.jobs.process import WorkerProcess
from focus_core.jobs.store import Store

CANCEL_GRACE = 1.2
START_PATIENCE = 60.0


class Lane:
    """The queue of one device.

    Args:
        start: makes a worker process.
        store: where finished runs go.
        lock: the engine's lock; guards the queue and every change of a job.
        on_done: called with a job that the worker finished and the seconds it took without loading a model.
    """

    def __init__(
        self,
        start: Callable[[], WorkerProcess],
        store: Store,
        lock: threading.RLock,
        on_done: Callable[[Job, float], None],
        stored: Callable[[str], bool],
    ) -> None:
        self.worker: WorkerProcess | None = None
        self.running: Job | None = None
        self.machine: dict[str, Any] = {}
        self.started_workers = 0
        self._start, self._store, self._on_done, self._stored = start, store, on_done, stored
        self._queue: list[Job] = []
        self._changed = threading.Condition(lock)
        self._closed = False
        # The kernel ends the worker with the thread that started it, so this thread starts them all and outlives them.
        self._thread = threading.Thread(target=self._loop, daemon=True, name="focus-lane")
        self._thread.start()

    @property
    def queued(self) -> list[Job]:
        """Jobs that wait, first one first."""
        with self._changed:
            return list(self._queue)

    def add(self, job: Job) -> None:
        """Put a job at the end of the queue."""
        with self._changed:
            self._store.pinned.add(job.key)
            self._queue.append(job)
            self._number()
            self._changed.notify_all()

    def cancel(self, job: Job) -> None:
        """Stop a job: at once for people; its worker is asked to stop, then killed."""
        with self._changed:
            if job.finished:
                return
            job.end(CANCELLED)
            if job in self._queue:
                self._queue.remove(job)
                self._store.pinned.discard(job.key)
                self._number()
            elif job is self.running and self.worker is not None:
                self.worker.send({"op": "cancel", "id": job.id})
                self.worker.wake()

    def close(self) -> None:
        """Cancel all jobs and end the worker."""
        with self._changed:
            self._closed = True
            worker = self.worker
            for job in [*self._queue, *([self.running] if self.running else [])]:
                job.end(CANCELLED)
            self._queue.clear()
            self._changed.notify_all()
        if worker is not None:
            worker.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(5)

    def _number(self) -> None:
        for ahead, job in enumerate(self._queue, start=self.running is not None):
            job.position = ahead
            job.message = f"Waiting: {ahead} {'run' if ahead == 1 else 'runs'} ahead." if ahead else "Starting."

    def _loop(self) -> None:
        while job := self._next():
            try:
                self._run(job)
            except Exception as error:
                job.end(FAILED, error=Problem(f"The engine failed to run this: {error}", "Run it again."))
                if self.worker is not None:
                    self.worker.kill()
            finally:
                with self._changed:
                    self.running = None
                    self._store.pinned.discard(job.key)
                    self._number()

    def _next(self) -> Job | None:
        with self._changed:
            while not self._closed and not self._queue:
                self._changed.wait()
            if self._closed:
                return None
            job = self._queue.pop(0)
            job.state, job.position, job.started, job.message = RUNNING, 0, time.time(), "Starting."
            self.running = job
            self._number()
            return job

    def _ready_worker(self, job: Job) -> WorkerProcess | None:
        """A worker that has said it is ready; None (and the job failed) when none can be had."""
        if self.worker is not None and self.worker.alive:
            return self.worker
        worker = self._start()
        with self._changed:
            self.worker, self.machine = worker, {}
            self.started_workers += 1
            if self._closed:
                worker.kill()
                return None
        deadline = time.monotonic() + START_PATIENCE
        while True:
            try:
                event = worker.events.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                worker.kill()
                job.end(FAILED, error=Problem("The engine's process did not start within a minute.", "Run it again."))
                return None
            if event is None:
                job.end(FAILED, error=Problem(*worker.epitaph()))
                return None
            if event["event"] == "ready":
                return worker

    def _run(self, job: Job) -> None:
        worker = self._ready_worker(job)
        if worker is None or job.finished:
            return
        message = {"op": "run", "id": job.id, "kind": job.kind, "request": job.request, "key": job.key}
        worker.send(message)
        deadline: float | None = None
        while True:
            with self._changed:
                if job.finished and deadline is None:
                    worker.send({"op": "cancel", "id": job.id})
                    deadline = time.monotonic() + CANCEL_GRACE
            try:
                timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
                event = worker.events.get(timeout=timeout)
            except queue.Empty:
                worker.kill()
                return
            if event is None:
                job.end(FAILED, error=Problem(*worker.epitaph()))
                return
            if event.get("event") == "model":
                self.machine = {k: v for k, v in event.items() if k != "event"}
            elif event.get("id") == job.id and self._take(job, event):
                return

    def _take(self, job: Job, event: dict[str, Any]) -> bool:
        """Move the job on by one event; True when the worker has ended it."""
        name = event["event"]
        with self._changed:
            if name == "progress" and not job.finished:
                with contextlib.suppress(TypeError, ValueError, KeyError):
                    job.fraction = max(job.fraction, min(1.0, float(event["fraction"])))
                    job.message = str(event["message"])
            elif name == "partial" and isinstance(event.get("data"), dict):
                job.keep_partial(event["data"])
            elif name == "failed":
                job.end(FAILED, error=Problem(str(event.get("message")), str(event.get("hint", ""))))
            elif name == "cancelled":
                job.end(CANCELLED)
        if name == "done":
            result, seconds = event["result"], float(event.get("seconds", 0.0))
            if self._stored(job.kind):
                with contextlib.suppress(OSError):  # on a full disk the result is not kept, and still given
                    self._store.save(job.key, job.kind, job.request, result, seconds)
            self._on_done(job, seconds)
            with self._changed:
                job.end(DONE, result=self._store.absolute(job.key, result))
        return name in ("done", "failed", "cancelled")
