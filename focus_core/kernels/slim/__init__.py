"""Slim attention: keys and values made from one cached state a token (arXiv 2503.05840)."""

from focus_core.kernels.slim.api import BACKENDS, slim_attention
from focus_core.kernels.slim.sparse import slim_from_rotated
from focus_core.kernels.slim.turned import Turned

__all__ = ["BACKENDS", "Turned", "slim_attention", "slim_from_rotated"]
