"""An epoch's steps one by one, or each as one captured CUDA graph: the same operations on the same numbers.

A step of a small model is hundreds of kernels of a few microseconds, so that the card waits for the program that starts
them. A captured step is started at once. It reads what changes from tables on the device: which images, how they are
moved, the learning rate. They are filled before an epoch's first step with what the uncaptured steps would have drawn,
in their order. The rate is then a number in fp32 on the device, and else one in fp64: rounding is all that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

WARM = 3
"""Steps before the capture. They are the run's own first steps: nothing is trained twice or thrown away."""


class Drawn(NamedTuple):
    """What is random of an epoch, one row a step.

    Attributes:
        index: [steps, batch] of the images.
        moved: [steps, 2, batch, 1], shifts down and to the right.
        mirrored: [steps, batch, 1], or None where nothing is mirrored.
    """

    index: torch.Tensor
    moved: torch.Tensor
    mirrored: torch.Tensor | None


Learn = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""One step on one row of what was drawn: it updates the weights, leaves no gradient, and gives its loss, detached."""


def eager_steps(
    learn: Learn, optimizer: torch.optim.Optimizer, drawn: Drawn, rates: Sequence[float]
) -> list[torch.Tensor]:
    """The losses of an epoch's steps, each started as it comes."""
    losses = []
    for i, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        losses.append(learn(drawn.index[i], drawn.moved[i], None if drawn.mirrored is None else drawn.mirrored[i]))
    return losses


class GraphedSteps:
    """Epochs whose steps are replays of one captured graph.

    Where there is no GPU, and where the capture fails, the same step is run from its tables without a graph.

    Args:
        learn: one step; it waits for nothing on the host.
        optimizer: takes its rate from the device from now on. Its state is already the one to go on from.
        place: where the model is.

    Attributes:
        reason: why steps are not replayed; empty while they are, or may be.
    """

    def __init__(self, learn: Learn, optimizer: torch.optim.Optimizer, place: torch.device) -> None:
        cuda = place.type == "cuda"
        self.reason = "" if cuda else "CUDA graphs need a GPU."
        self._learn, self._optimizer, self._place = learn, optimizer, place
        self._at = torch.zeros(1, dtype=torch.long, device=place)
        self._rate = torch.zeros((), device=place)
        for group in optimizer.param_groups:
            group["lr"], group["capturable"] = self._rate, cuda
        self._tables: Drawn | None = None
        self._rates = self._losses = torch.empty(0, device=place)
        self._side = torch.cuda.Stream(place) if cuda else None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warmed = 0

    def why_not(self) -> str:
        """Why steps are not replayed; empty if they are."""
        return "" if self._graph is not None else self.reason or f"There were not more than {WARM} steps."

    def __call__(self, drawn: Drawn, rates: Sequence[float]) -> torch.Tensor:
        """The losses of an epoch's steps, [steps]; on a GPU nothing was waited for. All epochs have as many steps."""
        self._fill(drawn, rates)
        for _ in rates:
            self._one()
        return self._losses.clone()

    def _fill(self, drawn: Drawn, rates: Sequence[float]) -> None:
        given = torch.tensor(rates, dtype=torch.float32, device=self._place)
        self._at.zero_()
        if self._tables is None:
            self._tables = Drawn(*(None if one is None else one.clone() for one in drawn))
            self._rates, self._losses = given, torch.zeros_like(given)
            return
        # A graph reads where its tables were when it was captured: they stay there.
        for held, one in zip(self._tables, drawn, strict=True):
            if held is not None and one is not None:
                held.copy_(one)
        self._rates.copy_(given)

    def _one(self) -> None:
        if self._graph is None and not self.reason:
            if self._warmed < WARM:
                with self._aside():
                    self._step()
                self._warmed += 1
                return
            self._capture()
        if self._graph is None:
            self._step()
        else:
            self._graph.replay()

    def _step(self) -> None:
        assert self._tables is not None
        self._rate.copy_(self._rates.index_select(0, self._at)[0])
        row = [None if one is None else one.index_select(0, self._at)[0] for one in self._tables]
        loss = self._learn(*row)
        self._losses.index_copy_(0, self._at, loss.view(1))
        self._at.add_(1)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        assert self._side is not None
        before = torch.cuda.current_stream(self._place)
        self._side.wait_stream(before)
        with torch.cuda.stream(self._side):
            yield
        before.wait_stream(self._side)

    def _capture(self) -> None:
        """Record one step; nothing of it is run, so that a failure leaves the training where it was."""
        try:
            self._graph = self._record()
        except RuntimeError as error:
            # The gradients of a capture that failed lie in memory that goes with it.
            self._optimizer.zero_grad(set_to_none=True)
            self.reason = f"The capture failed: {str(error).splitlines()[0]}"

    def _record(self) -> torch.cuda.CUDAGraph:
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._place)
        assert self._side is not None
        self._side.wait_stream(before)
        try:
            with torch.cuda.graph(graph, stream=self._side):
                self._step()
        finally:
            # A capture that fails leaves its stream the current one.
            torch.cuda.set_stream(before)
        before.wait_stream(self._side)
        return graph
