"""What the loss becomes when the queries of one router look into fewer or more groups than they do.

``by_gradient`` runs forward and back: beside each router's present output the one at every number of looks is computed,
and the difference multiplied by the gradient of the loss. That is an estimate to first order, of all routers and
numbers at once. ``by_change`` changes one router at a time and measures, a row of a batch for each change: no estimate,
and as many rows as there are routers and numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from focus_core.pattern import GroupPattern
from focus_core.routing.sets import members, top_groups
from focus_core.variants.base import AttentionCall, Prepared
from focus_core.variants.focus import Focus

LOSS, PAIRS = 0, 1
"""Rows of what both ways return: change of the loss (nats a token), and share of causal pairs kept."""
_FLOOR = 1e-20
"""Chance that a dropped pair keeps in the forward pass with gradients: its weight is none in float32."""


class _Tabled(Focus):
    """Focus whose looks are given row by row of a batch; a way of running it, and no variant."""

    name = ""

    def hold(self, **values: Any) -> None:
        """Set what is no setting."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def prepare(self, hidden, layer, positions, adapter, first_key) -> Prepared:
        """The keys' sets, and for each query all groups in the order in which it looks into them."""
        key_logits, query_logits = adapter.logits(layer, hidden)
        return Prepared(top_groups(key_logits, self.key_topk), query_logits.argsort(-1, descending=True))

    def at(self, call: AttentionCall, looks: torch.Tensor) -> torch.Tensor:
        """The output where each router (R,), or each row's (B, R), looks into so many groups."""
        from focus_core.kernels.dense import dense_attention
        from focus_core.kernels.focus import focus_attention

        q, k, v = call.query, call.key, call.value
        options: dict[str, Any] = {"scale": call.scale, "softcap": call.softcap}
        if int(looks.min()) == self.groups:
            return dense_attention(q, k, v, **options)
        sets = self.sets(call, looks)
        return focus_attention(
            q,
            k,
            v,
            sets,
            call.cached,
            window=self.window,
            sinks=self.sinks,
            # A bound: Triton's kernels are compiled for 1 to 4 groups of a query, and for any more by fours.
            members=(min(64, 4 * max(1, -(-int(looks.max()) // 4))), self.key_topk),
            **options,
        )

    def sets(self, call: AttentionCall, looks: torch.Tensor) -> torch.Tensor:
        """(B, R, N) int64 sets of the queries."""
        counted = torch.arange(self.groups) < looks[..., None, None]
        return (counted.to(call.fresh.device, torch.int64) << call.fresh).sum(-1)

    def kept(self, call: AttentionCall, levels: Sequence[int]) -> np.ndarray:
        """(R, V) share of causal pairs that each router keeps at each number of looks, mean over rows."""
        assert call.cached is not None, "prepare gives every token its set"
        if self.key_topk == 1:
            far = self._far(call)[:, list(levels)]
        else:
            sets = call.cached.cpu().numpy()
            far = np.stack([self._counted(call, sets, level) for level in levels], 1)
        tokens = call.cached.shape[2]
        return far + near_share(tokens, self.window, self.sinks)

    def _far(self, call: AttentionCall) -> np.ndarray:
        """(R, K + 1) share of far pairs that looking into 0, 1, ... K groups keeps, where a key is in one group."""
        assert call.cached is not None, "prepare gives every token its set"
        batch, _, tokens = call.cached.shape
        has = members(call.cached, self.groups)
        has[:, :, : self.sinks] = False
        before = torch.nn.functional.pad(has.int().cumsum(2), (0, 0, 1, 0))
        start = (torch.arange(tokens, device=has.device) - self.window + 1).clamp_min(0)
        # The nth group that a query looks into has so many far keys for it; a key is in no second one.
        each = before[:, :, start].gather(-1, call.fresh).sum((0, 2), dtype=torch.int64)
        far = torch.nn.functional.pad(each.cumsum(-1), (1, 0)).double().cpu().numpy()
        return far / (batch * tokens * (tokens + 1) / 2)

    def _counted(self, call: AttentionCall, keys: np.ndarray, level: int) -> np.ndarray:
        """(R,) the same by counting the pattern's pairs, where a pair may share several groups."""
        routers, heads = keys.shape[1], call.query.shape[1]
        sets = self.sets(call, torch.full((routers,), level)).cpu().numpy()
        pattern = GroupPattern(sets, keys, heads, self.window, self.sinks)
        each = heads // routers
        kept = np.array([[pattern.density(b, r * each) for r in range(routers)] for b in range(len(keys))])
        return kept.mean(0) - near_share(keys.shape[2], self.window, self.sinks)


def near_share(tokens: int, window: int, sinks: int = 0) -> float:
    """Share of the causal pairs of ``tokens`` tokens that window and sinks keep."""
    return GroupPattern.without_groups(1, tokens, tokens, 1, window, sinks).density()


class _Gauge(_Tabled):
    """Computes by a table, with gradients, and tells on the way back what every other number of looks would change."""

    table: np.ndarray
    levels: Sequence[int]
    found: np.ndarray

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        row = self.table[call.layer]
        if (row == self.groups).all():
            out = self.at(call, torch.as_tensor(row))
        else:
            out = self._soft(call, torch.as_tensor(row))
        if not out.requires_grad:
            # The first layer: nothing below it wants a gradient.
            out = out.detach().requires_grad_()
        now = out.detach()
        out.register_hook(lambda slope: self._compare(call, now, slope))
        return out

    def _soft(self, call: AttentionCall, looks: torch.Tensor) -> torch.Tensor:
        """The served mask through kernels that have a backward pass."""
        from focus_core.kernels.focus import soft

        wanted, held = (members(sets, self.groups).float() for sets in (self.sets(call, looks), call.cached))
        gate = soft.log_agreement_gate(wanted, held, self.key_topk, _FLOOR)
        return soft.soft_attention(
            call.query,
            call.key,
            call.value,
            add=gate,
            window=self.window,
            sinks=self.sinks,
            scale=call.scale,
            softcap=call.softcap,
        )

    @torch.no_grad()
    def _compare(self, call: AttentionCall, now: torch.Tensor, slope: torch.Tensor) -> None:
        row = self.table[call.layer]
        routers = len(row)
        self.found[PAIRS, call.layer] += self.kept(call, self.levels)
        for i, level in enumerate(self.levels):
            looks = torch.full((routers,), level)
            if (row == level).all():
                continue
            part = (slope.float() * (self.at(call, looks).float() - now.float())).sum((0, 2, 3))
            part = part.view(routers, -1).sum(1).double().cpu().numpy()
            self.found[LOSS, call.layer, :, i] += np.where(row == level, 0.0, part)


def by_gradient(model: Any, adapter: Any, settings: dict, table: np.ndarray, levels: Sequence[int], ids) -> np.ndarray:
    """Estimate, from a table, what each number of looks of each router changes.

    Args:
        model: the pretrained model, its weights without gradients.
        adapter: the router.
        settings: of Focus's mask: groups, key_topk, window, sinks.
        table: (L, R) groups that the queries of each router look into.
        levels: V numbers of looks to compare.
        ids: (B, N) token ids.

    Returns:
        (2, L, R, V): ``LOSS`` and ``PAIRS``; zeros for layers with a window of their own.
    """
    from focus_core.evaluation.likelihood import token_nll
    from focus_core.retrofit import retrofit

    gauge = _Gauge(**settings)
    gauge.hold(table=table, levels=levels, found=np.zeros((2, *table.shape, len(levels))))
    with torch.enable_grad(), retrofit(model, gauge, adapter):
        nll = token_nll(model, ids)
    # The hooks run while the gradient is on its way, outside of the retrofit.
    nll.sum().backward()
    gauge.found[LOSS] /= nll.numel()
    return gauge.found


class _Changed(_Tabled):
    """Computes every row of a batch by its own table."""

    tables: np.ndarray
    pairs: dict[int, np.ndarray]

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        return self.at(call, torch.as_tensor(self.tables[:, call.layer]))


def by_change(
    model: Any,
    adapter: Any,
    settings: dict,
    table: np.ndarray,
    levels: Sequence[int],
    ids: torch.Tensor,
    layer: int,
    *,
    batch: int,
    ask: Callable[[], None],
) -> np.ndarray:
    """Measure, from a table, what each number of looks of each router of one layer changes.

    Args:
        model: the pretrained model.
        adapter: the router.
        settings: as in ``by_gradient``.
        table: (L, R), as there.
        levels: V numbers of looks to compare.
        ids: (1, N) token ids.
        layer: the layer.
        batch: rows that run together.
        ask: called before every run; raises where the work is no longer wanted.

    Returns:
        (2, R, V): ``LOSS`` and ``PAIRS``.
    """
    from focus_core.evaluation.likelihood import token_nll
    from focus_core.retrofit import retrofit

    changes = [(r, i) for r in range(table.shape[1]) for i, level in enumerate(levels) if table[layer, r] != level]
    found = np.zeros((2, table.shape[1], len(levels)))
    counted = _Counting(layer, levels, found[PAIRS])
    present = None
    for part in _parts([None, *changes], batch):
        ask()
        tables = np.repeat(table[None], len(part), 0)
        for row, change in enumerate(part):
            if change is not None:
                tables[row, layer, change[0]] = levels[change[1]]
        variant = _Changed(**settings)
        variant.hold(tables=tables)
        with torch.no_grad(), retrofit(model, variant, adapter, recorder=None if present is not None else counted):
            means = token_nll(model, ids.expand(len(part), -1)).double().mean(1).cpu().numpy()
        present = means[0] if present is None else present
        for mean, change in zip(means, part, strict=True):
            if change is not None:
                found[LOSS, change[0], change[1]] = mean - present
    return found


class _Counting:
    """Recorder of the pairs that each number of looks keeps in one layer; the first row of the batch is enough."""

    def __init__(self, layer: int, levels: Sequence[int], pairs: np.ndarray) -> None:
        self.layer, self.levels, self.pairs = layer, levels, pairs

    def record(self, call: AttentionCall, variant: _Tabled) -> None:
        """Count, where it is that layer."""
        if call.layer != self.layer or call.sliding_window is not None:
            return
        self.pairs[:] = variant.kept(call, self.levels)


def _parts(items: list, size: int) -> Iterator[list]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
