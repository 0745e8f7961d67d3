"""Finished runs on disk: one folder a request, found again by its hash, the least recently used ones dropped first."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focus_core import __version__
from focus_core.jobs.files import cache_folder, read_json, write_json

FORMAT = 1
DEFAULT_BYTES = 2 << 30
_LEFTOVER_SECONDS = 24 * 3600


@dataclass(frozen=True)
class Run:
    """A finished run as it was stored."""

    kind: str
    request: dict[str, Any]
    result: dict[str, Any]
    seconds: float
    time: float


def default_root() -> Path:
    """``runs`` in the cache folder, or a temporary folder where that cannot be written."""
    root = cache_folder() / "runs"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if os.access(root, os.W_OK):
            return root
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="focus-lab-")) / "runs"


def key_of(kind: str, request: dict[str, Any], identity: Any = None) -> str:
    """Hash of everything that decides the result; the name of the run's folder."""
    document = json.dumps([FORMAT, __version__, kind, request, identity], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(document.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Store:
    """The folder of finished runs.

    A run's folder holds ``result.json`` (written last, atomically) and the files that its result names under
    ``files`` (``{"trace": "trace.npz"}``); ``load`` gives those names back as absolute paths.

    Args:
        root: the folder.
        max_bytes: size above which the least recently used runs are dropped, except those in ``pinned``.
    """

    def __init__(self, root: Path, max_bytes: int = DEFAULT_BYTES) -> None:
        self.root, self.max_bytes = root, max_bytes
        self.pinned: set[str] = set()
        self._lock = threading.Lock()
        root.mkdir(parents=True, exist_ok=True)

    def folder(self, key: str) -> Path:
        """Where the run of that key lives."""
        return self.root / key

    def load(self, key: str) -> Run | None:
        """The finished run, marked as just used; None when there is none or a file of it is gone."""
        if not key.isalnum():
            return None
        path = self.folder(key) / "result.json"
        kept = read_json(path)
        if not isinstance(kept, dict) or kept.get("format") != FORMAT or not isinstance(kept.get("result"), dict):
            return None
        result = self.absolute(key, kept["result"])
        if not all(Path(result[name]).is_file() for name in kept["result"].get("files", {})):
            return None
        try:
            os.utime(path)
        except OSError:
            return None
        return Run(kept["kind"], kept["request"], result, kept["seconds"], kept["time"])

    def unfinished(self, key: str) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
        """Request and partial results of a run that was begun and can go on; None when there is none."""
        if not key.isalnum():
            return None
        asked = read_json(self.folder(key) / "request.json")
        parts = self.partials(key)
        return (asked, parts) if isinstance(asked, dict) and parts else None

    def partials(self, key: str) -> list[dict[str, Any]]:
        """Partial results that an unfinished run left."""
        found = []
        with contextlib.suppress(OSError):
            for line in (self.folder(key) / "partial.jsonl").read_text("utf-8").splitlines():
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return found

    def absolute(self, key: str, result: dict[str, Any]) -> dict[str, Any]:
        """The result with the files it names as absolute paths."""
        return {**result, **{name: str(self.folder(key) / file) for name, file in result.get("files", {}).items()}}

    def save(self, key: str, kind: str, request: dict[str, Any], result: dict[str, Any], seconds: float) -> None:
        """Keep a finished run, then make room."""
        document = {"format": FORMAT, "kind": kind, "request": request, "result": result}
        write_json(self.folder(key) / "result.json", {**document, "seconds": seconds, "time": time.time()})
        self.make_room({key})

    def make_room(self, keep: set[str]) -> None:
        """Drop the least recently used runs until the store fits; those in ``keep`` stay."""
        with self._lock:
            runs = []
            for folder in self.root.iterdir():
                if folder.is_dir():
                    files = [(f, s) for f in folder.iterdir() if (s := _stat(f)) is not None]
                    mark = _stat(folder / "result.json")
                    used = mark.st_mtime if mark else max((s.st_mtime for _, s in files), default=0.0)
                    runs.append((used, folder, sum(s.st_size for _, s in files), mark is not None))
            total = sum(size for _, _, size, _ in runs)
            for used, folder, size, whole in sorted(runs, key=lambda r: r[0]):
                if folder.name in keep or folder.name in self.pinned:
                    continue
                leftover = not whole and time.time() - used > _LEFTOVER_SECONDS
                if total > self.max_bytes or leftover:
                    shutil.rmtree(folder, ignore_errors=True)
                    total -= size


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
