"""Kernels compiled from CUDA C++, once a process, and their launches."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from focus_core.errors import NotAvailable
from focus_core.kernels.cuda.libraries import compiler, driven, driver, translate

_INSTRUCTIONS = Path(__file__).with_name("instructions.cu")
_DYNAMIC_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""


class _Launch(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]


class Kernel:
    """One compiled kernel on one GPU.

    Args:
        code: machine code.
        name: of the kernel, in C.
        threads: of a block.
        shared: bytes of shared memory of a block.
        device: the GPU.
    """

    def __init__(self, code: bytes, name: str, threads: int, shared: int, device: torch.device) -> None:
        self.threads, self.shared, self.device = threads, shared, device
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            _context(device)
            driven(driver().cuModuleLoadData(ctypes.byref(self._module), code), "loading a kernel")
            found = driver().cuModuleGetFunction(ctypes.byref(self._function), self._module, name.encode())
            driven(found, f"looking for {name}")
            driven(driver().cuFuncSetAttribute(self._function, _DYNAMIC_SHARED, shared), f"giving {shared} bytes")

    def clusters(self, size: int) -> int:
        """How many clusters of ``size`` blocks run at once."""
        config, count = _Launch(size, 1, 1, self.threads, 1, 1, self.shared, None, None, 0), ctypes.c_int()
        with torch.cuda.device(self.device):
            _context(self.device)
            status = driver().cuOccupancyMaxActiveClusters(ctypes.byref(count), self._function, ctypes.byref(config))
            driven(status, f"counting clusters of {size}")
        return count.value

    def launch(self, grid: tuple[int, int, int], arguments: Sequence[Any]) -> None:
        """Run on torch's current stream.

        Args:
            grid: blocks in each direction.
            arguments: the kernel's, of its own types in C.
        """
        places = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(x) for x in arguments))
        with torch.cuda.device(self.device):
            _context(self.device)
            stream = ctypes.c_void_p(torch.cuda.current_stream(self.device).cuda_stream)
            status = driver().cuLaunchKernel(
                self._function, *grid, self.threads, 1, 1, self.shared, stream, places, None
            )
        driven(status, "launching a kernel")


def _context(device: torch.device) -> None:
    """A thread that has called the driver only has no context of its own."""
    context = ctypes.c_void_p()
    driven(driver().cuCtxGetCurrent(ctypes.byref(context)), "looking for a context")
    if not context.value:
        number = ctypes.c_int()
        driven(driver().cuDeviceGet(ctypes.byref(number), device.index or 0), "looking for a device")
        driven(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), number), "taking the context")
        driven(driver().cuCtxSetCurrent(context), "taking the context")


@functools.lru_cache
def kernel(
    path: Path, name: str, constants: tuple[tuple[str, int], ...], threads: int, shared: int, device: torch.device
) -> Kernel:
    """Compile a kernel for a GPU; the same one is compiled once.

    Args:
        path: the source, which may use what ``instructions.cu`` defines.
        name: the kernel's.
        constants: macros and their values; ``BF16`` is 1 or 0 for fp16.
        threads: of a block.
        shared: bytes of shared memory of a block.
        device: the GPU, with its index.

    Raises:
        NotAvailable: where there is no compiler, or it refuses.
    """
    code, _ = translate(written(path, constants), options(torch.cuda.get_device_capability(device)))
    return Kernel(code, name, threads, shared, device)


def written(path: Path, constants: tuple[tuple[str, int], ...]) -> str:
    """The whole program."""
    macros = "".join(f"#define {name} {value}\n" for name, value in constants)
    return macros + _INSTRUCTIONS.read_text(encoding="utf-8") + path.read_text(encoding="utf-8")


def options(capability: tuple[int, int]) -> list[str]:
    """What the compiler is told."""
    major, minor = capability
    # Copies to all blocks of a cluster are slower in code that later GPUs could run too.
    return [f"--gpu-architecture=sm_{major}{minor}{'a' if major == 9 else ''}", "--std=c++17"]


@functools.lru_cache
def compiler_refusal() -> str | None:
    """Why nothing can be compiled here: one sentence, or None where it can."""
    try:
        compiler()
        driver()
    except NotAvailable as reason:
        return reason.message
    return None
