"""Sparse feature codes in numpy: what survives, how two codes overlap, one tile step by step, and the figures."""
