"""A small vision transformer whose attention is a variant: softmax, KArAt, or XAttention on a trained softmax.

Nothing here imports torch before it is needed; ``config`` and ``models`` can list and count without it.
"""
