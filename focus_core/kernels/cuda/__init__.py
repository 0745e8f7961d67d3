"""Kernels in CUDA C++, compiled on the machine that runs them by the compiler that a CUDA build of torch brings."""

from focus_core.kernels.cuda.compiled import Kernel, compiler_refusal, kernel
from focus_core.kernels.cuda.maps import tensor_map

__all__ = ["Kernel", "compiler_refusal", "kernel", "tensor_map"]
