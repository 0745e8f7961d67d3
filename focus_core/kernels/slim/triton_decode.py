"""Slim attention's second order for one new token on a GPU: raw cached keys give the scores and are weighted by them.

Every head weights the whole row of every token, so a program that held all sums of a sequence would need half a
megabyte: each keeps some columns of them. The scores need all columns. So the programs of a group (one sequence, one
share of its keys) work on chunks of keys together: each scores a few whole rows of a chunk, rotating them in registers,
and says so; a few chunks later, when the scores of all are there, each weights its own columns of that chunk, which
then come from the GPU's L2 cache. Memory is read once. A merge and the values' matrix follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from focus_core.kernels.checks import wide
from focus_core.kernels.focus.triton.tiles import cover, dot_precision, padded, scores_of
from focus_core.kernels.ready import launch
from focus_core.kernels.slim.operands import Operands
from focus_core.kernels.slim.turned import Turned
from focus_core.kernels.split_merge import Parts, processors

_PATIENCE = 1 << 22
"""How often a program asks, in all, whether scores are there: seconds, where microseconds are usual."""


@dataclass(frozen=True)
class Plan:
    """Sizes of the kernels.

    Attributes:
        columns: columns of a program's sums.
        chunk: keys that a group scores before it says so.
        rows: rows that a program scores at a time.
        lag: chunks between scores and sums.
        warps: warps of a program.
        programs: programs that share a multiprocessor; all of them run at once.
        swap: sums as (columns, heads), which Hopper's wider matrix instructions take.
        together: scores and sums in one launch, whose programs wait for each other; else in two launches, the second
            of which reads the keys again.
    """

    columns: int = 256
    chunk: int = 64
    rows: int = 4
    lag: int = 2
    warps: int = 4
    programs: int = 2
    swap: bool = False
    together: bool = True


@triton.jit
def _scored(
    STATE, BIAS, COS, SIN, q, q2, j, there, st, at, H: tl.constexpr, HP: tl.constexpr, D: tl.constexpr,
    DP: tl.constexpr, TURNED: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """(rows, HP) products of the queries with whole rows; ``q2`` is the second half of rotated ones."""
    h = tl.arange(0, HP)[None, :, None]
    d = tl.arange(0, DP)[None, None, :]
    WIDE: tl.constexpr = D // 2 if TURNED else D
    inside = (h < H) & (d < WIDE)
    here = there[:, None, None] & inside
    to = STATE + j.to(tl.int64)[:, None, None] * st + h * D + d
    k = tl.load(to, mask=here, other=0.0).to(tl.float32)
    if BIASED:
        k += tl.load(BIAS + h * D + d, mask=inside, other=0.0).to(tl.float32)
    if TURNED:
        k2 = tl.load(to + WIDE, mask=here, other=0.0).to(tl.float32)
        if BIASED:
            k2 += tl.load(BIAS + h * D + d + WIDE, mask=inside, other=0.0).to(tl.float32)
        angle = (at + j.to(tl.int64))[:, None, None] * WIDE + d
        known = there[:, None, None] & (d < WIDE)
        cos, sin = tl.load(COS + angle, mask=known, other=0.0), tl.load(SIN + angle, mask=known, other=0.0)
        # A rotated query would be another for each key; of a pair, only these two products depend on both.
        return tl.sum(cos * (q * k + q2 * k2) + sin * (q2 * k - q * k2), 2)
    else:
        return tl.sum(q * k, 2)


@triton.jit(do_not_specialize=["past", "per", "chunks"])
def _attend(
    Q, STATE, BIAS, COS, SIN, SCORES, FIRST, PART, MOST, SUM, DONE,
    sb, st, angles, unit, cap_in, cap_out, past, per, chunks,
    H: tl.constexpr, HP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, WIDTH: tl.constexpr, WP: tl.constexpr,
    SLICES: tl.constexpr, COLS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, LAG: tl.constexpr,
    TURNED: tl.constexpr, BIASED: tl.constexpr, CAPPED: tl.constexpr, PADDED: tl.constexpr, NEGATIVE: tl.constexpr,
    SCORE: tl.constexpr, WEIGHT: tl.constexpr, WAIT: tl.constexpr, SWAP: tl.constexpr, DOT: tl.constexpr,
    PATIENCE: tl.constexpr,
):  # fmt: skip
    slice, split, b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    group = b * tl.num_programs(1) + split
    OWN: tl.constexpr = (CHUNK + SLICES - 1) // SLICES
    TILES: tl.constexpr = (OWN + ROWS - 1) // ROWS
    h, d = tl.arange(0, HP), tl.arange(0, DP)
    HALF: tl.constexpr = D // 2 if TURNED else D
    at_q = Q + b * H * D + h[:, None] * D + d[None, :]
    real = (h < H)[:, None] & (d < HALF)[None, :]
    q = tl.load(at_q, mask=real, other=0.0).to(tl.float32)[None, :, :]
    q2 = q
    if TURNED:
        q2 = tl.load(at_q + HALF, mask=real, other=0.0).to(tl.float32)[None, :, :]
    if NEGATIVE:
        q, q2 = -q, -q2
    first = 0
    if PADDED:
        first = tl.load(FIRST + b).to(tl.int32)
    begin = split * per
    stop = tl.minimum(begin + per, past)
    count = tl.maximum(0, (stop - begin + CHUNK - 1) // CHUNK)
    S = STATE + b * sb
    TO = SCORES + b * past * HP
    col = slice * COLS + tl.arange(0, COLS)
    m = tl.full([HP], -1e30, tl.float32)
    l = tl.zeros([HP], tl.float32)
    acc = tl.zeros([COLS, HP] if SWAP else [HP, COLS], tl.float32)
    asked = 0
    for c in range(0, count + LAG):
        old = begin + (c - LAG) * CHUNK + tl.arange(0, CHUNK)
        if WEIGHT:
            # Asked for before anything is waited for.
            seen = (old >= begin) & (old < stop)
            at = S + old.to(tl.int64)[:, None] * st + col[None, :]
            k = tl.load(at, mask=seen[:, None] & (col < WIDTH)[None, :], other=0.0)
        if SCORE:
            for n in tl.static_range(TILES):
                r = n * ROWS + tl.arange(0, ROWS)
                j = begin + c * CHUNK + slice * OWN + r
                mine = (r < OWN) & (slice * OWN + r < CHUNK) & (j < stop)
                x = _scored(S, BIAS, COS, SIN, q, q2, j, mine, st, b * angles, H, HP, D, DP, TURNED, BIASED)
                tl.store(TO + j.to(tl.int64)[:, None] * HP + h[None, :], x, mask=mine[:, None])
            if WAIT:
                tl.debug_barrier()
                tl.atomic_add(DONE + group * chunks + c, 1, mask=c < count, sem="release")
        if WEIGHT:
            if WAIT:
                ready = tl.where(c < LAG, SLICES, 0)
                while (ready < SLICES) & (asked < PATIENCE):
                    ready = tl.atomic_add(DONE + group * chunks + c - LAG, 0, sem="acquire")
                    asked += 1
            # Not through L1: other multiprocessors wrote them.
            at = TO + old.to(tl.int64)[:, None] * HP + h[None, :]
            x = tl.load(at, mask=seen[:, None], other=0.0, cache_modifier=".cg")
            if CAPPED:
                x = cap_out * (1.0 - 2.0 / (tl.exp2(x * cap_in) + 1.0))
            ok = seen
            if PADDED:
                ok &= old >= first
            x = tl.where(ok[:, None], x, float("-inf"))
            new = tl.maximum(m, tl.max(x, 0) * unit)
            weight = tl.exp2(x * unit - new[None, :])
            shrink = tl.exp2(m - new)
            l = l * shrink + tl.sum(weight, 0)
            if SWAP:
                acc = tl.dot(tl.trans(k), weight.to(k.dtype), acc * shrink[None, :], input_precision=DOT)
            else:
                acc = tl.dot(tl.trans(weight.to(k.dtype)), k, acc * shrink[:, None], input_precision=DOT)
            m = new
    if WEIGHT:
        if WAIT:
            # Whoever waited in vain says so by NaN, and does not hang.
            m = tl.where(asked < PATIENCE, m, float("inf"))
        to = group * HP + h
        tl.store(MOST + to, m, mask=slice == 0)
        tl.store(SUM + to, l, mask=slice == 0)
        kept = (l > 0) & (h < H)
        if SWAP:
            tl.store(PART + to[None, :] * WP + col[:, None], acc, mask=kept[None, :] & (col < WIDTH)[:, None])
        else:
            tl.store(PART + to[:, None] * WP + col[None, :], acc, mask=kept[:, None] & (col < WIDTH)[None, :])


def plan_for(dtype: torch.dtype, width: int, turned: bool) -> Plan:
    """Sizes for states of ``width`` numbers, whose keys are rotated as they are read where ``turned``."""
    if dtype == torch.float32:
        return Plan(columns=min(128, padded(width)), chunk=32, rows=1, programs=1)
    if turned:
        # What is rotated costs more than what is read twice.
        return Plan(columns=min(512, padded(width)), rows=2, warps=8, programs=1, together=False)
    return Plan(columns=min(256, padded(width)), chunk=32, rows=2)


def slim_decode(
    o: Operands, *, scale: float, softcap: float | None, plan: Plan | None = None, states: Callable | None = None
):
    """Slim attention of one new token: output and log-sum-exp as in ``slim_attention``.

    ``states`` sums the past states instead of this module's kernels.
    """
    past = o.past_keys
    out, lse = torch.zeros_like(o.q), torch.full(o.q.shape[:3], -torch.inf, dtype=torch.float32, device=o.q.device)
    if past:
        assert o.value_weight is not None
        if states is None:
            plan = plan or plan_for(o.q.dtype, o.state.shape[2], o.finish is not None)
            sums, lse = weighted_states(o, past, scale, softcap, plan)
        else:
            sums, lse = states(o, past, scale, softcap)
        matrices = o.value_weight.unflatten(1, (o.q.shape[1], -1)).transpose(0, 1)
        out = torch.bmm(sums.transpose(0, 1), matrices).transpose(0, 1)[:, :, None]
        if o.value_bias is not None:
            out = out + o.value_bias.view(1, out.shape[1], 1, -1) * (lse > -torch.inf)[..., None]
    if o.new_key is None:
        return out, lse
    return _with_new(o, out, lse, scale, softcap)


def _with_new(o: Operands, out, lse, scale: float, softcap: float | None):
    """The newest token, whose own key and value are at hand, beside the past."""
    assert o.new_key is not None
    work = wide(o.q.dtype)
    score = (o.q.to(work) * o.new_key.to(work)).sum(-1) * scale
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    if o.first_key is not None:
        real = o.first_key.to(o.q.device)[:, None, None] < o.state.shape[1]
        score = score.masked_fill(~real, -torch.inf)
    whole = torch.logaddexp(lse, score)
    safe = whole.masked_fill(whole == -torch.inf, 0)
    old, new = torch.exp(lse - safe)[..., None], torch.exp(score - safe)[..., None]
    return (old * out + new * o.new_value).to(o.q.dtype), whole


def shares(plan: Plan, batch: int, width: int, past: int, device: torch.device) -> tuple[int, int, int, int]:
    """Programs that share a row's columns, sequences of a launch, programs that share its keys, and keys of each."""
    slices, room = cover(width, plan.columns), plan.programs * processors(device)
    # Programs wait for each other, so those of a launch must all fit: sequences take turns where they do not.
    rows = max(1, min(batch, room // slices))
    splits = max(1, min(room // (slices * rows), cover(past, 4 * plan.chunk)))
    per = cover(cover(past, splits), plan.chunk) * plan.chunk
    return slices, rows, cover(past, per), per


def weighted_states(o: Operands, past: int, scale: float, softcap: float | None, plan: Plan):
    """(B, H, w) sums of the past states by each head's weights, and (B, H, 1) log-sum-exp."""
    state = o.state if o.state.stride(2) == 1 else o.state.contiguous()
    batch, heads, _, dim = o.q.shape
    width, device = state.shape[2], o.q.device
    lines = padded(heads)
    slices, rows, splits, per = shares(plan, batch, width, past, device)
    room = plan.programs * processors(device)
    # An interpreter runs programs one after the other: none could wait for another.
    together = plan.together and device.type == "cuda" and slices * splits * rows <= room
    parts = Parts(batch, heads, lines, splits, width, device)
    chunks = cover(per, plan.chunk)
    scores = scores_of(scale, softcap)
    q = o.q.contiguous()
    scores_room = torch.empty(batch * past * lines, dtype=torch.float32, device=device)
    done = torch.zeros(batch * splits * chunks, dtype=torch.int32, device=device)
    turned = o.finish if isinstance(o.finish, Turned) else None
    cos = sin = q
    if turned is not None:
        cos, sin = (x.to(device, torch.float32).contiguous() for x in (turned.cos, turned.sin))
    half = dim // 2 if turned is not None else dim
    first = state if o.first_key is None else o.first_key.to(device, torch.int32)
    first_step = 0 if o.first_key is None else 1
    sizes: dict[str, Any] = {
        "H": heads, "HP": lines, "D": dim, "DP": 1 << (half - 1).bit_length(), "WIDTH": width, "WP": parts.stride,
        "SLICES": slices, "COLS": plan.columns, "CHUNK": plan.chunk, "ROWS": plan.rows, "TURNED": turned is not None,
        "BIASED": o.key_bias is not None, "CAPPED": scores.capped, "PADDED": o.first_key is not None,
        "NEGATIVE": scores.negative, "WAIT": together, "SWAP": plan.swap, "DOT": dot_precision(q.dtype),
        "PATIENCE": _PATIENCE,
    }  # fmt: skip
    options: dict[str, Any] = {"num_warps": plan.warps}
    launches: list[dict[str, Any]] = [{"SCORE": True, "WEIGHT": True, "LAG": plan.lag}]
    if together:
        options["launch_cooperative_grid"] = True
    else:
        launches = [{"SCORE": s, "WEIGHT": not s, "LAG": 0} for s in (True, False)]
    for start in range(0, batch, rows):
        own = splits * lines
        tensors = [
            q[start:], state[start:], q if o.key_bias is None else o.key_bias, cos[_from(cos, start, turned)],
            sin[_from(sin, start, turned)], scores_room[start * past * lines :], first[start * first_step :],
            parts.part[start * own * parts.stride :], parts.most[start * own :], parts.total[start * own :],
            done[start * splits * chunks :],
        ]  # fmt: skip
        fixed = *state.stride()[:2], 0 if turned is None or cos.shape[0] == 1 else cos.shape[1]
        free = scores.unit, scores.cap_in, scores.cap_out, past, per, chunks
        grid = (slices, splits, min(rows, batch - start))
        for step in launches:
            launch(_attend, grid, tensors, fixed, free, sizes | step, **options)
    sums = q.new_empty(batch, heads, width)
    lse = torch.empty(batch, heads, 1, dtype=torch.float32, device=device)
    parts.merge(sums, lse)
    return sums, lse


def _from(angles: torch.Tensor, start: int, turned: Turned | None) -> slice:
    """The rows of angles from ``start`` on; all where rows share them."""
    return slice(None) if turned is None or angles.shape[0] == 1 else slice(start, None)
