"""Multi-head latent attention (arXiv 2405.04434): keys and values that are linear in a small cached latent."""

from focus_core.kernels.mla.api import FORMS, mla_attention

__all__ = ["FORMS", "mla_attention"]
