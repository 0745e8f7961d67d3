"""Runs independent pieces of work on threads that compute alone.

Split inside every torch operation, hundreds of small operations each wait for the slowest core; on a machine
that does anything else as well, that wait outweighs the work. Whole pieces to a thread wait once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch


def run_all(pieces: Sequence[Callable[[], None]]) -> None:
    """Run all pieces, the first ones first, on as many threads as torch may use; return when all are done.

    The pieces must not depend on one another. The first error is raised, after the rest has ended.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(pieces) == 1:
        for piece in pieces:
            piece()
        return
    inference = torch.is_inference_mode_enabled()

    def alone(piece: Callable[[], None]) -> None:
        # Grad and inference mode belong to a thread; the caller's hold for its pieces.
        with torch.inference_mode(inference), torch.no_grad():
            piece()

    for done in [_pool(threads).submit(alone, piece) for piece in pieces]:
        done.result()


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    ready = threading.Barrier(threads + 1)

    def start() -> None:
        # The count belongs to the calling thread, once its first question has been answered with the default; only
        # that default, which threads started later begin with, is changed for all and has to be put back.
        torch.get_num_threads()
        torch.set_num_threads(1)
        ready.wait()

    pool = ThreadPoolExecutor(threads, thread_name_prefix="focus-cpu", initializer=start)
    for _ in range(threads):
        pool.submit(lambda: None)
    ready.wait()
    torch.set_num_threads(threads)
    return pool


# A forked child has none of its parent's threads, and would wait for them for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
