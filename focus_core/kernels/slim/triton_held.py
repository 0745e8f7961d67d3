"""Slim attention's states by columns: a program reads only its own columns of the keys, scores and weights them.

A program has some heads whole, so it scores them for its columns alone; weighting needs the scores of all heads. The
programs of a group hand them to each other through memory, where a score that has not come yet is a number that no
score is: who needs it looks at the score itself, without counters and fences, and asks for it before the next keys. The
keys cross the GPU's L2 cache once: they wait for the scores in registers, or are read again from L1.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _own_scores(
    k, q, q2, BIAS, COS, SIN, j, there, at, col, WIDTH: tl.constexpr, D: tl.constexpr, TURNED: tl.constexpr,
    BIASED: tl.constexpr, CHUNK: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """(CHUNK, OWN) products of the program's heads with its columns."""
    x = k.to(tl.float32)
    if BIASED:
        x += tl.load(BIAS + col, mask=col < WIDTH, other=0.0).to(tl.float32)[None, :]
    x = tl.reshape(x, [CHUNK, OWN, D])
    if TURNED:
        # The rotation of the key, moved to the query: one product a number, and no halves to take apart.
        d = tl.arange(0, D)
        angle = (at + j.to(tl.int64))[:, None, None] * (D // 2) + (d % (D // 2))[None, None, :]
        cos = tl.load(COS + angle, mask=there[:, None, None], other=0.0)
        sin = tl.load(SIN + angle, mask=there[:, None, None], other=0.0)
        return tl.sum(x * (q * cos + q2 * sin), 2)
    else:
        return tl.sum(x * q, 2)


@triton.jit
def _any(x, SIZE: tl.constexpr):
    """Whether some of the numbers hold: 1 or 0."""
    return tl.max(tl.reshape(x.to(tl.int32), [SIZE], can_reorder=True), 0)


@triton.jit(do_not_specialize=["past", "per"])
def attend_held(
    Q, STATE, BIAS, COS, SIN, SCORES, FIRST, PART, MOST, SUM,
    sb, st, angles, unit, cap_in, cap_out, past, per,
    H: tl.constexpr, HP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, WP: tl.constexpr, COLS: tl.constexpr,
    CHUNK: tl.constexpr, LAG: tl.constexpr, AGAIN: tl.constexpr, TURNED: tl.constexpr, BIASED: tl.constexpr,
    CAPPED: tl.constexpr, PADDED: tl.constexpr, NEGATIVE: tl.constexpr, SCORE: tl.constexpr, WEIGHT: tl.constexpr,
    SWAP: tl.constexpr, DOT: tl.constexpr, PATIENCE: tl.constexpr,
):  # fmt: skip
    """One program's columns of the sums over its group's keys; parameters as those of ``triton_decode._attend``."""
    slice, split, b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    group = b * tl.num_programs(1) + split
    OWN: tl.constexpr = COLS // D
    h, mine, d = tl.arange(0, HP), slice * OWN + tl.arange(0, OWN), tl.arange(0, D)
    col = slice * COLS + tl.arange(0, COLS)
    real = (mine < H)[:, None] & (d < D)[None, :]
    at_q = Q + b * H * D + mine[:, None] * D
    q = tl.load(at_q + d[None, :], mask=real, other=0.0).to(tl.float32)
    q2 = q
    if TURNED:
        q2 = tl.load(at_q + ((d + D // 2) % D)[None, :], mask=real, other=0.0).to(tl.float32)
        q2 = tl.where((d < D // 2)[None, :], q2, -q2)
    if NEGATIVE:
        q, q2 = -q, -q2
    q, q2 = q[None, :, :], q2[None, :, :]
    first = 0
    if PADDED:
        first = tl.load(FIRST + b).to(tl.int32)
    begin = split * per
    stop = tl.minimum(begin + per, past)
    count = tl.maximum(0, (stop - begin + CHUNK - 1) // CHUNK)
    S, TO = STATE + b * sb + col[None, :], SCORES + b * past * HP
    wide = (col < WIDTH)[None, :]
    m = tl.full([HP], -1e30, tl.float32)
    total = tl.zeros([CHUNK, HP], tl.float32)
    acc = tl.zeros([COLS, HP] if SWAP else [HP, COLS], tl.float32)
    asked = 0
    r = tl.arange(0, CHUNK)
    j = begin + r
    ahead = tl.load(S + j.to(tl.int64)[:, None] * st, mask=(j < stop)[:, None] & wide, other=0.0)
    last = ahead
    before = ahead
    for c in range(0, count + LAG):
        j = begin + c * CHUNK + r
        old = j - LAG * CHUNK
        seen = (old >= begin) & (old < stop)
        k = ahead
        if WEIGHT:
            at = TO + old.to(tl.int64)[:, None] * HP + h[None, :]
            due = seen[:, None] & (h < H)[None, :]
            bits = tl.load(at, mask=due, other=0, volatile=True)
        far = j + CHUNK
        ahead = tl.load(S + far.to(tl.int64)[:, None] * st, mask=(far < stop)[:, None] & wide, other=0.0)
        if SCORE:
            there = j < stop
            x = _own_scores(k, q, q2, BIAS, COS, SIN, j, there, b * angles, col, WIDTH, D, TURNED, BIASED, CHUNK, OWN)
            to = TO + j.to(tl.int64)[:, None] * HP + mine[None, :]
            tl.store(to, x.to(tl.int32, bitcast=True), mask=there[:, None] & (mine < H)[None, :], cache_modifier=".cg")
        if WEIGHT:
            w = k
            if AGAIN:
                w = tl.load(S + old.to(tl.int64)[:, None] * st, mask=seen[:, None] & wide, other=0.0)
            else:
                if LAG == 1:
                    w = last
                if LAG == 2:
                    w = before
            late = _any(due & (bits == -1), CHUNK * HP)
            while (late > 0) & (asked < PATIENCE):
                bits = tl.load(at, mask=due, other=0, volatile=True)
                late = _any(due & (bits == -1), CHUNK * HP)
                asked += 1
            x = bits.to(tl.float32, bitcast=True)
            if CAPPED:
                x = cap_out * (1.0 - 2.0 / (tl.exp2(x * cap_in) + 1.0))
            ok = seen
            if PADDED:
                ok &= old >= first
            x = tl.where(ok[:, None], x, float("-inf"))
            new = tl.maximum(m, tl.max(x, 0) * unit)
            weight = tl.exp2(x * unit - new[None, :])
            shrink = tl.exp2(m - new)
            # Summed up at the end: each sum over a chunk would stop all warps.
            total = total * shrink[None, :] + weight
            # Before the first chunk is due, what is held is not its keys, and all weights are 0.
            if SWAP:
                acc = tl.dot(tl.trans(w), weight.to(w.dtype), acc * shrink[None, :], input_precision=DOT)
            else:
                acc = tl.dot(tl.trans(weight.to(w.dtype)), w, acc * shrink[:, None], input_precision=DOT)
            m = new
        if not AGAIN:
            if LAG == 2:
                before = last
            last = k
    if WEIGHT:
        # Whoever waited in vain says so by NaN, and does not hang.
        m = tl.where(asked < PATIENCE, m, float("inf"))
        l = tl.sum(total, 0)
        to = group * HP + h
        tl.store(MOST + to, m, mask=slice == 0)
        tl.store(SUM + to, l, mask=slice == 0)
        kept = (l > 0) & (h < H)
        if SWAP:
            tl.store(PART + to[None, :] * WP + col[:, None], acc, mask=kept[None, :] & (col < WIDTH)[:, None])
        else:
            tl.store(PART + to[:, None] * WP + col[None, :], acc, mask=kept[:, None] & wide)
