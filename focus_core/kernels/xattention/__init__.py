"""XAttention: which blocks of pairs to keep, by antidiagonal sums of their scores (arXiv 2503.16428)."""

from focus_core.kernels.xattention.api import MODES, BlockScores, sampled_pairs, xattention_scores
from focus_core.kernels.xattention.masks import causal_block_mask, xattention_block_mask, xattention_warmed
from focus_core.kernels.xattention.select import Selection, select_blocks

__all__ = [
    "MODES",
    "BlockScores",
    "Selection",
    "causal_block_mask",
    "sampled_pairs",
    "select_blocks",
    "xattention_block_mask",
    "xattention_scores",
    "xattention_warmed",
]
