"""The synthetic engine that answers every page: comparisons, training, k-means and collapse. By FOCUS_LAB_ENGINE."""

from __future__ import annotations

from pathlib import Path

from focus_core import assets
from tests.app import fake, fake_compare, fake_train


class EveryEngine(fake_train.TrainEngine, fake_compare.CompareEngine):
    """Each of the two answers its own kinds of job and leaves the others to the next."""


def shipped() -> dict:
    """What ships for comparisons, and what was kept here."""
    return {**fake_train.shipped(), **fake_compare.shipped()}


def make() -> EveryEngine:
    """The engine."""
    assets.adapters = shipped
    base = fake.make()
    return EveryEngine(Path(base.folder), base.seconds)
