"""The parts of the XAttention page."""
