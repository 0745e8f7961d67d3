"""What every command writes: JSON files, tables for a person, and a progress bar."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from focus_core.errors import InvalidInput
from focus_core.jobs.files import read_json
from focus_core.jobs.files import write_json as write_packed
from focus_core.launched import processes

_BAR = 24
_WIDTH = 100


def check_writable(path: str) -> None:
    """Refuse a result file that could not be written, before the work is done.

    Raises:
        InvalidInput: no such folder, or no permission.
    """
    if path == "-":
        return
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise InvalidInput(f"There is no folder {folder} for {path}.", "Create it, or name another file.")
    if Path(path).is_dir():
        raise InvalidInput(f"{path or 'An empty name'} cannot be written: it is a folder.", "Name a file.")
    if Path(path).exists() and not Path(path).is_file():
        # It would be replaced: with enough rights that is the end of /dev/null.
        raise InvalidInput(f"{path} is a device or a pipe.", "Name a file, or - for the standard output.")
    try:
        # Permissions do not tell all: a file system may refuse whatever they say.
        handle, probe = tempfile.mkstemp(dir=folder, prefix=f".{Path(path).name}-")
        os.close(handle)
        os.unlink(probe)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written ({error.strerror}).", "Name another file.") from None


def check_json(path: str) -> None:
    """Refuse a result file that could not be written, or whose name belongs to something that is no JSON.

    Raises:
        InvalidInput: as ``check_writable``, or another file is there.
    """
    check_writable(path)
    file = Path(path)
    if path != "-" and file.is_file() and file.stat().st_size and read_json(file) is None:
        raise InvalidInput(f"{path} is there and is no JSON.", "Name another file, or remove it first.")


def adapter_folder(path: str, what: str = "the adapter") -> Path:
    """The folder that an adapter, or ``what`` else, is to be written to, made before the work is done.

    Raises:
        InvalidInput: no name, a file is there, or the folder cannot be written to.
    """
    if not path.strip():
        raise InvalidInput(f"No folder for {what} is named.", "Name one, such as build/one.")
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file.", f"Name a folder for {what}.")
    made = [f for f in (folder, *folder.parents) if not f.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, probe = tempfile.mkstemp(dir=folder)
        os.close(handle)
        os.unlink(probe)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written ({error.strerror}).", "Name another folder.") from None
    finally:
        # What comes of the work makes them again; work that fails leaves no empty folders.
        for empty in made:
            if empty.is_dir():
                empty.rmdir()
    return folder


def write_json(document: Any, path: str) -> None:
    """Write one JSON document atomically, packed where its name ends in ``.gz``; not finite numbers become null."""
    if path.endswith(".gz"):
        write_packed(Path(path).absolute(), _plain(document))
        return
    text = json.dumps(_plain(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    target = Path(path).absolute()
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def rows(headers: Sequence[str], body: Sequence[Sequence[Any]]) -> str:
    """A table: numbers to the right, words to the left."""
    text = [[show(cell) for cell in row] for row in body]
    widths = [max(len(h), *(len(row[i]) for row in text)) if text else len(h) for i, h in enumerate(headers)]
    numeric = [all(isinstance(row[i], (int, float, type(None))) for row in body) for i in range(len(headers))]

    def line(cells: Sequence[str]) -> str:
        padded = (c.rjust(w) if right else c.ljust(w) for c, w, right in zip(cells, widths, numeric, strict=True))
        return "  ".join(padded).rstrip()

    return "\n".join([line(headers), line(["-" * w for w in widths]), *map(line, text)])


def pairs(items: Sequence[tuple[str, Any]]) -> str:
    """Names and values, one a line."""
    width = max(len(name) for name, _ in items)
    return "\n".join(f"{name.ljust(width)}  {show(value)}" for name, value in items)


def show(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value)


def settings_text(config: dict[str, Any]) -> str:
    """A config on one line."""
    return ", ".join(f"{name}={value}" for name, value in config.items()) or "none"


def bar() -> Callable[[float, str], None]:
    """A progress callback that draws a bar on stderr; silent without a terminal, and in all processes but the first."""
    if not sys.stderr.isatty() or processes()[0]:
        return lambda fraction, message: None

    def draw(fraction: float, message: str) -> None:
        full = round(_BAR * min(max(fraction, 0.0), 1.0))
        line = f"[{'#' * full}{'.' * (_BAR - full)}] {fraction:4.0%} {message}"
        sys.stderr.write("\r\x1b[2K" + line[:_WIDTH])
        if fraction >= 1.0:
            sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()

    return draw


@contextmanager
def stop_request() -> Iterator[Callable[[], bool]]:
    """A cancel callback that the first Ctrl-C or SIGTERM turns on, so that work ends at a good place.

    The second Ctrl-C ends at once. SIGTERM is how launchers and clusters ask.
    """
    asked = False

    def note(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def clear_progress() -> None:
    """Remove a bar that was left on the terminal."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[2K")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, (int, float)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
