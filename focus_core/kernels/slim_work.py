"""Operations of Slim attention's two orders; known without torch, so that a page can count them."""

from __future__ import annotations

from dataclasses import dataclass

ORDERS = ("auto", "values", "weights")


@dataclass(frozen=True)
class SlimWork:
    """One call of slim attention over a state of ``width`` numbers a token.

    Attributes:
        heads: heads.
        head_dim: numbers of a head's key and value.
        width: numbers of the state.
        queries: new tokens of a row.
        pairs: (query, key) pairs of a head.
        past: tokens whose keys or values are made from the state.
        keys_made, values_made: whether keys and values have to be made from the state by a matrix.
        placed: whether a key that is made has to be rotated or normalised, so that its matrix cannot wait.
    """

    heads: int
    head_dim: int
    width: int
    queries: int
    pairs: float
    past: int
    keys_made: bool
    values_made: bool
    placed: bool

    def operations(self, order: str) -> float:
        """Operations (a multiplication and an addition are two) of ``order`` values or weights.

        ``values`` makes the keys and values of every past token, then attends: a matrix a token. ``weights`` applies
        the same matrices to each query, or to its weighted sum of states: a matrix a query, and sums as wide as the
        state.
        """
        size = self.heads * self.head_dim
        total = 0.0
        for made, absorbed in (
            (self.keys_made, order == "weights" and not self.placed),
            (self.values_made, order == "weights"),
        ):
            wide = made and absorbed
            total += 2.0 * self.pairs * (self.heads * self.width if wide else size)
            if made:
                total += 2.0 * (self.queries if absorbed else self.past) * self.width * size
        return total

    def order(self, asked: str = "auto") -> str:
        """The order with fewer operations, unless one was asked for."""
        if asked != "auto":
            return asked
        return min(("weights", "values"), key=self.operations)
