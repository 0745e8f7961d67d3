"""Changes of single groups by hand: a token moved to a group, or one group merged into another.

An edit changes sets after routing, token by token, so that attention stays causal: no token's set depends on a later
token. No torch at the top: edits are checked in the app's process as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from focus_core.errors import InvalidInput, Unsupported
from focus_core.variants.base import (
    AttentionCall,
    Cost,
    NewTokens,
    Packed,
    Prepared,
    RoutingSpace,
    Shape,
    Support,
    Variant,
)
from focus_core.variants.groups import GroupedVariant

if TYPE_CHECKING:
    import torch

    from focus_core.models.facts import ModelFacts
    from focus_core.pattern import Pattern

MAX_EDITS = 1_000
_HINT = (
    'An edit is {"layer": 3, "router": 0, "token": 17, "to": 5} or {"layer": 3, "router": 0, "merge": [2, 5]}, '
    "with whole numbers from 0."
)


@dataclass(frozen=True)
class Move:
    """A token's key set and query set become the one group ``to``."""

    layer: int
    router: int
    token: int
    to: int

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups that are named."""
        return (self.to,)

    def document(self) -> dict[str, Any]:
        """As it stands in a request."""
        return asdict(self)

    def apply(self, sets: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Sets (B, R, N) int64 of the tokens at ``positions`` (B, N), with this edit; the given ones stay."""
        import torch

        sets = sets.clone()
        one = torch.ones((), dtype=sets.dtype, device=sets.device) << self.to
        sets[:, self.router] = torch.where(positions == self.token, one, sets[:, self.router])
        return sets


