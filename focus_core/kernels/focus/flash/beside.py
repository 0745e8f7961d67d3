"""A second stream for work that runs beside that of the current one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# A stream of its own for every thread: one that a CUDA graph is captured on takes no other work meanwhile.
_own = threading.local()


def _second(device: torch.device) -> torch.cuda.Stream:
    streams = _own.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)
    return streams[device]


@contextmanager
def branched(device: torch.device) -> Iterator[Branch]:
    """A branch that starts after what the current stream was given so far; on leaving, the stream waits for it.

    Where there are no streams (off a GPU) work of the branch is done in its place.
    """
    branch = Branch(device)
    try:
        yield branch
    finally:
        # Also after a failure: the branch still reads and writes what would be given back.
        branch.join()


class Branch:
    """Work beside the current stream."""

    def __init__(self, device: torch.device) -> None:
        self._streams = (torch.cuda.current_stream(device), _second(device)) if device.type == "cuda" else None
        if self._streams:
            main, side = self._streams
            side.wait_stream(main)

    @contextmanager
    def work(self) -> Iterator[None]:
        """What is started here goes to the branch."""
        with torch.cuda.stream(self._streams and self._streams[1]):
            yield

    def join(self) -> None:
        """Let the current stream wait for the branch."""
        if self._streams:
            main, side = self._streams
            main.wait_stream(side)
