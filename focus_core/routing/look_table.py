"""A table of looks for a trained router: costs on one part of a text, a knapsack, and a choice on another part."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from focus_core.errors import Cancelled, InvalidInput
from focus_core.evaluation.perplexity import weights_hash
from focus_core.routing.allocation import allocate
from focus_core.routing.look_costs import LOSS, PAIRS, by_change, by_gradient, near_share
from focus_core.routing.router import Router
from focus_core.variants import Variant, make

WAYS = ("gradient", "change")
STARTS = ("uniform", "dense", "adapter")
_TRIMS = 3
"""Most tables that are made after the last round, where that one's keeps more than the budget."""
_SLACK = 5e-3
"""A table may keep so much more than the budget, as a share of it."""
FORMAT = 1


@dataclass(frozen=True)
class Search:
    """How a table is looked for.

    Attributes:
        budget: largest share of causal pairs kept, mean over layers and heads.
        levels: numbers of looks that a router may have.
        by: ``gradient`` or ``change``; see ``look_costs``.
        start: what the first round's costs are of: ``uniform`` (as many looks everywhere as the budget has room for),
            ``dense``, or the table that the ``adapter`` has.
        rounds: each of them takes the costs anew around the table before it. What they found is averaged: costs do
            not add up, and a table made of one round's goes too far.
        batch: rows that run together where one router is changed at a time.
    """

    budget: float
    levels: tuple[int, ...]
    by: str = "gradient"
    start: str = "uniform"
    rounds: int = 3
    batch: int = 8


def check_search(search: Search, router: Any, serve: dict[str, Any], context: int) -> None:
    """Refuse a search that could not end well, before a model is loaded.

    Args:
        search: the search.
        router: the router's config.
        serve: the mask that the router is served with.
        context: tokens a window.

    Raises:
        InvalidInput: with the numbers.
    """
    if search.by not in WAYS or search.start not in STARTS:
        raise InvalidInput(f"There is no way {search.by!r} or no start {search.start!r}.", f"{WAYS}, {STARTS}.")
    if wrong := [level for level in search.levels if not 0 <= level <= router.groups]:
        raise InvalidInput(
            f"A query cannot look into {wrong[0]} groups: the adapter has {router.groups}.",
            f"Levels can be 0 to {router.groups}.",
        )
    if len(set(search.levels)) < 2:
        raise InvalidInput(
            f"With {len(set(search.levels))} level there is nothing to choose.", "Give two or more, as 0 2 8."
        )
    for name in ("rounds", "batch"):
        if getattr(search, name) < 1:
            raise InvalidInput(f"{name} is {getattr(search, name)}.", "It can be 1 or more.")
    near = near_share(context, serve["window"], serve["sinks"])
    if near == 1:
        raise InvalidInput(
            f"Window and sinks keep all pairs of {context} tokens: no number of looks changes anything.",
            f"Use a context over {serve['window'] + serve['sinks']}.",
        )
    if not near < search.budget < 1:
        raise InvalidInput(
            f"A budget of {search.budget:g} of the pairs cannot be kept to: window and sinks alone keep {near:.3f} of "
            f"{context} tokens'.",
            f"Give a share over {near:.3f} and below 1.",
        )
    if search.start == "adapter" and router.looks is None:
        raise InvalidInput("The adapter has no table of looks to start from.", "Start from uniform or dense.")


