"""What the soft kernels share: a tile's rows, its scores, the gate of its pairs, and the gate's gradient.

With one group a key, two tokens agree with the chance ``sum_c q_c k_c``: a product of matrices. With more it is
``1 - prod_c (1 - q_c k_c)``, made group by group. The gate is a factor of the softmax's weight, ``floor + rest * a``:
exp(score + log(gate)) without the logarithm, and its gradient without a division by a number as small as the floor.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows(P, n, step, stop, D: tl.constexpr, DP: tl.constexpr, CUT: tl.constexpr):
    """Rows ``n`` of D numbers, padded by 0 to DP; with CUT, 0 from ``stop`` on."""
    d = tl.arange(0, DP)
    at = P + n.to(tl.int64)[:, None] * step + d[None, :]
    if CUT:
        x = tl.load(at, mask=(n < stop)[:, None] & (d < D)[None, :], other=0.0)
    elif D < DP:
        x = tl.load(at, mask=(d < D)[None, :], other=0.0)
    else:
        x = tl.load(at)
    return x


@triton.jit
def base2(x, unit, cap_in, cap_out, CAPPED: tl.constexpr):
    """Scores in base 2 of products of query and key, and the slope that the soft cap leaves them."""
    slope = 1.0
    if CAPPED:
        t = 1.0 - 2.0 / (tl.exp2(x * cap_in) + 1.0)
        slope = 1.0 - t * t
        x = t * cap_out
    else:
        x = x * unit
    return x, slope


@triton.jit
def _apart(A, B, a, b, c, KP: tl.constexpr):
    """1 - a_c b_c of all pairs, kept above 0 so that the others' product is a quotient; and b_c."""
    one, other = tl.load(A + a * KP + c), tl.load(B + b * KP + c)
    return tl.maximum(1.0 - one[:, None] * other[None, :], 1e-6), other


@triton.jit
def agreement(
    xa, xb, A, B, a, b, GROUPS: tl.constexpr, KP: tl.constexpr, PRODUCT: tl.constexpr, DOT: tl.constexpr
):  # fmt: skip
    """Chance that tokens ``a`` and tokens ``b`` share a group: (a, b); and with PRODUCT that they share none.

    Without PRODUCT from the tiles ``xa`` and ``xb``; with it from the rows ``a`` of A and ``b`` of B.
    """
    if PRODUCT:
        apart = tl.full([a.shape[0], b.shape[0]], 1.0, tl.float32)
        for c in range(GROUPS):
            factor, _ = _apart(A, B, a, b, c, KP)
            apart *= factor
        shared = 1.0 - apart
    else:
        shared = tl.dot(xa, tl.trans(xb), input_precision=DOT)
        apart = shared
    return shared, apart


@triton.jit
def pull(
    acc, t, apart, xb, A, B, a, b, GROUPS: tl.constexpr, KP: tl.constexpr, PRODUCT: tl.constexpr, DOT: tl.constexpr
):  # fmt: skip
    """Add the gradient of the memberships of tokens ``a`` to ``acc`` (a, KP), where ``t`` (a, b) is the agreement's."""
    if PRODUCT:
        t = t * apart
        group = tl.arange(0, KP)
        for c in range(GROUPS):
            factor, other = _apart(A, B, a, b, c, KP)
            one = tl.sum(t / factor * other[None, :], 1)
            acc += tl.where((group == c)[None, :], one[:, None], 0.0)
    else:
        acc = tl.dot(t.to(xb.dtype), xb, acc, input_precision=DOT)
    return acc
