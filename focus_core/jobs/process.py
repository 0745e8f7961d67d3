"""The worker as the engine sees it: a niced child that reads and writes JSON lines."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import focus_core
from focus_core.handlers import EXTRA

_LOG_LINES = 200
_MAX_LINE = 64 << 20


class WorkerProcess:
    """One child process, its events and the last lines it wrote for people.

    ``events`` gives dicts, and None once when the child has ended.
    """

    def __init__(self, device: str, handlers: tuple[str, ...] = (), store: Path | None = None) -> None:
        environment = dict(os.environ)
        root = str(Path(focus_core.__file__).resolve().parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH", "")]))
        environment["TOKENIZERS_PARALLELISM"] = "false"
        environment["PYTHONUNBUFFERED"] = "1"
        # Threads that spin while they wait would take the cores from the app.
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        if handlers:
            environment[EXTRA] = ",".join(handlers)
        self.events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.log: collections.deque[str] = collections.deque(maxlen=_LOG_LINES)
        self.asked_to_die = False
        self._write_lock = threading.Lock()
        command = [sys.executable, "-m", "focus_core.worker", "--device", device, "--parent", str(os.getpid())]
        if store is not None:
            command += ["--store", str(store)]
        # A session of its own: Ctrl-C in the server's terminal is the server's to answer.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._input, self._output, self._messages = self.process.stdin, self.process.stdout, self.process.stderr
        self._readers = [
            threading.Thread(target=self._read_events, daemon=True, name="focus-worker-events"),
            threading.Thread(target=self._read_log, daemon=True, name="focus-worker-log"),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """True while the child runs."""
        return self.process.poll() is None

    def send(self, message: dict[str, Any]) -> bool:
        """Write one message; False when the child is gone."""
        data = json.dumps(message).encode() + b"\n"
        try:
            with self._write_lock:
                self._input.write(data)
                self._input.flush()
        except (OSError, ValueError):
            return False
        return True

    def wake(self) -> None:
        """Make a reader of ``events`` look up."""
        self.events.put({"event": "wake"})

    def kill(self) -> None:
        """End the child now and wait for it."""
        self.asked_to_die = True
        with contextlib.suppress(OSError):
            self.process.kill()
        self._reap(5)

    def close(self, patience: float = 0.5) -> None:
        """Ask the child to end (its input ends), then make it."""
        self.asked_to_die = True
        with contextlib.suppress(OSError, ValueError):
            self._input.close()
        if not self._reap(patience):
            self.kill()

    def _reap(self, patience: float) -> bool:
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            return False
        with contextlib.suppress(OSError, ValueError):
            self._input.close()
        return True

    def epitaph(self) -> tuple[str, str]:
        """Why the child ended, as (message, hint)."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        self._readers[1].join(0.5)
        code = self.process.poll()
        if code == -signal.SIGKILL:
            return (
                "The engine's process was killed while this ran, most likely because memory ran out.",
                "Run it again; if it happens again, take a shorter text or a smaller model.",
            )
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return f"The engine's process crashed while this ran ({name}).", "Run it again; a new process is started."
        last = next((line for line in reversed(self.log) if line.strip()), "it gave no reason")
        return (
            f"The engine's process ended while this ran (exit {code}): {last.strip()[:300]}",
            "Run it again; a new process is started.",
        )

    def _read_events(self) -> None:
        stream = self._output
        with contextlib.suppress(OSError, ValueError):
            while line := stream.readline(_MAX_LINE):
                with contextlib.suppress(ValueError, UnicodeDecodeError):
                    event = json.loads(line)
                    if isinstance(event, dict) and isinstance(event.get("event"), str):
                        self.events.put(event)
        with contextlib.suppress(OSError):
            stream.close()
        self.events.put(None)

    def _read_log(self) -> None:
        stream = self._messages
        with contextlib.suppress(OSError, ValueError):
            while line := stream.readline(4096):
                self.log.append(line.decode("utf-8", "replace").rstrip())
        with contextlib.suppress(OSError):
            stream.close()
