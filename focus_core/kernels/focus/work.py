"""Runs independent pieces of work on threads that compute alone.

Split inside every torch operation, hundreds of small operations each wait for the slowest core; on a machine
that does anything else as well, that wait outweighs the work. Whole pieces to a thread wait once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch

_here = threading.local()


def conduct(job: Callable[[], Any]) -> Any:
    """Run a job whose ``run_all`` calls use as many threads as torch may use here; the rest of it uses one.

    Gradients are off in the job; inference mode is the caller's.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        with torch.no_grad():
            return job()
    lead, pool = _team(threads)
    inference = torch.is_inference_mode_enabled()

    def led() -> Any:
        _here.submit = lambda piece: _submit(pool, piece, inference)
        return job()

    return _submit(lead, led, inference).result()


def run_all(pieces: Sequence[Callable[[], None]]) -> None:
    """Run all pieces of a job, the first ones first; return when all are done.

    The pieces must not depend on one another. The first error is raised.
    """
    submit = getattr(_here, "submit", None)
    if submit is None or len(pieces) == 1:
        for piece in pieces:
            piece()
        return
    for done in [submit(piece) for piece in pieces]:
        done.result()


def _submit(executor: ThreadPoolExecutor, work: Callable[[], Any], inference: bool) -> Future:
    def alone() -> Any:
        # Grad and inference mode belong to a thread.
        with torch.inference_mode(inference), torch.no_grad():
            return work()

    return executor.submit(alone)


@lru_cache(maxsize=4)
def _team(threads: int) -> tuple[ThreadPoolExecutor, ThreadPoolExecutor]:
    """A thread that leads, idle while the others work, and the others."""
    ready = threading.Barrier(threads + 2)

    def start() -> None:
        # The count belongs to the calling thread, once its first question has been answered with the default; only
        # that default, which threads started later begin with, is changed for all and has to be put back.
        torch.get_num_threads()
        torch.set_num_threads(1)
        ready.wait()

    lead = ThreadPoolExecutor(1, thread_name_prefix="focus-cpu-lead", initializer=start)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="focus-cpu", initializer=start)
    for executor in (lead, *[pool] * threads):
        executor.submit(lambda: None)
    ready.wait()
    torch.set_num_threads(threads)
    return lead, pool


# A forked child has none of its parent's threads, and would wait for them for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_team.cache_clear)
