"""The learned router: which groups a token belongs to, and which it looks for.

Paper: "Focus" (arXiv 2604.03260), section 3; the forms ``shared`` and ``directed`` are causal, ``paper`` is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from focus_core.adapter import Adapter
from focus_core.errors import InvalidInput
from focus_core.kernels.focus.triton import machine_refusal
from focus_core.routing.sets import MAX_GROUPS, top_groups, top_groups_each

FORMS = ("directed", "shared", "paper")
PAPER_TEMPERATURE = 0.1
PAPER_ITERATIONS = 10
_PAPER_SHARPNESS = 5.0
_FEW = 8
"""Tokens of a row up to which their sets are made in one launch, on a GPU."""


@dataclass(frozen=True)
class Looks:
    """How many groups the queries of each router of one layer look into.

    Attributes:
        each: a number a router.
        numbers: (R,) int32, the same beside the router's weights: a CUDA graph cannot hold what comes from the host.
    """

    each: tuple[int, ...]
    numbers: torch.Tensor

    @property
    def most(self) -> int:
        """The largest of them, at least 1."""
        return max(1, *self.each)

    @property
    def runs(self) -> list[tuple[int, int, int]]:
        """First router, end and number of the neighbours with one number: a launch serves one number."""
        starts = [i for i, n in enumerate(self.each) if i == 0 or n != self.each[i - 1]]
        return [(a, b, self.each[a]) for a, b in zip(starts, [*starts[1:], len(self.each)], strict=True)]


@dataclass(frozen=True)
class RouterConfig:
    """Shape of a router.

    Attributes:
        layers: layers of the model (native layers have a router too; it is never called).
        hidden_size: width of the hidden state that is routed.
        groups: K, at most 64.
        dim: d_g, width of the routing space.
        routers: 1 (all heads of a layer share groups) or the model's KV heads (each has its own).
        form: ``directed`` (queries have their own projection), ``shared`` (one projection), or ``paper``.
        seed: of the initial weights.
        looks: groups that the queries of each layer and router look into, (layers, routers) of 0 to K: none of them
            is window and sinks alone, all of them dense; None where ``query_topk`` says one number for all.
    """

    layers: int
    hidden_size: int
    groups: int = 16
    dim: int = 16
    routers: int = 1
    form: str = "directed"
    seed: int = 0
    looks: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.form not in FORMS:
            raise InvalidInput(f"There is no router form {self.form!r}.", f"It can be {', '.join(FORMS)}.")
        if not 1 <= self.groups <= MAX_GROUPS:
            raise InvalidInput(f"{self.groups} groups cannot be served.", f"1 to {MAX_GROUPS} can.")
        if min(self.layers, self.hidden_size, self.dim, self.routers) < 1:
            raise InvalidInput(f"A router needs positive sizes, not {self}.")
        if self.looks is not None:
            # JSON knows lists alone.
            object.__setattr__(self, "looks", _table(self.looks, self))

    @property
    def usual_looks(self) -> int:
        """The one ``query_topk`` that comes nearest to the table of looks: its rounded mean, at least 1."""
        if self.looks is None:
            raise TypeError("this router has no table of looks")
        return max(1, round(sum(map(sum, self.looks)) / (self.layers * self.routers)))


def _table(looks: Any, config: RouterConfig) -> tuple[tuple[int, ...], ...]:
    """A table of looks as tuples, its shape and range checked."""
    wanted = f"{config.layers} layers of {config.routers} router{'s' if config.routers > 1 else ''}"
    if not isinstance(looks, (list, tuple)) or not all(isinstance(row, (list, tuple)) for row in looks):
        raise InvalidInput(f"The looks are no table: {str(looks)[:60]}.", f"Give {wanted}.")
    sizes = sorted({len(row) for row in looks})
    if len(looks) != config.layers or sizes != [config.routers]:
        raise InvalidInput(
            f"The table of looks has {len(looks)} rows of {' or '.join(map(str, sizes)) or 0} numbers.",
            f"The adapter has {wanted}.",
        )
    for layer, row in enumerate(looks):
        for router, value in enumerate(row):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= config.groups:
                raise InvalidInput(
                    f"Router {router} of layer {layer} looks into {value!r} groups.",
                    f"It can be a whole number from 0 to {config.groups}.",
                )
    return tuple(tuple(row) for row in looks)


class Router(Adapter):
    """Projection, centroids and balancing bias of every layer.

    Attributes:
        key_projection: (L, R, d, d_g).
        query_projection: (L, R, d, d_g), a copy of the key projection at the start; None unless directed.
        centroids: (L, R, K, d_g).
        bias: (L, R, K) buffer that balancing moves; it is added to the logits of both sides.
        sharpness: (L,) lambda of the paper's gate; None in other forms.
        looks: (L, R) int32 buffer, the config's table of looks; None without one. It is saved with the config.
    """

    kind = "router"
    config_class = RouterConfig

    def __init__(self, config: RouterConfig) -> None:
        super().__init__(config)
        generator = torch.Generator().manual_seed(config.seed)
        lead = (config.layers, config.routers)
        projection = torch.randn(*lead, config.hidden_size, config.dim, generator=generator)
        self.key_projection = nn.Parameter(projection * config.hidden_size**-0.5)
        self.query_projection = nn.Parameter(self.key_projection.detach().clone()) if self.directed else None
        self.centroids = nn.Parameter(torch.randn(*lead, config.groups, config.dim, generator=generator))
        self.register_buffer("bias", torch.zeros(*lead, config.groups))
        self.sharpness = nn.Parameter(torch.full((config.layers,), _PAPER_SHARPNESS)) if self.is_paper else None
        table = None if config.looks is None else torch.tensor(config.looks, dtype=torch.int32)
        self.register_buffer("looks", table, persistent=False)

    @property
    def directed(self) -> bool:
        """Whether queries have their own projection."""
        return self.config.form == "directed"

    @property
    def is_paper(self) -> bool:
        """Whether this is the paper's own form, whose training assignment sees later tokens."""
        return self.config.form == "paper"

    def points(self, layer: int, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Key points, query points (B, R, N, d_g) and centroids (R, K, d_g) of the routing space, in fp32."""
        with torch.autocast(hidden.device.type, enabled=False):
            h = hidden.float()[:, None]
            keys = h @ self.key_projection[layer].float()
            queries = keys if self.query_projection is None else h @ self.query_projection[layer].float()
            centroids = self.centroids[layer].float()
            if not self.is_paper:
                keys = F.normalize(keys, dim=-1)
                queries = F.normalize(queries, dim=-1) if self.directed else keys
                centroids = F.normalize(centroids, dim=-1)
        return keys, queries, centroids

    def looks_of(self, layer: int) -> Looks:
        """The layer's row of the table of looks.

        Raises:
            TypeError: the router has none.
        """
        if self.config.looks is None:
            raise TypeError("this router has no table of looks")
        return Looks(self.config.looks[layer], self.looks[layer])

    def with_looks(self, looks: Any) -> Router:
        """The same router with a table of looks (see ``RouterConfig.looks``), or without one (None).

        Raises:
            InvalidInput: the table does not fit.
        """
        made = Router(dataclasses.replace(self.config, looks=looks))
        made.load_state_dict(self.state_dict())
        made.serve, made.record = dict(self.serve), dict(self.record)
        if looks is not None:
            made.serve["query_topk"] = made.config.usual_looks
        return made.to(self.bias.device).requires_grad_(False).eval()

    def sets(
        self, layer: int, hidden: torch.Tensor, key_topk: int, query_topk: int | Looks
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The served sets of keys and of queries (B, R, N) int64: the groups of the largest logits.

        ``query_topk`` is one number, or what each router has for itself.
        """
        if not self.is_paper and hidden.shape[1] <= _FEW and machine_refusal(hidden.device) is None:
            from focus_core.routing.triton_sets import few_sets

            query = None if self.query_projection is None else self.query_projection[layer]
            weights = self.key_projection[layer], query, self.centroids[layer], self.bias[layer]
            if isinstance(query_topk, int):
                return few_sets(hidden, *weights, key_topk, query_topk)
            key, query, centroids, bias = weights
            parts = []
            for first, end, number in query_topk.runs:
                some = slice(first, end)
                part = None if query is None else query[some]
                parts.append(few_sets(hidden, key[some], part, centroids[some], bias[some], key_topk, number))
            keys, queries = (torch.cat(part, 1) if len(part) > 1 else part[0] for part in zip(*parts, strict=True))
            return keys, queries
        key_logits, query_logits = self.logits(layer, hidden)
        if isinstance(query_topk, Looks):
            queries = top_groups_each(query_logits, query_topk.numbers, query_topk.most)
        else:
            queries = top_groups(query_logits, query_topk)
        return top_groups(key_logits, key_topk), queries

    def logits(self, layer: int, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Key and query logits (B, R, N, K) in fp32, the balancing bias included.

        A token's logits depend on that token alone, so routing is causal and does not change as text arrives.
        """
        keys, queries, centroids = self.points(layer, hidden)
        bias = self.bias[layer][:, None].float()
        # In bf16, near ties would be decided by rounding, and otherwise in prefill than in decode.
        with torch.autocast(hidden.device.type, enabled=False):
            key_logits = keys @ centroids.transpose(-1, -2) + bias
            if not self.directed:
                return key_logits, key_logits
            return key_logits, queries @ centroids.transpose(-1, -2) + bias


def members_each(
    soften: Callable[[torch.Tensor, int, float], torch.Tensor], logits: torch.Tensor, looks: Looks, temperature: float
) -> torch.Tensor:
    """``soft_members`` or ``straight_through_members`` (B, R, N, K), each router with its own number of groups."""
    parts = [
        soften(own, k, temperature) if k else torch.zeros_like(own)
        for own, k in zip(logits.unbind(1), looks.each, strict=True)
    ]
    return torch.stack(parts, 1)


def soft_members(logits: torch.Tensor, k: int, temperature: float) -> torch.Tensor:
    """Relaxed top-k membership (..., K) in [0, 1] that hardens to the served sets as the temperature falls.

    k = 1 is the softmax. Above it, each group is compared with the midpoint of the k-th and the (k+1)-th logit.
    """
    groups = logits.shape[-1]
    if k >= groups:
        return torch.ones_like(logits)
    if k == 1:
        return torch.softmax(logits / temperature, -1)
    top = logits.topk(k + 1, dim=-1).values
    return torch.sigmoid((logits - top[..., k - 1 :].mean(-1, keepdim=True)) / temperature)


def straight_through_members(logits: torch.Tensor, k: int, temperature: float) -> torch.Tensor:
    """The served top-k membership, with the gradient of the relaxed one."""
    soft = soft_members(logits, k, temperature)
    chosen = logits.topk(min(k, logits.shape[-1]), dim=-1).indices
    hard = torch.zeros_like(logits).scatter_(-1, chosen, 1.0)
    # The difference is zero to the last bit, so that the forward pass is the served membership itself.
    return hard + (soft - soft.detach())


def sinkhorn_over_sequence(logits: torch.Tensor, first_key: torch.Tensor | None) -> torch.Tensor:
    """The paper's assignment: Sinkhorn over the tokens of a sequence, columns first and rows last, in log space.

    It LEAKS: the column sums make a token's groups depend on later tokens (measured in the leak probe).

    Args:
        logits: (B, R, N, K), divided by the temperature already.
        first_key: (B,) first real token; pads take no part in the column sums.

    Returns:
        (B, R, N, K), each row summing to one.
    """
    q = logits
    pad = torch.zeros(q.shape[0], 1, q.shape[2], 1, dtype=torch.bool, device=q.device)
    if first_key is not None:
        pad = (torch.arange(q.shape[2], device=q.device)[None] < first_key[:, None])[:, None, :, None]
    for _ in range(PAPER_ITERATIONS):
        q = q - q.masked_fill(pad, -torch.inf).logsumexp(2, keepdim=True)
        q = q.log_softmax(-1)
    return q.exp().masked_fill(pad, 0)
