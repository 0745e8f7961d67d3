"""Focus: attention over a window, sinks and shared groups."""

from focus_core.kernels.focus.api import BACKENDS, focus_attention
from focus_core.kernels.focus.choose import Choice, choose_backend

__all__ = ["BACKENDS", "Choice", "choose_backend", "focus_attention"]