@dataclass(frozen=True)
class Merge:
    """All of the group ``source`` is in the group ``into`` instead, as keys and as queries."""

    layer: int
    router: int
    source: int
    into: int

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups that are named."""
        return (self.source, self.into)

    def document(self) -> dict[str, Any]:
        """As it stands in a request."""
        return {"layer": self.layer, "router": self.router, "merge": [self.source, self.into]}

    def apply(self, sets: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """See Move.apply."""
        sets = sets.clone()
        own = sets[:, self.router]
        member = own >> self.source & 1
        sets[:, self.router] = (own & ~(member << self.source)) | (member << self.into)
        return sets


Edit = Move | Merge


def parse(given: Any) -> tuple[Edit, ...]:
    """The edits of a request, in the order in which they are made.

    Args:
        given: None, or a list of dictionaries as in a ``trace`` request.

    Raises:
        InvalidInput: it is anything else; the message names the edit by its number.
    """
    if given is None:
        return ()
    if not isinstance(given, (list, tuple)):
        raise InvalidInput(f"edits is a {type(given).__name__}, not a list.", _HINT)
    if len(given) > MAX_EDITS:
        raise InvalidInput(f"There are {len(given):,} edits.", f"Up to {MAX_EDITS:,} are taken.")
    return tuple(_parse_one(number, item) for number, item in enumerate(given, 1))


def _parse_one(number: int, item: Any) -> Edit:
    merges = isinstance(item, dict) and "merge" in item
    wanted = {"layer", "router", "merge"} if merges else {"layer", "router", "token", "to"}
    if not isinstance(item, dict) or set(item) != wanted:
        raise InvalidInput(f"Edit {number} is {item!r:.120}.", _HINT)
    pair = item.get("merge", [])
    if merges and (not isinstance(pair, (list, tuple)) or len(pair) != 2):
        raise InvalidInput(f"Edit {number} merges {pair!r:.120}.", "A merge names two groups: the one that goes first.")
    numbers = {**{key: value for key, value in item.items() if key != "merge"}, **dict(zip("ab", pair, strict=False))}
    for key, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            what = "a group" if key in "ab" else key
            raise InvalidInput(f"Edit {number}: {what} is {value!r:.40}.", _HINT)
    if not merges:
        return Move(**item)
    if pair[0] == pair[1]:
        raise InvalidInput(f"Edit {number} merges group {pair[0]} into itself.", "Name two different groups.")
    return Merge(item["layer"], item["router"], *pair)


def check(
    edits: Sequence[Edit],
    variant: Variant,
    *,
    native: Sequence[int | None] | None = None,
    layers: int | None = None,
    routers: int | None = None,
    tokens: int | None = None,
) -> None:
    """Refuse edits that have nothing to change, as far as the sizes are known.

    Args:
        edits: what was asked for.
        variant: the variant that is edited.
        native: each layer's own sliding window or None; None as a whole where it is not known.
        layers: layers of the model.
        routers: routers of a layer.
        tokens: length of the text.

    Raises:
        Unsupported: the variant serves no groups.
        InvalidInput: there is no such layer, router, token or group.
    """
    if not edits:
        return
    if not isinstance(variant, GroupedVariant) or not variant.served or not variant.editable:
        gate = f" with the {variant.gate} gate" if hasattr(variant, "gate") else ""
        raise Unsupported(f"{variant.name}{gate} serves no groups that could be edited.", "Use Focus's hard gate.")
    for number, edit in enumerate(edits, 1):
        limits = [("layer", edit.layer, layers), ("router", edit.router, routers)]
        limits += [("group", group, variant.groups) for group in edit.groups]
        limits += [("token", edit.token, tokens)] if isinstance(edit, Move) else []
        for what, value, count in limits:
            if count is not None and value >= count:
                span = f"0 to {count - 1:,}" if count > 1 else "0 alone"
                raise InvalidInput(f"Edit {number}: there is no {what} {value:,}.", f"It can be {span}.")
        if native is not None and native[edit.layer] is not None:
            full = [str(layer) for layer, own in enumerate(native) if own is None]
            raise InvalidInput(
                f"Edit {number}: layer {edit.layer} keeps its own window of {native[edit.layer]} and has no groups.",
                f"Layers with groups: {', '.join(full)}.",
            )


@dataclass(frozen=True)
class Edited(Variant):
    """A variant that passed ``check``, its sets edited after routing; everything else is the variant's own."""

    name: ClassVar[str] = ""

    inner: Variant
    edits: tuple[Edit, ...]

    def __post_init__(self) -> None:
        """The variant inside has checked itself; see ``check`` for the edits."""

    @property
    def adapter_kind(self) -> str | None:  # type: ignore[override]
        """See Variant.adapter_kind."""
        return self.inner.adapter_kind

    @property
    def packs_keys(self) -> bool:  # type: ignore[override]
        """See Variant.packs_keys."""
        return self.inner.packs_keys

    def pack(self, new: NewTokens) -> Packed:
        """See Variant.pack."""
        return self.inner.pack(new)

    def supports(self, facts: ModelFacts) -> Support:
        """See Variant.supports."""
        return self.inner.supports(facts)

    def prepare(
        self, hidden: torch.Tensor, layer: int, positions: torch.Tensor, adapter: Any, first_key: torch.Tensor | None
    ) -> Prepared:
        """See Variant.prepare."""
        made = self.inner.prepare(hidden, layer, positions, adapter, first_key)
        keys, queries = made.cached, made.fresh
        assert keys is not None, "a grouped variant gives every token its set"
        for edit in self.edits:
            if edit.layer == layer:
                if edit.router >= keys.shape[1]:
                    raise InvalidInput(f"There is no router {edit.router}.", f"A layer has {keys.shape[1]}.")
                keys, queries = edit.apply(keys, positions), edit.apply(queries, positions)
        return Prepared(keys, queries)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        return self.inner.attend(call)

    def pattern(self, call: AttentionCall) -> Pattern:
        """See Variant.pattern."""
        return self.inner.pattern(call)

    def routing_space(self, call: AttentionCall) -> RoutingSpace | None:
        """See Variant.routing_space; an edit moves no point."""
        return self.inner.routing_space(call)

    def routing_width(self, config: Any) -> int:
        """See Variant.routing_width."""
        return self.inner.routing_width(config)

    def cost(self, shape: Shape) -> Cost:
        """See Variant.cost."""
        return self.inner.cost(shape)
