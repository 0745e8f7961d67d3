"""Focus's attention on a CPU, doing only the kept work.

Far pairs go group by group through blocks of sorted tokens, near pairs (window and sinks) through blocks in
time order. The two sets are disjoint, so their results merge exactly by log-sum-exp. Forward only.
"""

from __future__ import annotations

from functools import partial

import torch

from focus_core.errors import InvalidInput
from focus_core.kernels.checks import wide
from focus_core.kernels.focus.blocks import block_attention, piece_budget
from focus_core.kernels.focus.decode import DECODE_QUERIES, focus_decode
from focus_core.kernels.focus.near import merge_near
from focus_core.kernels.focus.rows import Rows, rows_of
from focus_core.kernels.focus.segments import Blocks, KeySegments, buckets, key_segments, query_blocks, without_lowest
from focus_core.kernels.focus.work import conduct, run_all


def focus_cpu(q, k, v, query_bits, key_bits, *, window, sinks, first_key, scale, softcap, return_lse):
    """Focus's attention by kept work; arguments as in ``focus_attention``, already checked."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise InvalidInput(
            "The cpu backend of focus_attention has no backward.", "Use torch.no_grad(), or backend='chunked' to train."
        )
    if q.device.type != "cpu":
        raise InvalidInput(f"The cpu backend of focus_attention got tensors on {q.device}.", "backend='auto' works.")
    first = None if first_key is None else first_key.to("cpu", torch.long)
    keys = k.shape[2]
    window, sinks = min(window, keys), min(sinks, keys)
    settings = {"window": window, "sinks": sinks, "first": first, "scale": scale, "softcap": softcap}
    if q.shape[2] <= DECODE_QUERIES:
        with torch.no_grad():
            out, lse = focus_decode(q, k, v, query_bits, key_bits, **settings)
    else:
        out, lse = conduct(partial(_prefill, q, k, v, query_bits, key_bits, **settings))
    out = out.to(q.dtype)
    return (out, lse) if return_lse else out


def _prefill(q, k, v, query_bits, key_bits, *, window, sinks, first, scale, softcap):
    batch, heads, queries, _ = q.shape
    rows = rows_of(q), rows_of(k), rows_of(v)
    # One spare row takes what the unused rows of a block compute.
    spots = batch * queries * heads
    out = torch.zeros(spots + 1, v.shape[3], dtype=wide(q.dtype))
    lse = torch.full((spots + 1,), float("-inf"), dtype=out.dtype)
    segments = key_segments(key_bits, first, sinks)
    left = query_bits
    if first is not None:
        real = torch.arange(k.shape[2] - queries, k.shape[2]) >= first[:, None, None]
        left = left.masked_fill(~real, 0)
    fresh = True
    while len(segments.code) and bool((left != 0).any()):
        blocks = query_blocks(left, segments, window)
        if blocks is not None:
            far = _Far(rows, query_bits, key_bits, segments, blocks, heads, k.shape[1])
            far.run(out, lse, fresh, scale, softcap)
            fresh = False
        left = without_lowest(left)
    out = out[:spots].view(batch, queries, heads, -1)
    lse = lse[:spots].view(batch, queries, heads)
    merge_near(rows, out, lse, k.shape[1:3], window, sinks, first, scale, softcap)
    if first is not None:
        padded = ~real[:, 0, :, None]
        out.masked_fill_(padded[..., None], 0)
        lse.masked_fill_(padded, float("-inf"))
    return out.transpose(1, 2), lse.transpose(1, 2)


class _Far:
    """One pass over group segments: every query meets the keys of one of its groups."""

    def __init__(
        self,
        rows: tuple[Rows, Rows, Rows],
        query_bits: torch.Tensor,
        key_bits: torch.Tensor,
        segments: KeySegments,
        blocks: Blocks,
        heads: int,
        kv_heads: int,
    ) -> None:
        self.q, self.k, self.v = rows
        self.query_bits, self.key_bits = query_bits, key_bits
        self.segments, self.blocks = segments, blocks
        self.heads, self.routers = heads, key_bits.shape[1]
        self.kv_each = kv_heads // self.routers
        self.share = heads // kv_heads
        row = segments.code // (segments.keys * 64)
        self.key_batch, self.key_router, self.key_at = row // self.routers, row % self.routers, segments.position
        self.k_row = self._key_rows(self.k)
        same = self.k[1:] == self.v[1:]
        self.v_row = self.k_row if same else self._key_rows(self.v)
        longest = blocks.length[0]
        # Row ``longest - limit`` of this sliding view is 0 for the first ``limit`` keys and -inf after them.
        steps = torch.zeros(2 * longest)
        steps[longest:] = float("-inf")
        self.steps, self.longest = steps, longest

    def _key_rows(self, rows: Rows) -> torch.Tensor:
        return self.key_batch * rows.batch + self.key_router * (self.kv_each * rows.head) + self.key_at * rows.token

    def run(self, out: torch.Tensor, lse: torch.Tensor, fresh: bool, scale: float, softcap: float | None) -> None:
        """Add this pass to ``out`` (spots + 1, D) and ``lse``; ``fresh`` when no earlier pass wrote there."""
        cells = self.blocks.query.shape[1] * self.share * self.kv_each

        def bucket(cut: slice) -> None:
            part, part_lse, spot = self._bucket(cut, scale, softcap)
            if not fresh:
                before = lse.index_select(0, spot)
                # Both are -inf where neither pass has a kept pair: keep what is there.
                weight = torch.sigmoid(part_lse - before).nan_to_num_(0.0)
                part = torch.lerp(out.index_select(0, spot), part, weight[:, None])
                part_lse = torch.logaddexp(before, part_lse)
            out.index_copy_(0, spot, part)
            lse.index_copy_(0, spot, part_lse)

        # Blocks of one pass write to different rows (a query is in one block a pass), so they may run together.
        budget = piece_budget(cells * sum(self.blocks.length))
        run_all([partial(bucket, slice(*run)) for run in buckets(self.blocks.length, cells, budget)])

    def _bucket(self, cut: slice, scale: float, softcap: float | None):
        blocks, length = self.blocks, self.blocks.length[cut.start]
        segment, query, limit = blocks.segment[cut], blocks.query[cut], blocks.limit[cut]
        n, size = query.shape
        row = segment // 64
        b, r = (row // self.routers)[:, None], (row % self.routers)[:, None]

        entry = (self.segments.start[segment][:, None] + torch.arange(length)).clamp_max(len(self.k_row) - 1)
        head = torch.arange(self.kv_each)[:, None]
        k = self.k.take(self.k_row[entry][:, None] + head * self.k.head)
        v = self.v.take(self.v_row[entry][:, None] + head * self.v.head)

        each = self.kv_each * self.share
        head = torch.arange(each)[:, None]
        at = (b * self.q.batch + r * (each * self.q.head) + query * self.q.token)[:, None]
        q = self.q.take(at + head * self.q.head).view(n, self.kv_each, self.share * size, -1)

        if self.segments.single:
            rows = (self.longest - limit)[:, None].expand(n, self.share, size).reshape(-1)
            table = self.steps.as_strided((self.longest + 1, length), (1, 1))
            mask, empty = table.index_select(0, rows).view(n, 1, self.share * size, length), None
        else:
            mask, empty = self._owned(b, r, segment % 64, query, limit, entry)
        out, lse = block_attention(q, k, v, mask, scale=scale, softcap=softcap)
        if empty is not None:
            lse = lse.masked_fill(empty, float("-inf"))

        queries = self.query_bits.shape[2]
        spot = ((b * queries + query) * self.heads + r * each)[:, None] + head
        spot = spot.masked_fill(~blocks.used[cut][:, None], self.query_bits.shape[0] * queries * self.heads)
        return out.reshape(-1, out.shape[3]), lse.reshape(-1), spot.reshape(-1)

    def _owned(self, b, r, group, query, limit, entry):
        """Mask for keys in several groups: a pair belongs to the lowest group that its two tokens share."""
        lower = ((torch.ones_like(group) << group) - 1)[:, None]
        queries = self.query_bits[b, r, query] & lower
        keys = self.key_bits[b, r, self.key_at[entry]] & lower
        keep = torch.arange(entry.shape[1]) < limit[..., None]
        keep &= (queries[:, :, None] & keys[:, None, :]) == 0
        empty = ~keep.any(-1)
        mask = torch.zeros(keep.shape).masked_fill_(~(keep | empty[..., None]), float("-inf"))
        n, size, length = keep.shape
        mask = mask[:, None].expand(n, self.share, size, length).reshape(n, 1, self.share * size, length)
        return mask, empty[:, None].expand(n, self.share, size).reshape(n, 1, self.share * size)
