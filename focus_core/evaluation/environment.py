"""Where a figure was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from typing import Any

from focus_core import __version__


def environment(device: Any = "cpu") -> dict[str, Any]:
    """Versions, device, threads and time, as plain values for a result file.

    Args:
        device: the torch device (or its name) that computed.
    """
    import numpy
    import torch
    import transformers

    device = torch.device(device)
    found = {
        "focus_lab": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": numpy.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": device_name(device),
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return found | {"driver": driver()} if device.type == "cuda" else found


def driver() -> str | None:
    """The version of the GPU's driver; None where there is none."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.partition("\n")[0].strip() or None


def device_name(device: Any) -> str:
    """The device as people call it, for example ``NVIDIA H200`` or the CPU's model name."""
    import torch

    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
