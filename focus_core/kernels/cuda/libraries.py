"""NVIDIA's run-time compiler and driver, called in C: both interfaces are public and keep still."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from pathlib import Path

import torch

from focus_core.errors import NotAvailable


@functools.lru_cache
def compiler() -> ctypes.CDLL:
    """NVRTC, of torch's own CUDA version.

    Raises:
        NotAvailable: where it is not found, or cannot be loaded.
    """
    version = torch.version.cuda
    if version is None:
        raise NotAvailable("CUDA C++ kernels need a CUDA build of torch.", "backend='auto' works.")
    name = f"libnvrtc.so.{version.split('.')[0]}"
    problems = []
    for folder in _folders():
        if not (folder / name).exists():
            continue
        try:
            # The compiler looks for these by name alone, where the loader looks.
            for part in folder.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(part), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(folder / name))
        except OSError as problem:
            problems.append(f"{folder / name}: {problem}")
    try:
        return ctypes.CDLL(name)
    except OSError as problem:
        problems.append(str(problem))
    raise NotAvailable(
        f"CUDA C++ kernels are compiled by NVRTC, which could not be loaded: {'; '.join(problems)}.",
        f"pip install nvidia-cuda-nvrtc=={version}.*",
    )


def _folders() -> list[Path]:
    found = [Path(torch.__file__).parent / "lib"]
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or [] if spec is not None else []:
        found += sorted(path / "lib" for path in Path(root).iterdir() if path.is_dir())
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    return [*found, Path(home) / "lib64"]


@functools.lru_cache
def driver() -> ctypes.CDLL:
    """The CUDA driver.

    Raises:
        NotAvailable: where there is none.
    """
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as problem:
        raise NotAvailable(f"There is no CUDA driver: {problem}.", "backend='auto' works.") from problem


def driven(status: int, doing: str) -> None:
    """Raise ``RuntimeError`` where a driver's call did not succeed."""
    if status:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"CUDA error {status} while {doing}: {(text.value or b'unknown').decode()}.")


def translate(source: str, options: list[str]) -> tuple[bytes, str]:
    """Machine code of CUDA C++, and what the compiler says.

    Args:
        source: the program.
        options: of NVRTC; a real architecture (sm_90) among them.

    Raises:
        NotAvailable: where there is no compiler, or it refuses; with what it says.
    """
    nvrtc, program, size = compiler(), ctypes.c_void_p(), ctypes.c_size_t()
    # A function of C takes Python's strings as wide ones, so all are bytes.
    status = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    if status:
        raise NotAvailable(f"NVRTC does not start: error {status}.", "backend='auto' works.")
    try:
        given = (ctypes.c_char_p * len(options))(*(x.encode() for x in options))
        status = nvrtc.nvrtcCompileProgram(program, len(options), given)
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        said = log.value.decode(errors="replace")
        if status:
            raise NotAvailable(
                f"NVRTC does not compile a kernel: error {status}. {said}"[:2000], "backend='auto' works."
            )
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, code)
        return code.raw, said
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
