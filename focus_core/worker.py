"""The engine's child process: takes one job at a time as JSON lines, keeps one model warm.

Started by ``focus_core.jobs`` as ``python -m focus_core.worker``. It ends when its input ends.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from focus_core.errors import Cancelled, FocusError, disk_full, out_of_memory
from focus_core.jobs.files import write_json
from focus_core.jobs.memory import release_memory
from focus_core.jobs.store import default_root

if TYPE_CHECKING:
    from focus_core.models.loading import Loaded

_PROGRESS_GAP = 0.05
_NICE = 5
_LOADING_SHARE = 0.2


class Channel:
    """Writes events, one JSON line each, from any thread."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._lock = stream, threading.Lock()

    def send(self, event: str, **fields: Any) -> None:
        """Write one event."""
        data = json.dumps({"event": event, **fields}, default=plain).encode() + b"\n"
        with self._lock:
            self._stream.write(data)
            self._stream.flush()


class Context:
    """What a handler has while its job runs.

    Attributes:
        folder: the run's folder in the store, for files that the result names.
        store: the run store.
        device: where to run; None leaves the choice to the loader.
    """

    def __init__(self, worker: Worker, job_id: str, folder: Path, resumes: bool) -> None:
        self.folder, self.store = folder, worker.store
        self.device = worker.device
        self.loading_seconds = 0.0
        self._worker, self._id = worker, job_id
        self._base, self._said = 0.0, (-1.0, 0.0)
        self._partials = folder / "partial.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        if not resumes:
            self._partials.unlink(missing_ok=True)

    def progress(self, fraction: float, message: str) -> None:
        """Say how far the work is, 0 to 1, and what it does now."""
        self._tell(self._base + (1 - self._base) * fraction, message)

    def partial(self, data: dict[str, Any]) -> None:
        """Hand over a result that is final though the job is not; it stays when the job is stopped."""
        line = json.dumps(data, default=plain)
        with self._partials.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._worker.channel.send("partial", id=self._id, data=json.loads(line))

    def earlier(self) -> list[dict[str, Any]]:
        """Partial results of an unfinished run of the same request (handlers with ``RESUMES`` only)."""
        found = []
        if self._partials.is_file():
            for line in self._partials.read_text("utf-8").splitlines():
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return found

    def cancelled(self) -> bool:
        """True once the job should stop."""
        return self._id in self._worker.cancelled

    def check(self) -> None:
        """Raise Cancelled once the job should stop."""
        if self.cancelled():
            raise Cancelled

    def model(self, name: str, share: float = _LOADING_SHARE) -> Loaded:
        """The model, kept from the last job or loaded; the last one is released first.

        ``share`` is the part of the job's progress bar that loading takes.
        """
        began = time.monotonic()

        def tell(fraction: float, message: str) -> None:
            self._tell(self._base + share * fraction, message)

        loaded, fresh = self._worker.model(name, tell, self.cancelled)
        if fresh:
            self._base += share
        self.loading_seconds += time.monotonic() - began
        self.check()
        return loaded

    def clear(self) -> None:
        """Forget the partial results: the whole one is there."""
        self._partials.unlink(missing_ok=True)

    def _tell(self, fraction: float, message: str) -> None:
        now = time.monotonic()
        fraction = min(1.0, max(0.0, fraction))
        last, at = self._said
        if now - at >= _PROGRESS_GAP or (fraction >= 1 and last < 1):
            self._said = fraction, now
            self._worker.channel.send("progress", id=self._id, fraction=round(fraction, 4), message=message)


