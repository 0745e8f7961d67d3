"""Maps of tensors, by which a GPU's copy engine finds boxes of them."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from focus_core.kernels.cuda.libraries import driven, driver

_SIZE, _PLACE = 128, 64
_BITS_16, _NO_INTERLEAVING, _SWIZZLE_128, _TO_L2_BY_256, _ZEROS_OUTSIDE = 1, 0, 3, 3, 0
"""CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill."""


@functools.lru_cache(maxsize=256)
def tensor_map(start: int, sizes: tuple[int, ...], steps: tuple[int, ...], box: tuple[int, ...]) -> Any:
    """The map of a tensor of 16-bit numbers; what a box has outside the tensor is 0.

    Args:
        start: its address, a multiple of 16.
        sizes: of its dimensions, the one whose numbers lie together first.
        steps: of the other dimensions, in bytes, multiples of 16.
        box: numbers in each dimension that one copy brings; the first 64, which swizzled rows of 128 bytes have.

    Returns:
        An argument of a kernel that takes a ``Map``.

    Raises:
        RuntimeError: for what the driver refuses.
    """
    rank = len(sizes)
    # The driver wants a place that 64 divides.
    room = ctypes.create_string_buffer(_SIZE + _PLACE)
    found = (ctypes.c_char * _SIZE).from_buffer(room, -ctypes.addressof(room) % _PLACE)
    status = driver().cuTensorMapEncodeTiled(
        found, _BITS_16, rank, ctypes.c_void_p(start), (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * (rank - 1))(*steps), (ctypes.c_uint32 * rank)(*box), (ctypes.c_uint32 * rank)(*[1] * rank),
        _NO_INTERLEAVING, _SWIZZLE_128, _TO_L2_BY_256, _ZEROS_OUTSIDE,
    )  # fmt: skip
    driven(status, f"mapping a tensor of {sizes} by {steps}")
    return found
