"""Performer's attention: the softmax kernel estimated by random features, in linear time (arXiv 2009.14794)."""

from focus_core.kernels.performer.api import BACKENDS, performer_attention
from focus_core.kernels.performer.features import log_features, orthogonal_projection
from focus_core.kernels.performer.linear import Prefix

__all__ = ["BACKENDS", "Prefix", "log_features", "orthogonal_projection", "performer_attention"]
