"""The runs of the vision experiment, their order, and which of them a record has already."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from focus_core.errors import InvalidInput
from focus_core.vision.config import PRESETS, ViTConfig

if TYPE_CHECKING:
    from focus_core.vision.training import Recipe

KARAT: dict[str, Any] = {"kind": "karat"}
ARMS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "G3B": KARAT,
    "G3U": KARAT | {"scope": "universal"},
    "G1B": KARAT | {"grid": 1},
    "G5B": KARAT | {"grid": 5},
    "G3B-r2": KARAT | {"rank": 2},
    "G3B-r4": KARAT | {"rank": 4},
    "G3B-row": KARAT | {"projection": "row"},
    "G3B-rank": KARAT | {"projection": "rank"},
    "bspline": KARAT | {"basis": "bspline"},
    "wavelet": KARAT | {"basis": "wavelet"},
    "fractal": KARAT | {"basis": "fractal"},
    "full": KARAT | {"rank": None},
}
TINY = tuple(arm for arm in ARMS if arm != "full")
SMALL = ("softmax", "G3B", "G3U", "G1B", "G3B-row")
SHIP = (
    ("tiny", "softmax"),
    ("tiny", "G3B"),
    ("tiny", "G3U"),
    ("tiny", "G3B-row"),
    ("small", "softmax"),
    ("small", "G3B"),
)
RATES, DIGITS_RATES = (1e-3, 4e-3), (2e-3, 8e-3)
"""Learning rates that the softmax control is trained with too, so that it is not weak by the recipe's."""
TITLES = {
    "softmax": "softmax",
    "G3B": "Fourier-KArAt G3B",
    "G3U": "Fourier-KArAt G3U",
    "G3B-row": "G3B on the simplex",
    "full": "full operator",
}


@dataclass(frozen=True)
class Run:
    """One training."""

    size: str
    arm: str
    seed: int
    rate: float | None = None

    @property
    def name(self) -> str:
        """Of its files."""
        tail = "" if self.rate is None else f"-lr{self.rate:g}"
        return f"{self.size}-{self.arm}-s{self.seed}{tail}"


def plan() -> list[Run]:
    """All runs on Fashion-MNIST, those that decide most first.

    After the three arms that carry the comparison: the projections, since no run had one; the other seeds of what had
    one seed; ranks; then the grid and the bases, one seed of each before the second of any.
    """
    first = [
        Run(size, arm, seed) for seed in range(3) for size in ("small", "tiny") for arm in ("softmax", "G3B", "G3U")
    ]
    long = [Run("long", "softmax", 0)]
    rates = [Run(size, "softmax", 0, rate) for size in ("small", "tiny") for rate in RATES]
    decide = [
        Run(size, arm, seed)
        for size, arm in (
            ("tiny", "G3B-row"),
            ("tiny", "G3B-rank"),
            ("tiny", "G1B"),
            ("small", "G1B"),
            ("small", "G3B-row"),
            ("tiny", "G3B-r2"),
            ("tiny", "G3B-r4"),
        )
        for seed in range(3)
    ]
    rest = [
        Run(size, arm, seed) for seed in range(3) for size, arms in (("small", SMALL), ("tiny", TINY)) for arm in arms
    ]
    return list(dict.fromkeys([*long, *first, *rates, *decide, *rest]))


def digits_plan() -> list[Run]:
    """The runs on digits: the full operator beside rank 12 and softmax."""
    runs = [Run("digits", arm, seed) for seed in range(3) for arm in ("softmax", "G3B", "full")]
    return [*runs, *(Run("digits", "softmax", 0, rate) for rate in DIGITS_RATES)]


def chosen(runs: Sequence[Run], wanted: Sequence[str]) -> list[Run]:
    """The runs of some arms, of arms of one size (``tiny-G5B``) or of some names (``tiny-G5B-s0``).

    Every first seed comes before any second one, so that what is cut off leaves each arm a run.

    Raises:
        InvalidInput: no run is called so.
    """
    found: dict[Run, tuple[int, int]] = {}
    for place, name in enumerate(wanted):
        named = [run for run in runs if name in (run.arm, f"{run.size}-{run.arm}", run.name)]
        if not named:
            known = ", ".join(dict.fromkeys(run.arm for run in runs))
            raise InvalidInput(f"No run is called {name}.", f"Name an arm ({known}) or a run, like {runs[0].name}.")
        for run in named:
            found.setdefault(run, (run.seed, place))
    return sorted(found, key=found.__getitem__)


def config_of(run: Run) -> ViTConfig:
    """The run's model."""
    return PRESETS[run.size].with_attention(**ARMS[run.arm])


def recipe_of(run: Run, changes: dict[str, Any] | None = None) -> Recipe:
    """The run's training: the same for every arm, half the epochs for long images."""
    from focus_core.vision.training import DIGITS_RECIPE, Recipe

    base = DIGITS_RECIPE if run.size == "digits" else Recipe()
    recipe = dataclasses.replace(base, seed=run.seed, **(changes or {}))
    if run.size == "long":
        recipe = dataclasses.replace(recipe, epochs=max(recipe.epochs // 2, 1))
    return recipe if run.rate is None else dataclasses.replace(recipe, learning_rate=run.rate)


def is_recorded(run: Run, document: dict[str, Any]) -> bool:
    """Whether a record has this run: of this model, by this recipe.

    Of a run at another rate a record keeps the accuracy alone; it was made with its control, by the same recipe.
    """
    held = {one["name"]: one for one in document.get("runs", [])}
    found = held.get(run.name)
    if run.rate is not None:
        control = dataclasses.replace(run, rate=None)
        told = any((row["name"], row["rate"]) == (run.name, run.rate) for row in document.get("rates", []))
        return told and is_recorded(control, document)
    return found is not None and (found["model"], found["recipe"]) == (
        config_of(run).as_dict(),
        dataclasses.asdict(recipe_of(run)),
    )


def open_runs(runs: Sequence[Run], document: dict[str, Any] | None) -> list[Run]:
    """The runs that a record does not have, in their order."""
    return [run for run in runs if document is None or not is_recorded(run, document)]
