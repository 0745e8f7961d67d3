"""Multi-head latent attention (arXiv 2405.04434): keys and values that are linear in a small cached latent."""

from focus_core.kernels.mla.api import FORMS, mla_attention
from focus_core.kernels.mla.forms import keys_and_values

__all__ = ["FORMS", "keys_and_values", "mla_attention"]
