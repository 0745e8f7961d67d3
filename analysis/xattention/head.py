"""One head of a Trace as XAttention sees it: scores, the kept set, and any block from near."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from analysis.xattention.scores import (
    Selection,
    block_scores,
    kept_shares,
    pair_scores,
    sampled,
    select,
    served,
    tiles,
)
from focus_core.trace import Trace


@dataclass(frozen=True)
class Setting:
    """How blocks are scored and cut; fields as of the variant ``xattention``."""

    stride: int = 8
    block: int = 64
    threshold: float = 0.9
    voters: str = "before"
    mode: str = "antidiagonal"
    seed: int = 0


@dataclass(frozen=True)
class Near:
    """One block from near.

    Attributes:
        cells: (queries, keys) true scores.
        low: smallest score. high: largest.
        tiles: (b, b) attention of its tiles, each a share of its row of tiles; b = block / stride.
    """

    cells: np.ndarray
    low: float
    high: float
    tiles: np.ndarray


def scores_of(trace: Trace, layer: int, heads: list[int], mode: str, block: int, stride: int, seed: int) -> np.ndarray:
    """(H, n, n) block scores of some heads of a layer whose queries and keys were recorded."""
    q, k = trace.arrays[f"queries.{layer}"], trace.arrays[f"keys.{layer}"]
    share, p = len(q) // len(k), trace.provenance
    return np.concatenate(
        [
            block_scores(
                q[h : h + 1],
                k[h // share : h // share + 1],
                block=block,
                stride=stride,
                mode=mode,
                scale=p["scale"],
                softcap=p["softcap"],
                seed=seed,
            )
            for h in heads
        ]
    )


@dataclass(frozen=True)
class Head:
    """The shown head with its selection.

    Attributes:
        query: (N, D). key: (N, D).
        scale: factor of the scores. softcap: soft cap or None.
        setting: how blocks are scored and cut.
        scores: (n, n) of the setting's scorer.
        true: (n, n) true mass of each block.
    """

    query: np.ndarray
    key: np.ndarray
    scale: float
    softcap: float | None
    setting: Setting
    scores: np.ndarray
    true: np.ndarray
    selection: Selection = field(init=False)

    def __post_init__(self) -> None:
        """Cut the scores."""
        object.__setattr__(self, "selection", select(self.scores, self.setting.threshold))

    @classmethod
    def of_trace(
        cls, trace: Trace, layer: int, head: int, setting: Setting, scores: np.ndarray, true: np.ndarray
    ) -> Head:
        """The head of a recorded layer, with scores that are known already."""
        q, k, p = trace.arrays[f"queries.{layer}"], trace.arrays[f"keys.{layer}"], trace.provenance
        return cls(q[head], k[head * len(k) // len(q)], p["scale"], p["softcap"], setting, scores, true)

    @property
    def count(self) -> int:
        """Tokens."""
        return len(self.query)

    @property
    def blocks(self) -> int:
        """Blocks a side."""
        return len(self.scores)

    @cached_property
    def kept(self) -> np.ndarray:
        """(n, n) blocks that are computed."""
        return served(self.selection.mask, self.setting.voters)

    def voters(self) -> np.ndarray:
        """(n,) row whose queries choose each row's blocks."""
        n = self.blocks
        return np.arange(n) if self.setting.voters == "own" else np.maximum(np.arange(n) - 1, 0)

    @cached_property
    def share(self) -> np.ndarray:
        """(n, n) share of the choosing row's score; NaN where nothing is read about a block."""
        total = np.maximum(self.scores.sum(1, keepdims=True), 1e-30)
        found = (self.scores / total)[self.voters()]
        row, column = np.arange(self.blocks)[:, None], np.arange(self.blocks)[None, :]
        return np.where(column <= np.minimum(row, self.voters()[:, None]), found, np.nan)

    @cached_property
    def real(self) -> np.ndarray:
        """(n, n) share of each row's own dense attention."""
        return self.true / np.maximum(self.true.sum(1, keepdims=True), 1e-30)

    @cached_property
    def rank(self) -> np.ndarray:
        """(n, n) place of each block in the choosing row's order, from 1."""
        place = np.zeros((self.blocks, self.blocks), np.int64)
        np.put_along_axis(place, self.selection.order, np.arange(1, self.blocks + 1)[None, :], axis=1)
        return place[self.voters()]

    @cached_property
    def _shares(self) -> tuple[float, float]:
        pairs, mass = kept_shares(self.kept, self.true, self.count, self.setting.block)
        return float(pairs), float(mass)

    @property
    def pairs(self) -> float:
        """Share of the causal pairs that is kept."""
        return self._shares[0]

    @property
    def mass(self) -> float:
        """Share of dense attention on the kept pairs."""
        return self._shares[1]

    def near(self, row: int, column: int) -> Near:
        """The scores of one block, and what its tiles hold."""
        s = self.setting
        rows = slice(row * s.block, min(self.count, (row + 1) * s.block))
        columns = slice(column * s.block, min(self.count, (column + 1) * s.block))
        cells = pair_scores(self.query[rows], self.key[columns], self.scale, self.softcap)
        each = s.block // s.stride
        mass = np.zeros((each, each), np.float32)
        if s.mode != "oracle":
            order = sampled(s.stride, s.mode, s.seed)
            at = slice(row * each, (row + 1) * each)
            found = tiles(
                np.asarray(self.query, np.float32),
                np.asarray(self.key, np.float32),
                s.block,
                s.stride,
                order,
                self.scale,
                self.softcap,
                at,
            )[1]
            mass = found[:, column * each : (column + 1) * each]
        return Near(cells, float(cells.min()), float(cells.max()), mass)

    def telling_block(self) -> tuple[int, int]:
        """A block to look at first: the last that was taken of the last row that had to choose and dropped some."""
        for row in range(self.blocks - 1, 1, -1):
            voter = int(self.voters()[row])
            kept, of = int(self.selection.kept[voter]), voter + 1
            if 2 < kept < of:
                return row, int(self.selection.order[voter, kept - 1])
        return self.blocks - 1, 0

    def worst_dropped(self) -> tuple[int, int]:
        """The dropped block with the largest share of its row's dense attention; a telling one where none is."""
        gone = np.where(self.kept | np.triu(np.ones_like(self.kept), 1), -1.0, self.real)
        if gone.max() < 0:
            return self.telling_block()
        row, column = np.unravel_index(int(gone.argmax()), gone.shape)
        return int(row), int(column)

    def table(self) -> pd.DataFrame:
        """One row a causal block: its place (from 1), what was read, what is true, whether it is kept."""
        row, column = np.tril_indices(self.blocks)
        return pd.DataFrame(
            {
                "query_block": row + 1,
                "key_block": column + 1,
                "chosen_by_block": self.voters()[row] + 1,
                "sampled_share": self.share[row, column],
                "rank": np.where(np.isnan(self.share[row, column]), 0, self.rank[row, column]),
                "true_share": self.real[row, column],
                "kept": self.kept[row, column],
            }
        )
