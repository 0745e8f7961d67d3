"""Stages of a measurement, each in a process of its own that ends when its time is over."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from typing import Any

Row = dict[str, Any]


def _work(pipe: Any, work: Callable[..., Iterator[Row]], args: tuple) -> None:
    try:
        for row in work(*args):
            pipe.send(row)
    except Exception as problem:
        # Said as a row: the stages after this one still run.
        pipe.send({"problem": f"{type(problem).__name__}: {problem}"[-700:]})
    pipe.close()


def run_stage(name: str, work: Callable[..., Iterator[Row]], args: tuple, limit: float) -> Iterator[Row]:
    """The rows of one stage as they come, then one that says how it ended.

    A process that the compiler brings down, or a kernel that never ends, costs this stage alone: a pool would wait for
    it without an end.

    Args:
        name: said with its start and its end.
        work: a function of a module, which yields rows; it runs in a new process.
        args: its arguments.
        limit: seconds, after which the process is killed.
    """
    began = time.monotonic()
    print(f"[{name}] starts, at most {limit:.0f} s", flush=True)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(there, work, args), daemon=True)
    process.start()
    there.close()
    problem = None
    while problem is None:
        left = limit - (time.monotonic() - began)
        if left <= 0 or not here.poll(left):
            process.kill()
            problem = f"not done after {limit:.0f} s: killed"
            break
        try:
            row = here.recv()
        except EOFError:
            break
        print(f"[{name}] {time.monotonic() - began:.1f} s", flush=True)
        yield {"stage": name, **row}
    process.join(5)
    if problem is None and process.exitcode:
        problem = f"its process ended with {process.exitcode}"
    seconds = time.monotonic() - began
    print(f"[{name}] {problem or 'done'}, {seconds:.1f} s", flush=True)
    yield {"stage": name, "seconds": seconds, **({"problem": problem} if problem else {"ended": True})}
