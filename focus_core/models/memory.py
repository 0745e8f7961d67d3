"""Whether a model fits in free memory, before anything of it is loaded."""

from __future__ import annotations

from pathlib import Path

from focus_core.errors import TooLarge

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
MARGIN = 1.1
"""Room beside the weights for buffers and the reading itself."""


def free_memory(device: str = "cpu") -> int:
    """Bytes that can still be taken on a device; on the CPU what the machine and the container's limit leave."""
    if str(device).startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    try:
        import psutil

        free = int(psutil.virtual_memory().available)
    except ImportError:
        free = _available(Path("/proc/meminfo"))
    return min(free, _container_room(Path("/sys/fs/cgroup")))


def check_fits(name: str, values: int, dtype: str, device: str = "cpu", free: int | None = None) -> None:
    """Refuse a model whose weights do not fit in free memory.

    Args:
        name: the model, for the message.
        values: number of weights.
        dtype: the dtype they would be loaded in, for example ``float32``.
        device: where they would be.
        free: free bytes; measured by default.

    Raises:
        TooLarge: with both sizes; the hint offers bfloat16 where that fits.
    """
    free = free_memory(device) if free is None else free
    need = values * BYTES[dtype] * MARGIN
    if need <= free:
        return
    place = "memory" if str(device) == "cpu" else f"memory on {device}"
    half = values * 2 * MARGIN
    if BYTES[dtype] > 2 and half <= free:
        hint = f"In bfloat16 it needs {_size(half)}, which fits: load it with dtype bfloat16."
    else:
        fitting = int(free / (2 * MARGIN))
        hint = f"Free memory, or use a model of at most {_count(fitting)} weights in bfloat16."
    raise TooLarge(
        f"{name} has {_count(values)} weights and needs {_size(need)} in {dtype}; {_size(free)} of {place} is free.",
        hint,
    )


def _available(path: Path) -> int:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def _container_room(root: Path) -> int:
    """What a cgroup's limit leaves, counting file cache that can be dropped as free; huge when there is no limit."""
    try:
        limit = (root / "memory.max").read_text().strip()
        if limit == "max":
            return 1 << 62
        used = int((root / "memory.current").read_text())
        fields = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        return int(limit) - used + int(fields.get("inactive_file", 0))
    except (OSError, ValueError):
        return 1 << 62


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _count(count: float) -> str:
    return f"{count / 1e9:.2f} billion" if count >= 1e9 else f"{count / 1e6:.1f} million"
