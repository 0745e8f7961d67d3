"""Starts the app on a free port and a Chromium that looks at it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def served(**environment: str) -> Iterator[str]:
    """The app's address; by default with the engine of ``tests.app.fake``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "FOCUS_LAB_ENGINE": "tests.app.fake:make", "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-m", "streamlit", "run", "app/main.py", "--server.port", str(port)]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(
            [*command, "--server.headless", "true"], cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            _wait(port, server, log)
            yield f"http://localhost:{port}"
        finally:
            server.terminate()
            server.wait(20)


def _wait(port: int, server: subprocess.Popen, log: Any) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if server.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    log.seek(0)
    raise RuntimeError("the app did not start:\n" + log.read())


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser of Playwright on the Chromium that is installed."""
    from playwright.sync_api import sync_playwright

    names = (os.environ.get("FOCUS_LAB_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, filter(None, names))), None)
    if path is None:
        raise RuntimeError("No Chromium is installed: install the package chromium.")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