class TableSearch:
    """Looks for a router's table; every piece of work that is done can be taken up again.

    Args:
        loaded: what ``load_model`` returned.
        router: the trained router.
        search: how; ``check_search`` has seen it.
        fitted: (W, N) token ids that costs are taken on.
        held: (V, N) token ids of other text that the tables are compared on.
        progress: told the fraction done.
        cancel: asked between runs of the model.
        keep: called after every piece with a document that ``resume`` takes.
        resume: such a document; it is used where model, router, search and windows are the same.
    """

    def __init__(
        self,
        loaded: Any,
        router: Router,
        search: Search,
        fitted: torch.Tensor,
        held: torch.Tensor,
        *,
        progress: Callable[[float, str], None] | None = None,
        cancel: Callable[[], bool] | None = None,
        keep: Callable[[dict[str, Any]], None] | None = None,
        resume: dict[str, Any] | None = None,
    ) -> None:
        self.loaded, self.router, self.search, self.fitted, self.held = loaded, router, search, fitted, held
        self.progress, self.cancel, self.keep = progress, cancel, keep
        served = make("focus", router.serve).to_dict()
        self.mask = {name: served[name] for name in ("groups", "key_topk", "window", "sinks")}
        self.own = [layer for layer, window in enumerate(loaded.facts.native) if window is None]
        self.key = self._key()
        self.done: dict[str, Any] = dict(resume["done"]) if resume and resume.get("key") == self.key else {}
        self.carried = len(self.done)
        costs = search.rounds * len(fitted) * (1 if search.by == "gradient" else len(self.own))
        # Dense, a table a round, and about three numbers for all.
        self.expected, self.count = costs + (search.rounds + 5) * len(held), 0

    def run(self) -> tuple[Router, dict[str, Any]]:
        """Search.

        Returns:
            The router with the table that lost least on the held windows, and all that was found: JSON values.
        """
        context = self.fitted.shape[1]
        levels = sorted(set(self.search.levels))
        rivals = [{"what": "dense", **self._measure("dense", None)}, *self._uniform()]
        table, tables = self._start(context), list[dict[str, Any]]()
        loss = pairs = np.zeros(0)
        room = whole = self._room(context)
        for n in range(self.search.rounds + _TRIMS):
            trim = n >= self.search.rounds
            if trim and tables[-1]["kept_pairs"] <= self.search.budget:
                break
            about: dict[str, Any] = {"from": table.tolist()}
            if not trim:
                found = self._costs(n, table, levels)
                # Costs are from the round's own table: of those from another only the differences say something.
                costs = found[LOSS] - found[LOSS].min(-1, keepdims=True)
                loss, pairs = loss + (costs - loss) / (n + 1) if n else costs, found[PAIRS]
                about |= {"costs": np.round(costs, 7).tolist(), "pairs": np.round(pairs, 5).tolist()}
            flat = pairs[self.own].reshape(-1, len(levels))
            picked = allocate(flat, loss[self.own].reshape(flat.shape), room)
            table = np.zeros_like(table)
            table[self.own] = np.array(levels)[picked].reshape(len(self.own), -1)
            measured = self._measure(f"table {n + 1}", table)
            tables.append({**about, "looks": table.tolist(), **measured})
            # Other looks are other hidden states, and these other groups: what a table keeps is seen once it is made.
            expected = flat[np.arange(len(flat)), picked].mean()
            kept = (measured["kept_pairs"] - self.search.budget) * self.loaded.facts.layers / len(self.own) + whole
            room = max(flat.min(1).mean(), whole - (kept - expected))
        within = [t for t in tables if t["kept_pairs"] <= self.search.budget * (1 + _SLACK)]
        best = min(within or tables[-1:], key=lambda t: t["nll"])
        made = self.router.with_looks(best["looks"])
        document = {
            "format": FORMAT,
            "context": context,
            "budget": self.search.budget,
            "levels": levels,
            "by": self.search.by,
            "start": self.search.start,
            "windows": len(self.fitted),
            "held_windows": len(self.held),
            "mask": self.mask,
            "rivals": rivals,
            "tables": tables,
            "best": tables.index(best),
            "looks": best["looks"],
            "carried": self.carried,
        }
        if self.progress is not None:
            self.progress(1.0, "Done")
        return made, document

    def _key(self) -> list[Any]:
        ids = torch.cat([self.fitted.flatten(), self.held.flatten()])
        return [
            FORMAT,
            self.loaded.name,
            self.loaded.facts.revision,
            str(self.loaded.model.device),
            str(self.loaded.model.dtype),
            weights_hash(self.router),
            self.mask,
            [list(v) if isinstance(v, tuple) else v for v in vars(self.search).values()],
            list(self.fitted.shape),
            list(self.held.shape),
            # Any other text changes it.
            int((ids.double() * torch.arange(1, len(ids) + 1)).sum()) % (1 << 53),
        ]

    def _room(self, context: int) -> float:
        """The budget of the layers that a router serves, when layers with a window of their own have spent theirs."""
        facts = self.loaded.facts
        spent = sum(near_share(context, window) for window in facts.native if window is not None)
        return (self.search.budget * facts.layers - spent) / len(self.own)

    def _start(self, context: int) -> np.ndarray:
        config, shape = self.router.config, (self.router.config.layers, self.router.config.routers)
        if self.search.start == "adapter":
            return np.array(config.looks)
        if self.search.start == "dense":
            return np.full(shape, config.groups)
        near = near_share(context, self.mask["window"], self.mask["sinks"])
        share = (self.search.budget - near) / (1 - near) * config.groups / self.mask["key_topk"]
        return np.full(shape, min(config.groups, max(1, round(share))))

    def _costs(self, n: int, table: np.ndarray, levels: Sequence[int]) -> np.ndarray:
        """(2, L, R, V), mean over the fitted windows."""
        model, search, found = self.loaded.model, self.search, []
        for w, ids in enumerate(self.fitted):
            given = model, self.router, self.mask, table, levels, ids[None].to(model.device)
            if search.by == "gradient":
                name = f"round {n + 1}, window {w + 1} of {len(self.fitted)}: forward and back"
                found.append(self._piece(name, partial(by_gradient, *given)))
                continue
            one = np.zeros((2, *table.shape, len(levels)))
            for layer in self.own:
                name = f"round {n + 1}, window {w + 1} of {len(self.fitted)}, layer {layer}"
                work = partial(by_change, *given, layer, batch=search.batch, ask=self._ask)
                one[:, layer] = self._piece(name, work)
            found.append(one)
        return np.mean(found, 0)

    def _uniform(self) -> list[dict[str, Any]]:
        """What the largest number of looks within the budget reaches, and the next one over it."""
        shape = (self.router.config.layers, self.router.config.routers)
        q, seen = int(self._start(self.fitted.shape[1])[0, 0]) if self.search.start == "uniform" else 1, {}
        groups = self.router.config.groups
        while q not in seen:
            seen[q] = self._measure(f"all {q}", np.full(shape, q))
            q = min(groups, q + 1) if seen[q]["kept_pairs"] <= self.search.budget else max(1, q - 1)
        return [{"what": f"query_topk {q}", **seen[q]} for q in sorted(seen)]

    def _measure(self, name: str, table: np.ndarray | None) -> dict[str, float]:
        """Served loss and pairs of the held windows; dense without a table."""
        from focus_core.evaluation.likelihood import token_nll
        from focus_core.evaluation.recorders import PairCounter
        from focus_core.retrofit import retrofit

        router, variant = None, make("dense")
        if table is not None:
            router = self.router.with_looks(table.tolist())
            variant = make("focus", {**self.mask, "query_topk": router.config.usual_looks})
        model, found = self.loaded.model, []

        def one(ids: torch.Tensor, variant: Variant, router: Router | None) -> list[float]:
            pairs = PairCounter()
            with torch.no_grad(), retrofit(model, variant, router, recorder=pairs):
                nll = token_nll(model, ids[None].to(model.device))
            return [float(nll.double().mean()), float(np.mean(pairs.kept(0)))]

        for w, ids in enumerate(self.held):
            # A table that a round comes to again is not measured again.
            what = "dense" if table is None else "".join(f"{n:x}." for n in table.flatten())
            piece = f"{name}, held window {w + 1} of {len(self.held)}"
            found.append(self._piece(piece, partial(one, ids, variant, router), key=f"{what} {w}"))
        nll = float(np.mean([n for n, _ in found]))
        return {"nll": nll, "ppl": math.exp(nll), "kept_pairs": float(np.mean([k for _, k in found]))}

    def _piece(self, name: str, work: Callable[[], Any], key: str | None = None) -> np.ndarray:
        """What a piece of work found, now or in an earlier run."""
        key = key or name
        if key not in self.done:
            self._ask()
            if self.progress is not None:
                self.progress(min(0.99, self.count / self.expected), name[:1].upper() + name[1:])
            found = np.asarray(work())
            if not np.isfinite(found).all():
                raise InvalidInput(f"The loss is no number ({name}).", "Use --dtype float32.")
            self.done[key] = found.tolist()
            if self.keep is not None:
                self.keep({"key": self.key, "done": self.done})
        self.count += 1
        return np.array(self.done[key])

    def _ask(self) -> None:
        if self.cancel is not None and self.cancel():
            raise Cancelled("Stopped; what was done is kept.", "Run it again to go on from here.")
