"""Work in a process of its own that can be ended at any moment: its lines are followed, and so is a request to stop."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from focus_core import errors

ENDED = 3
GRACE = 0.5
PASSED_ON = ("InvalidInput", "NotAvailable", "TooLarge", "Unsupported")


def follow(
    command: list[str],
    *,
    line: Callable[[str], None],
    tick: Callable[[], None],
    cancel: Callable[[], bool] | None,
    stopped: errors.Cancelled,
    environment: dict[str, str] | None = None,
) -> tuple[int, str]:
    """Run a command to its end, or end it.

    Args:
        command: the program and its arguments; its standard input closes when this process goes.
        line: called with each line that it writes to standard output; what this raises ends the command.
        tick: called five times a second; what this raises ends the command.
        cancel: asked five times a second.
        stopped: raised when ``cancel`` says True.
        environment: variables to add.

    Returns:
        Its exit status and the last line of its standard error.
    """
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace", env=os.environ | (environment or {})
    )
    lines: queue.Queue[str | None] = queue.Queue()
    noise: list[str] = [""]

    def keep_last(text: str | None) -> None:
        if text and text.strip():
            noise[0] = text.strip()[-300:]

    readers = [
        threading.Thread(target=_pump, args=(child.stdout, lines.put), daemon=True),
        threading.Thread(target=_pump, args=(child.stderr, keep_last), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        while True:
            if cancel is not None and cancel():
                raise stopped
            tick()
            try:
                text = lines.get(timeout=0.2)
            except queue.Empty:
                continue
            if text is None:
                break
            line(text)
        child.wait()
    finally:
        _end(child)
        for reader in readers:
            reader.join(1.0)
        for stream in (child.stdin, child.stdout, child.stderr):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
    return child.returncode, noise[0]


def _end(child: subprocess.Popen) -> None:
    """Ask a process to end, which lets it remove its own temporary files, and soon make it."""
    child.terminate()
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def module_command(module: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command that runs a module of this program, and the variables with which it is found from anywhere."""
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    return [sys.executable, "-m", module, *arguments], {"PYTHONPATH": paths}


def reraise(document: dict[str, Any]) -> None:
    """Raise what a child of ``answer`` reported, if it reported an error."""
    if "error" in document:
        raise getattr(errors, document["error"])(document["message"], document["hint"])


def answer(work: Callable[[Callable[[dict[str, Any]], None]], None]) -> NoReturn:
    """The child's side: do the work and end the process.

    ``work`` is given a function that sends one JSON document to the parent. The process ends at once when its
    standard input closes, which is when the parent is gone. What libraries print goes to standard error.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(ENDED))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def send(document: dict[str, Any]) -> None:
        out.write(json.dumps(document) + "\n")
        out.flush()

    code = 0
    try:
        work(send)
    except errors.FocusError as error:
        kind = type(error).__name__
        if kind not in PASSED_ON:
            raise
        send({"error": kind, "message": error.message, "hint": error.hint})
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 1
    sys.stderr.flush()
    os._exit(code)  # the thread that reads standard input would hold a normal exit


def _pump(stream: Any, put: Callable[[str | None], None]) -> None:
    for line in stream:
        put(line)
    put(None)


def _end_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(ENDED)
