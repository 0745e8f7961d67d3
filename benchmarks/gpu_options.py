"""What a benchmark on a GPU is asked for: refused in one line, before anything is computed, where it cannot be done."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import torch

from benchmarks.gpu_record import running
from focus_core.errors import FocusError
from focus_core.jobs.files import read_json

T = TypeVar("T")


class Options(argparse.ArgumentParser):
    """A parser with ``--json`` that says what is wrong in one line and ends with 2.

    Args:
        description: what the benchmark does.
        gpus: how many it needs.
        file: where the record is written unless ``--json`` says it; None where that must.
    """

    def __init__(self, description: str | None, gpus: int = 1, file: Path | None = None) -> None:
        super().__init__(description=description)
        self.gpus = gpus
        self.add_argument("--json", type=Path, required=file is None, default=file, help="where the record is written")

    def error(self, message: str) -> NoReturn:
        """Refuse arguments that cannot be read."""
        self.refuse(f"{message[:1].upper()}{message[1:]}. See {' '.join(running().split()[:3])} --help")

    def refuse(self, message: str) -> NoReturn:
        """End with 2 and one line."""
        self.exit(2, f"{message}.\n")

    def ready(self) -> argparse.Namespace:
        """The arguments, once there are GPUs and a file that can be written."""
        chosen = self.parse_args()
        self.check(chosen)
        return chosen

    def check(self, chosen: argparse.Namespace) -> None:
        """Refuse arguments that were read and cannot be served."""
        self.check_devices(getattr(chosen, "device", "cuda"))
        self.check_file(chosen.json)

    def check_devices(self, device: str) -> None:
        """Refuse a device that is not here."""
        if device not in ("cuda", "cpu"):
            self.refuse(f"{device!r} is no device of this: write cuda or cpu")
        there = torch.cuda.device_count()
        if device == "cuda" and there < self.gpus:
            self.refuse(f"This needs {self.gpus} NVIDIA GPU(s), and torch {torch.__version__} sees {there}")

    def check_file(self, path: Path) -> None:
        """Refuse a file that cannot be written, is something else, or is more than what would replace it."""
        # A device such as /dev/null would be replaced by the record.
        if path.exists() and not path.is_file():
            self.refuse(f"{path} is a folder or a device: name a file")
        if path.exists() and path.stat().st_size:
            found = read_json(path)
            if not isinstance(found, dict) or not {"command", "checks", "rows"} <= found.keys():
                self.refuse(f"{path} is there and is no record of a benchmark: name another file")
            if str(found["command"]).split()[:3] != running().split()[:3]:
                self.refuse(f"{path} holds what {found['command']} measured: name another file")
            if found.get("runs"):
                self.refuse(
                    f"{path} holds {len(found['runs'])} run(s) put together: name another file, and join it by "
                    "benchmarks.gpu_record"
                )
        made = [folder for folder in path.absolute().parents if not folder.exists()]
        try:
            path.absolute().parent.mkdir(parents=True, exist_ok=True)
            handle, probe = tempfile.mkstemp(dir=path.absolute().parent)
            os.close(handle)
            os.unlink(probe)
        except OSError as problem:
            self.refuse(f"{path} cannot be written ({problem.strerror}): name another file")
        finally:
            for empty in made:
                with contextlib.suppress(OSError):
                    empty.rmdir()


def loaded(load: Callable[[], T]) -> T:
    """What ``load`` gives; the program ends with 1 and one line where it says why it cannot."""
    try:
        return load()
    except FocusError as problem:
        raise SystemExit(str(problem)) from None


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def numbers(least: int = 1) -> Callable[[str], list[int]]:
    """Whole numbers from ``least`` on with commas between."""

    def read(text: str) -> list[int]:
        parts = [part.strip() for part in text.split(",")]
        if not all(part.isdecimal() and int(part) >= least for part in parts):
            raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers from {least} on, like 8192,32768")
        return [int(part) for part in parts]

    return read


def some_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Some of ``known`` with commas between."""

    def read(text: str) -> list[str]:
        parts = [part.strip() for part in text.split(",")]
        unknown = [part for part in parts if part not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}: it can be some of {', '.join(known)}")
        return parts

    return read
