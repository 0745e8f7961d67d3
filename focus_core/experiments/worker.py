"""One process that runs commands of ``focus_core`` one after the other, each under a lock and up to a deadline."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STOPPED, ELSEWHERE = "stopped", "elsewhere"
_AT_WORK = threading.Lock()


def start(gpu: str, threads: int) -> None:
    """Prepare a worker's process: its GPU ('' for what torch finds) and its threads."""
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    """End when the process that started this one was killed: what runs is interrupted, as by Ctrl-C."""
    parent.join()
    _interrupt()
    with _AT_WORK:
        os._exit(1)


def _interrupt() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def perform(arguments: list[str], log: str) -> float:
    """Run one command of focus_core in this process; what it prints goes to a file. Gives the seconds.

    Raises:
        KeyboardInterrupt: the command was interrupted; what it had done is kept.
        RuntimeError: it failed, with the last line that it printed.
    """
    from focus_core.cli import INTERRUPTED, main

    _keep_models()
    began = time.monotonic()
    with open(log, "w", encoding="utf-8") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        try:
            code = main(arguments)
        except SystemExit as refused:
            # Of wrong options; it would end the pool's whole run without a word.
            code = refused.code if isinstance(refused.code, int) else 1
    _free()
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        last = Path(log).read_text(encoding="utf-8").strip().splitlines()[-1:]
        raise RuntimeError(f"exit code {code}: {' '.join(last)}")
    return round(time.monotonic() - began, 1)


def perform_once(
    arguments: list[str],
    log: str,
    lock: str,
    made: Callable[[], bool],
    deadline: float | None,
    finish: Callable[[], None] | None = None,
) -> float | str:
    """``perform``, unless another process is at it.

    Args:
        arguments: the command line.
        log: file of what it prints.
        lock: file that is locked while it runs; the system lets go of it when the process dies.
        made: whether the command's work is there, asked again under the lock.
        deadline: ``time.time()`` at which the command is interrupted as by Ctrl-C; None: never.
        finish: called under the lock when the command is done.

    Returns:
        The seconds (0 where another process had made it), ``STOPPED`` or ``ELSEWHERE``.
    """
    with _AT_WORK, held(Path(lock)) as mine:
        if not mine:
            return ELSEWHERE
        if made():
            return 0.0
        try:
            with _until(deadline):
                seconds = perform(arguments, log)
            if finish is not None:
                finish()
            return seconds
        except KeyboardInterrupt:
            return STOPPED


@contextlib.contextmanager
def held(path: Path) -> Iterator[bool]:
    """Hold a file's lock; says whether it was free."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


@contextlib.contextmanager
def _until(deadline: float | None) -> Iterator[None]:
    """Interrupt what runs inside at the deadline."""
    if deadline is None:
        yield
        return
    timer = threading.Timer(max(0.01, deadline - time.time()), _interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _keep_models() -> None:
    """A model is opened once a process, and not once a command."""
    from focus_core.models import loading

    if hasattr(loading.load_model, "kept"):
        return
    real, kept = loading.load_model, {}

    def load_model(name: str, *, progress: Any = None, cancel: Any = None, **where: Any) -> Any:
        asked = name, *sorted((key, str(value)) for key, value in where.items() if value is not None)
        if asked not in kept:
            kept[asked] = real(name, progress=progress, cancel=cancel, **where)
        return kept[asked]

    load_model.kept = kept  # type: ignore[attr-defined]
    loading.load_model = load_model


def _free() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
