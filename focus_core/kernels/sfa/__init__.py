"""SFA: attention over sparse feature codes of queries and keys (arXiv 2603.22300)."""

from focus_core.kernels.sfa.api import BACKENDS, sfa_attention
from focus_core.kernels.sfa.codes import SELECTIONS, Codes, code_bytes, encode, pack, sparsify, top_features, unpack

__all__ = [
    "BACKENDS",
    "SELECTIONS",
    "Codes",
    "code_bytes",
    "encode",
    "pack",
    "sfa_attention",
    "sparsify",
    "top_features",
    "unpack",
]
