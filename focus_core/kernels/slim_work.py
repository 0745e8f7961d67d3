"""Operations of Slim attention's two orders; known without torch, so that a page can count them."""

from __future__ import annotations

from dataclasses import dataclass

ORDERS = ("auto", "values", "weights")


@dataclass(frozen=True)
class SlimWork:
    """One row's attention over a state of ``width`` numbers a token.

    Attributes:
        heads: heads.
        head_dim: numbers of a head's key and value.
        width: numbers of the state.
        queries: new tokens.
        past: tokens whose keys and values come from the state.
        past_pairs: (query, key) pairs of a head with those tokens.
        new_pairs: pairs of a head with tokens whose own keys and values are at hand.
        keys_made: whether a key is the state times a matrix.
        values_made: whether a value is.
        placed: whether a key is rotated or normalised after that, so that its matrix cannot wait.
    """

    heads: int
    head_dim: int
    width: int
    queries: int
    past: int
    past_pairs: float
    new_pairs: float
    keys_made: bool
    values_made: bool
    placed: bool

    def operations(self, order: str) -> float:
        """Operations (a multiplication and an addition are two) of ``order`` values or weights.

        ``values`` makes the keys and values of every past token, then attends: a matrix a token. ``weights`` applies
        the same matrices to each query, or to its weighted sum of states: a matrix a query, and sums as wide as the
        state. The rotation itself is not counted.
        """
        size, waits = self.heads * self.head_dim, order == "weights"
        total = 0.0
        for made, absorbed in ((self.keys_made, waits and not self.placed), (self.values_made, waits)):
            wide = self.heads * self.width if made and absorbed else size
            total += 2.0 * (self.past_pairs * wide + self.new_pairs * size)
            if made:
                total += 2.0 * (self.queries if absorbed else self.past) * self.width * size * (self.past > 0)
        return total

    def order(self, asked: str = "auto") -> str:
        """The order with fewer operations, unless one was asked for."""
        if asked != "auto":
            return asked
        return min(("weights", "values"), key=self.operations)
