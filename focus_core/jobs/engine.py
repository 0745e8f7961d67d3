"""The engine: what pages and scripts ask for work. One for a server process."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from pathlib import Path
from typing import Any

from focus_core import handlers
from focus_core.errors import FocusError, InvalidInput
from focus_core.jobs.costs import Estimate, Host, Observed, load_average, slowdown, usable_cores
from focus_core.jobs.job import CANCELLED, DONE, FAILED, Job, Problem
from focus_core.jobs.lane import Lane
from focus_core.jobs.process import WorkerProcess
from focus_core.jobs.store import DEFAULT_BYTES, Store, default_root, key_of
from focus_core.models.memory import free_memory

_HISTORY = 100
_MAX_QUEUED = 50


class Engine:
    """One queue a device, each with one worker process that starts when there is work.

    Args:
        store: folder of finished runs; default ``runs`` in the cache folder.
        handlers: further packages of handlers (see ``focus_core.handlers``).
        device: device of requests that name none.
        max_seconds: longest run that is accepted; default ``FOCUS_LAB_MAX_SECONDS`` or 30 minutes.
        max_bytes: memory that a run may take; default what the machine has free.
        store_bytes: size cap of the store; default ``FOCUS_LAB_STORE_BYTES`` or 2 GiB.
    """

    def __init__(
        self,
        store: Path | str | None = None,
        *,
        handlers: tuple[str, ...] = (),
        device: str = "auto",
        max_seconds: float | None = None,
        max_bytes: int | None = None,
        store_bytes: int | None = None,
    ) -> None:
        root = Path(store) if store is not None else default_root()
        self.store = Store(root, store_bytes or int(os.environ.get("FOCUS_LAB_STORE_BYTES", DEFAULT_BYTES)))
        self.max_seconds = max_seconds or float(os.environ.get("FOCUS_LAB_MAX_SECONDS", 1800))
        self._max_bytes = max_bytes
        self._device, self._handlers = device, tuple(handlers)
        self._observed = Observed(root.parent / f"{root.name}-speed.json")
        self._lock = threading.RLock()
        self._jobs: dict[str, Job] = {}
        self._lanes: dict[str, Lane] = {}
        self._closed = False
        ref = weakref.ref(self)

        def at_exit() -> None:
            if (engine := ref()) is not None:
                engine.close()

        self._at_exit = at_exit
        atexit.register(at_exit)

    def submit(self, kind: str, request: dict[str, Any], session: str = "") -> Job:
        """Ask for work. Never raises for the request: what is refused comes back as a failed job with its error.

        The same request that is queued or running is joined; one that is finished in the store is done at once.

        Args:
            kind: a handler's name.
            request: JSON values.
            session: who asks; see ``cancel``.
        """
        try:
            module = handlers.handler(kind, self._handlers)
            identity = module.identity(request) if hasattr(module, "identity") else None
            key = key_of(kind, request, identity)
        except (FocusError, TypeError, ValueError, KeyError, OSError) as error:
            return self._refused(Job(kind, dict(request), ""), error)
        with self._lock:
            for other in self._jobs.values():
                if other.key == key and not other.finished:
                    other.sessions.add(session)
                    return other
        job = Job(kind, request, key, sessions={session})
        if getattr(module, "STORED", True) and (run := self.store.load(key)):
            job.from_store, job.started = True, job.created
            job.end(DONE, result=run.result)
            return self._remember(job)
        try:
            job.estimate = self.estimate(kind, request)
        except (FocusError, TypeError, ValueError, KeyError, OSError) as error:
            return self._refused(job, error)
        with self._lock:
            if self._closed:
                return self._refused(job, InvalidInput("The engine has been shut down.", "Start the app again."))
            for other in self._jobs.values():
                if other.key == key and not other.finished:
                    other.sessions.add(session)
                    return other
            if getattr(module, "RESUMES", False):
                job.partial = self.store.partials(key)
            lane = self._lane(self._device_of(request))
            if len(lane.queued) >= _MAX_QUEUED:
                full = InvalidInput(f"{_MAX_QUEUED} runs are waiting already.", "Try again when some have finished.")
                return self._refused(job, full)
            self._remember(job)
            lane.add(job)
            return job

    def estimate(self, kind: str, request: dict[str, Any]) -> Estimate:
        """What the run would cost.

        Raises:
            InvalidInput: the request cannot be run. TooLarge: it does not fit; the hint names the nearest that does.
        """
        return handlers.handler(kind, self._handlers).estimate(request, self.host(self._device_of(request)))

    def host(self, device: str | None = None) -> Host:
        """What an estimate may know about the machine and the worker."""
        with self._lock:
            lane = self._lanes.get(device or self._device)
            running = sum(lane.running is not None for lane in self._lanes.values())
            machine = lane.machine if lane is not None and lane.worker is not None and lane.worker.alive else {}
        on_card = str(machine.get("device", "cpu")).startswith("cuda")
        free = int(machine["free_bytes"]) if on_card and "free_bytes" in machine else free_memory()
        free += int(machine.get("model_bytes", 0))
        return Host(
            device=str(machine.get("device", device or self._device)),
            cores=usable_cores(),
            free_bytes=min(free, self._max_bytes) if self._max_bytes is not None else free,
            max_seconds=self.max_seconds,
            loaded=machine.get("name"),
            store=self.store.root,
            factor=self._observed.factor,
            load=max(0.0, load_average() - running * usable_cores()),
        )

    def get(self, job_id: str) -> Job | None:
        """The job; None when it is unknown or long past."""
        with self._lock:
            return self._jobs.get(job_id)

    def find(self, key: str) -> Job | None:
        """The run of that key (``Job.key``), for shared links: one that goes on, or a done one from the store.

        None when it is gone.
        """
        with self._lock:
            for job in self._jobs.values():
                if job.key == key and not job.finished:
                    return job
        run = self.store.load(key)
        if run is None:
            return None
        job = Job(run.kind, run.request, key, from_store=True)
        job.started = job.created
        job.end(DONE, result=run.result)
        return job

    def key(self, kind: str, request: dict[str, Any]) -> str | None:
        """``Job.key`` that the request would have; None where it cannot be run."""
        try:
            module = handlers.handler(kind, self._handlers)
            return key_of(kind, request, module.identity(request) if hasattr(module, "identity") else None)
        except (FocusError, TypeError, ValueError, KeyError, OSError):
            return None

    def recall(self, key: str) -> Job | None:
        """The last run of that key, however it stands: also a cancelled or failed one, and one that another process
        of the engine left unfinished (as a cancelled job with its partial results). None when there is none.
        """
        with self._lock:
            known = [job for job in self._jobs.values() if job.key == key]
        found = known[-1] if known else self.find(key)
        if found is not None or (left := self.store.unfinished(key)) is None:
            return found
        asked, parts = left
        job = Job(str(asked.get("kind")), asked.get("request") or {}, key, partial=parts)
        job.end(CANCELLED)
        return self._remember(job)

    def cancel(self, job_id: str, session: str | None = None) -> bool:
        """Stop a job; its partial results stay. Returns at once.

        Args:
            job_id: which.
            session: who asks. When others asked for the same job it goes on for them, and False is returned.
        """
        with self._lock:
            job = self._jobs.get(job_id)
            if job is None or job.finished:
                return False
            if session is not None:
                job.sessions.discard(session)
                if job.sessions:
                    return False
            for lane in self._lanes.values():
                lane.cancel(job)
            return True

    def release(self, session: str) -> None:
        """Forget who asked: a session that ended no longer keeps a job going that another wants to stop."""
        with self._lock:
            for job in self._jobs.values():
                if len(job.sessions) > 1:
                    job.sessions.discard(session)

    def jobs(self, session: str | None = None) -> list[Job]:
        """Jobs that are remembered, oldest first; those of one session only, when it is given."""
        with self._lock:
            return [j for j in self._jobs.values() if session is None or session in j.sessions]

    def seconds_ahead(self, job: Job) -> float:
        """Foreseen seconds of work before this job starts."""
        with self._lock:
            for lane in self._lanes.values():
                if job in (waiting := lane.queued):
                    ahead = [*([lane.running] if lane.running else []), *waiting[: waiting.index(job)]]
                    return sum(other.seconds_left or 0.0 for other in ahead)
        return 0.0

    def status(self) -> dict[str, Any]:
        """Worker and queue: ``{alive, pid, model, device, running, queued, restarts, log}`` over all devices."""
        with self._lock:
            lanes = list(self._lanes.values())
            workers = [lane.worker for lane in lanes if lane.worker is not None and lane.worker.alive]
            machine = next((lane.machine for lane in lanes if lane.machine), {}) if workers else {}
            return {
                "alive": bool(workers),
                "pid": workers[0].pid if workers else None,
                "model": machine.get("name"),
                "device": machine.get("device"),
                "running": [lane.running.id for lane in lanes if lane.running is not None],
                "queued": [job.id for lane in lanes for job in lane.queued],
                "restarts": sum(max(0, lane.started_workers - 1) for lane in lanes),
                "log": list(workers[0].log)[-20:] if workers else [],
            }

    def close(self) -> None:
        """Cancel all work and end the workers. Finished runs stay in the store."""
        with self._lock:
            self._closed = True
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.close()
        atexit.unregister(self._at_exit)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _device_of(self, request: dict[str, Any]) -> str:
        return str(request.get("device") or self._device)

    def _lane(self, device: str) -> Lane:
        if device not in self._lanes:
            packages, root, observed = self._handlers, self.store.root, self._observed

            def start() -> WorkerProcess:
                return WorkerProcess(device, packages, root)

            def done(job: Job, seconds: float) -> None:
                if job.estimate is not None:
                    observed.add(job.kind, job.estimate.raw_seconds, seconds, slowdown())

            def stored(kind: str) -> bool:
                return getattr(handlers.handler(kind, packages), "STORED", True)

            self._lanes[device] = Lane(start, self.store, self._lock, done, stored)
        return self._lanes[device]

    def _remember(self, job: Job) -> Job:
        with self._lock:
            self._jobs[job.id] = job
            past = [j.id for j in self._jobs.values() if j.finished]
            for old in past[: max(0, len(past) - _HISTORY)]:
                del self._jobs[old]
        return job

    def _refused(self, job: Job, error: Exception) -> Job:
        if isinstance(error, FocusError):
            problem = Problem(error.message, error.hint)
        elif isinstance(error, KeyError):
            problem = Problem(f"The request has no {error}.")
        else:
            problem = Problem(f"The request cannot be read: {error}")
        job.end(FAILED, error=problem)
        return self._remember(job)
