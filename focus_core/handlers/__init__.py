"""What the engine can do: one file a kind, found by its name here; no second list.

A handler module defines::

    def run(request: dict, context: focus_core.worker.Context) -> dict      # in the worker; may import torch inside
    def estimate(request: dict, host: focus_core.jobs.Host) -> Estimate     # in the app's process: no torch, < 10 ms

``estimate`` also checks the request and raises ``InvalidInput`` or ``TooLarge`` before anything runs. Optional:
``identity(request)`` (JSON values that decide the result beside the request, such as the age of a file it names),
``STORED = False`` (the result is not kept), ``RESUMES = True`` (``context.earlier()`` gives the partial results of
an unfinished run of the same request). The module imports no torch at its top.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from types import ModuleType

from focus_core.errors import InvalidInput

EXTRA = "FOCUS_LAB_HANDLERS"
"""Environment variable with further packages of handlers, separated by commas."""


def kinds(extra: tuple[str, ...] = ()) -> list[str]:
    """Names of all kinds of work."""
    return sorted({kind for _, kind in _found(extra)})


def handler(kind: str, extra: tuple[str, ...] = ()) -> ModuleType:
    """The module that does this kind of work; the last package that has it wins.

    Raises:
        InvalidInput: there is no such kind.
    """
    places = [package for package, name in _found(extra) if name == kind]
    if not places:
        raise InvalidInput(f"There is no work of the kind {kind!r}.", f"There is {', '.join(kinds(extra))}.")
    return importlib.import_module(f"{places[-1]}.{kind}")


def _found(extra: tuple[str, ...]) -> list[tuple[str, str]]:
    named = extra or tuple(filter(None, os.environ.get(EXTRA, "").split(",")))
    return [
        (package, module.name)
        for package in (__name__, *named)
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
        if not module.name.startswith("_")
    ]
