"""Exact attention over kept blocks of pairs."""

from focus_core.kernels.block_sparse.api import BACKENDS, block_sparse_attention

__all__ = ["BACKENDS", "block_sparse_attention"]
