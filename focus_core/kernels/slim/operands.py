"""What one call of Slim attention works on, and the keys, values and masks made from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from focus_core.kernels.slim_work import SlimWork

Finish = Callable[[torch.Tensor, slice, slice], torch.Tensor]
"""``finish(keys, rows, tokens)``: what is still done to the keys (R, H, n, D) of these rows and tokens."""


@dataclass(frozen=True)
class Operands:
    """The checked arguments of ``slim_attention``, under its names."""

    q: torch.Tensor
    state: torch.Tensor
    key_weight: torch.Tensor | None
    value_weight: torch.Tensor | None
    key_bias: torch.Tensor | None
    value_bias: torch.Tensor | None
    finish: Finish | None
    new_key: torch.Tensor | None
    new_value: torch.Tensor | None
    causal: bool
    first_key: torch.Tensor | None
    key_mask: torch.Tensor | None

    @property
    def past_keys(self) -> int:
        """Tokens whose keys come from the state."""
        return self.state.shape[1] - (0 if self.new_key is None else self.q.shape[2])

    @property
    def past_values(self) -> int:
        """Tokens whose values come from the state."""
        return self.state.shape[1] - (0 if self.new_value is None else self.q.shape[2])

    def made_keys(self, start: int, stop: int, row: int | None = None) -> torch.Tensor:
        """(B or 1, H, stop - start, D) keys made from the state, of one row or of all."""
        rows, tokens = slice(0, None) if row is None else slice(row, row + 1), slice(start, stop)
        made = _made(self.state[rows, tokens], self.key_weight, self.key_bias, self.q.shape[1])
        return made if self.finish is None else self.finish(made, rows, tokens)

    def keys(self) -> torch.Tensor:
        """(B, H, Nk, D) keys, the new tokens' own where they were given."""
        made = self.made_keys(0, self.past_keys)
        return made if self.new_key is None else torch.cat([made, self.new_key], 2)

    def values(self) -> torch.Tensor:
        """(B, H, Nk, Dv) values, the new tokens' own where they were given."""
        made = _made(self.state[:, : self.past_values], self.value_weight, self.value_bias, self.q.shape[1])
        return made if self.new_value is None else torch.cat([made, self.new_value], 2)

    def kept(self, start: int, stop: int) -> torch.Tensor:
        """(B or 1, 1, stop - start or 1, Nk): which keys the queries ``start:stop`` see."""
        queries, keys, device = self.q.shape[2], self.state.shape[1], self.q.device
        j = torch.arange(keys, device=device)
        kept = torch.ones(1, 1, 1, keys, dtype=torch.bool, device=device)
        if self.causal:
            i = torch.arange(keys - queries + start, keys - queries + stop, device=device)
            kept = kept & (j <= i[:, None])
        if self.first_key is not None:
            kept = kept & (j >= self.first_key.to(device)[:, None, None, None])
        if self.key_mask is not None:
            kept = kept & self.key_mask[:, None, None, :]
        return kept


def _made(state: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, heads: int) -> torch.Tensor:
    made = state if weight is None else state @ weight
    if bias is not None:
        made = made + bias
    return made.unflatten(-1, (heads, -1)).transpose(1, 2)


def work_of(operands: Operands) -> SlimWork:
    """Its operations."""
    _, heads, queries, dim = operands.q.shape
    keys, past = operands.state.shape[1], operands.past_values
    every = queries * keys - (queries * (queries - 1) / 2 if operands.causal else 0)
    own = queries * (queries + 1) / 2 if operands.new_value is not None else 0
    return SlimWork(
        heads=heads,
        head_dim=dim,
        width=operands.state.shape[2],
        queries=queries,
        past=past,
        past_pairs=every - own,
        new_pairs=own,
        keys_made=operands.key_weight is not None,
        values_made=operands.value_weight is not None,
        placed=operands.finish is not None,
    )