class Worker:
    """Runs jobs in the main thread; a reader thread hears of cancels and of the parent's end."""

    def __init__(self, channel: Channel, device: str | None, store: Path) -> None:
        self.channel, self.device, self.store = channel, device, store
        self.cancelled: set[str] = set()
        self._jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._loaded: Loaded | None = None
        self._name: str | None = None

    def serve(self, stream: IO[bytes]) -> None:
        """Work until the input ends."""
        threading.Thread(target=self._listen, args=(stream,), daemon=True).start()
        self.channel.send("ready", pid=os.getpid())
        while True:
            job = self._jobs.get()
            self._do(job)
            self.cancelled.discard(job["id"])
            release_memory()

    def model(self, name: str, progress: Any, cancel: Any) -> tuple[Loaded, bool]:
        """The loaded model and whether it was loaded now."""
        if self._loaded is not None and self._name == name:
            return self._loaded, False
        from focus_core.models.loading import load_model

        if self._loaded is not None:
            self._loaded = self._name = None
            release_memory()
            self.channel.send("model", name=None)
        progress(0.0, f"Loading {name}.")
        self._loaded = load_model(name, device=self.device, progress=progress, cancel=cancel)
        self._name = name
        self.channel.send("model", name=name, **_weight(self._loaded))
        return self._loaded, True

    def _listen(self, stream: IO[bytes]) -> None:
        for line in stream:
            try:
                message = json.loads(line)
                if message["op"] == "run":
                    self._jobs.put({k: message[k] for k in ("id", "kind", "request", "key")})
                elif message["op"] == "cancel":
                    self.cancelled.add(message["id"])
            except (ValueError, KeyError, TypeError):
                print("A line from the engine could not be read.", file=sys.stderr)
        # The engine is gone: nobody reads a result, and the main thread may be deep in a kernel.
        os._exit(0)

    def _do(self, job: dict[str, Any]) -> None:
        began = time.monotonic()
        try:
            from focus_core import handlers

            module = handlers.handler(job["kind"])
            resumes = getattr(module, "RESUMES", False)
            context = Context(self, job["id"], self.store / job["key"], resumes)
            if resumes:
                # So that the run can be found and go on also when this process and the engine are gone.
                write_json(context.folder / "request.json", {"kind": job["kind"], "request": job["request"]})
            context.check()
            result = module.run(job["request"], context)
            seconds = time.monotonic() - began - context.loading_seconds
            self.channel.send("done", id=job["id"], result=result, seconds=seconds)
            context.clear()
        except Cancelled:
            self.channel.send("cancelled", id=job["id"])
        except FocusError as error:
            self.channel.send("failed", id=job["id"], message=error.message, hint=error.hint)
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            message, hint = explain(error)
            self.channel.send("failed", id=job["id"], message=message, hint=hint)


def explain(error: BaseException) -> tuple[str, str]:
    """A sentence for people about an error that nobody foresaw, and what would work."""
    text = str(error)
    if said := out_of_memory(error):
        return said, "Take a shorter text, fewer layers or a smaller model."
    if said := disk_full(error):
        return said, "Free disk space, or set FOCUS_LAB_CACHE to a folder with room; then run it again."
    if (isinstance(error, OSError) and error.errno == errno.EROFS) or "Read-only file system" in text:
        return "The cache folder cannot be written to.", "Set FOCUS_LAB_CACHE to a folder that can; then run it again."
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"It met a fault: {type(error).__name__}{f': {first[:300]}' if first else ''}.", "Run it again."


def plain(value: Any) -> Any:
    """JSON form of NumPy scalars and arrays, paths and sets."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (set, frozenset, tuple)):
        return sorted(value) if isinstance(value, (set, frozenset)) else list(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _weight(loaded: Loaded) -> dict[str, Any]:
    import torch

    parameters = list(loaded.model.parameters())
    device = parameters[0].device
    found = {"device": str(device), "model_bytes": sum(p.numel() * p.element_size() for p in parameters)}
    if device.type == "cuda":
        found["free_bytes"] = torch.cuda.mem_get_info(device)[0]
    return found


def _reserve_stdout() -> IO[bytes]:
    """The pipe to the engine; whatever libraries print goes to stderr instead."""
    private = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return os.fdopen(private, "wb")


def _settle(parent: int) -> None:
    """Be nice to the app, leave Ctrl-C to it, and end when it ends."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if parent and os.getppid() != parent:
        os._exit(0)


def main() -> None:
    """Serve the engine over stdin and stdout."""
    parser = argparse.ArgumentParser(description="The engine's worker; started by the engine.")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--store", type=Path, default=None)
    parser.add_argument("--parent", type=int, default=0)
    arguments = parser.parse_args()
    channel = Channel(_reserve_stdout())
    _settle(arguments.parent)
    device = None if arguments.device == "auto" else arguments.device
    Worker(channel, device, arguments.store or default_root()).serve(sys.stdin.buffer)


if __name__ == "__main__":
    main()
