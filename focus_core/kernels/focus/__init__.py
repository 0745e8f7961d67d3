"""Focus: attention over a window, sinks and shared groups."""

from focus_core.kernels.focus.api import BACKENDS, focus_attention

__all__ = ["BACKENDS", "focus_attention"]
