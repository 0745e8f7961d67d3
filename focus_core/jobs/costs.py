"""What a run will cost, before it runs: measured coefficients, corrected by the times that were observed here."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from focus_core.errors import TooLarge
from focus_core.jobs.files import read_json, write_json

_KEPT_RATIOS = 7
_MAX_REFUSING_FACTOR = 3.0
"""Slowness beyond this is a busy machine's, and no reason to refuse a run."""
RESERVE_BYTES = 256 << 20
"""Memory that a run must leave to the rest of the machine."""


@dataclass(frozen=True)
class Estimate:
    """What a run is foreseen to take.

    Attributes:
        seconds: of work, corrected by what was observed on this machine.
        bytes: memory at the peak, beyond what is in use now.
        sentence: both, for people.
        raw_seconds: seconds before the correction; 0 when the kind is not corrected.
    """

    seconds: float
    bytes: int
    sentence: str
    raw_seconds: float = 0.0


@dataclass(frozen=True)
class Host:
    """What an estimate may know about the machine and the engine. Needs no torch.

    Attributes:
        device: where the runs go: ``cpu``, ``cuda:0``, or ``auto`` until the worker has said.
        cores: processor cores that the worker can use.
        free_bytes: memory that a run can take, the loaded model's included when another one replaces it.
        max_seconds: longest run that is accepted.
        loaded: name of the model that the worker holds; None when it holds none.
        store: folder of the run store.
        factor: observed seconds over raw seconds of a kind; 1 until something was observed.
        load: work of others that waits for the cores, as the system counts it (mean of the last minute).
    """

    device: str = "auto"
    cores: int = 1
    free_bytes: int = 1 << 33
    max_seconds: float = 1800.0
    loaded: str | None = None
    store: Path = Path()
    factor: Callable[[str], float] = field(default=lambda kind: 1.0)
    load: float = 0.0

    def fit(
        self,
        kind: str,
        cost: Callable[[int], tuple[float, int]],
        size: int,
        unit: str = "tokens",
        detail: str = "",
        fixed: tuple[float, int] = (0.0, 0),
    ) -> Estimate:
        """Estimate a run of ``size`` units, or refuse it and name the nearest size that fits.

        Args:
            kind: the handler's name.
            cost: raw seconds and peak bytes of a run of so many units; must not fall as the size grows.
            size: what was asked for.
            unit: what is counted, in the plural.
            detail: what else belongs in the sentence's brackets.
            fixed: seconds and bytes on top that do not depend on the size, such as loading a model.

        Raises:
            TooLarge: the run needs more memory or time than there is.
        """
        factor = self.factor(kind)

        def fits(n: int) -> bool:
            seconds, need = cost(n)
            time_fits = seconds * min(factor, _MAX_REFUSING_FACTOR) + fixed[0] <= self.max_seconds
            return time_fits and need + fixed[1] + RESERVE_BYTES <= self.free_bytes

        raw, need = cost(size)
        seconds, need = raw * factor + fixed[0], need + fixed[1]
        about = say_count(size, unit) + (f", {detail}" if detail else "")
        if fits(size):
            said = f"About {say_seconds(seconds)} and {say_bytes(need)} ({about}).{self._busy()}"
            return Estimate(seconds, need, said, raw)
        low, high = 0, size
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        room = max(0, self.free_bytes - RESERVE_BYTES)
        raise TooLarge(
            f"This run would take about {say_seconds(seconds)} and {say_bytes(need)} of memory ({about}); "
            f"{say_bytes(room)} can be used and runs are limited to {say_seconds(self.max_seconds)}.",
            f"Up to {say_count(round_down(low), unit)} fit{'s' if low == 1 else ''}."
            if low
            else "A smaller model fits.",
        )

    def _busy(self) -> str:
        if self.load <= self.cores or self.device.startswith("cuda"):
            return ""
        more = "several times longer" if self.load >= 2 * self.cores else "longer"
        return f" The machine is busy (load {self.load:.1f} on {say_count(self.cores, 'cores')}): it may take {more}."


class Observed:
    """Observed over foreseen seconds of each kind, kept beside the run store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        kept = read_json(path)
        self._ratios: dict[str, list[float]] = {
            k: [float(x) for x in v if isinstance(x, (int, float))][-_KEPT_RATIOS:]
            for k, v in (kept if isinstance(kept, dict) else {}).items()
            if isinstance(v, list)
        }

    def factor(self, kind: str) -> float:
        """Lower median of 1 and the ratios of the last runs of this kind."""
        with self._lock:
            ratios = self._ratios.get(kind)
            # With 1 among them, one run beside a busy neighbour does not decide.
            return statistics.median_low([1.0, *ratios]) if ratios else 1.0

    def add(self, kind: str, raw_seconds: float, seconds: float, slowdown: float = 1.0) -> None:
        """Remember what a run took.

        Args:
            kind: the handler's name.
            raw_seconds: foreseen.
            seconds: taken.
            slowdown: how many times slower a machine as busy as this one is (see ``slowdown``). It explains a run
                that was slow, so that the next one on a quiet machine is not foreseen to be, and no more than that.
        """
        if raw_seconds <= 0 or seconds <= 0:
            return
        seconds = max(seconds / max(1.0, slowdown), min(seconds, raw_seconds))
        with self._lock:
            ratios = self._ratios.setdefault(kind, [])
            ratios.append(min(50.0, max(0.02, seconds / raw_seconds)))
            del ratios[:-_KEPT_RATIOS]
            with contextlib.suppress(OSError):  # a full disk is no reason to fail the run
                write_json(self.path, self._ratios)


def say_count(count: int, unit: str) -> str:
    """A number and what is counted, whose plural is given: ``1 token``, ``1,024 tokens``."""
    return f"{count:,} {unit.removesuffix('s') if count == 1 else unit}"


def say_seconds(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 10:
        return f"{max(seconds, 0.1):.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def say_bytes(count: float) -> str:
    """Bytes as people say them (decimal units)."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(count / 1e6, 0):.0f} MB"


def round_down(n: int) -> int:
    """Two significant figures, downwards: a size that fits should not look more exact than the estimate."""
    digit = 10 ** max(0, len(str(n)) - 2)
    return n // digit * digit


def load_average() -> float:
    """Processes that run or wait for a core, mean of the last minute; 0 where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


def slowdown() -> float:
    """How many times slower a run is on this machine as busy as it is now, the run itself among its load."""
    return max(1.0, load_average() / usable_cores())


def usable_cores() -> int:
    """Cores that this process may use."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:
        return os.cpu_count() or 1
