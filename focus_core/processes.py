"""The processes of a training run, as `accelerate launch` starts them, and what they tell one another.

A run's settings say what all of them do together: each takes its share of every batch, and whatever is a mean or a sum
over tokens is made whole again. A process alone goes through the same calls, which then change nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from datetime import timedelta

import torch

from focus_core import launched
from focus_core.errors import FocusError, InvalidInput

_PATIENCE = timedelta(hours=2)
"""How long a process is waited for, for example while the first one fits what training starts from."""


class Processes:
    """Those of one run; the first one is the ``main`` one, which alone writes.

    Args:
        device: where this process computes.

    Attributes:
        rank: number of this process, from 0.
        count: how many there are.
        device: where this process computes.
        hint: what a person can do when one of them is lost.
    """

    def __init__(self, device: torch.device) -> None:
        from accelerate import PartialState

        if (asked := os.environ.get("ACCELERATE_MIXED_PRECISION", "no")) != "no":
            raise InvalidInput(
                f"accelerate was told to mix precisions ({asked}), and an adapter trains in float32 beside a base of "
                "one dtype.",
                "Launch with --mixed_precision no, and give train its --dtype.",
            )
        # Other libraries read these numbers without a word of what is wrong with them.
        launched.processes()
        launched.number("LOCAL_RANK", 0)
        state = PartialState(cpu=device.type == "cpu", timeout=_PATIENCE)
        self.rank, self.count, self.device = state.process_index, state.num_processes, device
        self.hint = "Start the same command again."

    @property
    def main(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def own(self, windows: torch.Tensor) -> torch.Tensor:
        """This process's rows of a batch: (B, N) to (B / count, N); no row is in two shares."""
        return windows.chunk(self.count)[self.rank]

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over the processes, without gradient."""
        if self.count == 1:
            return values
        total = values.detach().to(self.device, copy=True)
        with self._together():
            torch.distributed.all_reduce(total)
        return total.to(values.device)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """The mean of a tensor over the processes, without gradient."""
        return values if self.count == 1 else self.sum(values) / self.count

    def least(self, value: torch.Tensor) -> torch.Tensor:
        """The smallest of one number of each process."""
        return self.gather(value.to(self.device).reshape(1)).min().cpu()

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows (n, ...) of all processes in their order: (count * n, ...)."""
        if self.count == 1:
            return rows
        found = [torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(self.count)]
        with self._together():
            torch.distributed.all_gather(found, rows.contiguous())
        return torch.cat(found)

    def average_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace every gradient by its mean over the processes."""
        grads = [p.grad for p in parameters if p.grad is not None]
        if self.count == 1 or not grads:
            return
        # One message: an adapter's tensors are small.
        whole = self.mean(torch.cat([g.flatten().float().to(self.device) for g in grads]))
        for grad, part in zip(grads, whole.split([g.numel() for g in grads]), strict=True):
            grad.copy_(part.view_as(grad))

    def same(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace the tensors' values by those of the first process."""
        if self.count == 1:
            return
        for tensor in tensors:
            sent = tensor.detach().to(self.device).contiguous()
            with self._together():
                torch.distributed.broadcast(sent, 0)
            tensor.detach().copy_(sent)

    def told(self, content: bytes | None) -> bytes | None:
        """What the first process says, None included; what the others give is not looked at."""
        if self.count == 1:
            return content
        size = torch.tensor([-1 if content is None else len(content)], device=self.device)
        self.same([size])
        if (length := int(size)) < 0:
            return None
        given = content if self.main and content else bytes(length)
        sent = torch.frombuffer(bytearray(given or b"\0"), dtype=torch.uint8).to(self.device)
        self.same([sent])
        return sent.cpu().numpy().tobytes()[:length]

    def check_alike(self, what: str, own: str) -> None:
        """Refuse processes that were given different things.

        Raises:
            InvalidInput: with the number of the first one that differs from the first process.
        """
        wanted = (self.told(own.encode()) or b"").decode()
        differing = self.gather(torch.tensor([wanted != own], dtype=torch.uint8, device=self.device)).nonzero()
        if len(differing):
            raise InvalidInput(
                f"Process {int(differing[0]) + 1} of {self.count} has other {what} than the first one.",
                "Start all of them with the same command, files and versions.",
            )

    def wait(self) -> None:
        """Go on when all processes are here."""
        self.sum(torch.zeros(1, device=self.device))

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            first = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
            raise FocusError(
                f"Process {self.rank + 1} of {self.count} has lost another one, which ended or failed ({first}).",
                self.hint,
            ) from None


def leave_group() -> None:
    """Leave the group of processes, when there is one: a process that ends inside it may abort at its exit."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
