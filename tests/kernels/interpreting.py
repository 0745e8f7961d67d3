"""Runs a module of cases under Triton's interpreter, for the tests that read its lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def interpreted(module: str) -> dict[str, dict]:
    """What ``python -m tests.kernels.MODULE`` prints, by each line's name.

    It is a process of its own, because Triton reads TRITON_INTERPRET when the kernels are defined.
    """
    done = subprocess.run(
        [sys.executable, "-m", f"tests.kernels.{module}"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
