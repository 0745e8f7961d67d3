"""Planted needles: keys deep in the text that hold most of some queries' weight. Are their blocks kept?

A block's score is made of means of ``stride`` products, one for each place of a key in its stride. One key that all
queries of a block look for raises a mean by a ``stride``-th of its own score: it weighs in full only with neighbours
that are looked for too. So needles of one key and of runs of keys are planted, with the weight that they really have.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu_xattention_ways import BLOCK
from focus_core.benchmark.inputs import Inputs

ROUNDS = 8
CASES = [(128, keys) for keys in (1, 4, 8, 16, 32, 64)] + [(run, keys) for run in (1, 16) for keys in (1, 16)]
"""Queries in a row that look for a needle, and keys in a row that it has."""


def needles(
    one: Inputs, about: dict[str, Any], run: int, keys: int, choose: Callable[..., Any], attend: Callable[..., Any]
) -> dict[str, Any]:
    """What became of needles of ``keys`` keys that the last ``run`` queries of a block look for.

    The keys of a needle are alike. They point where its queries do on average, and are so long that together they get
    95 % of the last one's weight.

    Args:
        one: a layer's queries, keys and values.
        about: what the row says of them.
        run: queries in a row, the last ones of a block.
        keys: keys in a row.
        choose: kept blocks of a form (``own`` or ``before``), of q and k.
        attend: attention over kept blocks.
    """
    q, tokens, device = one.query, one.query.shape[2], one.query.device
    kv_heads, blocks = one.key.shape[1], tokens // BLOCK
    share, scale = q.shape[1] // kv_heads, q.shape[3] ** -0.5
    generator = torch.Generator(device).manual_seed(5)
    held: list[float] = []
    kept: dict[str, list[bool]] = {"own": [], "before": []}
    off: dict[str, list[float]] = {"own": [], "before": []}
    for turn in range(ROUNDS):
        # One needle a KV head at a time: needles do not draw each other's queries.
        k, v = one.key.clone(), one.value.clone()
        into, spots, wanted = int(blocks * (0.7 + 0.28 * turn / ROUNDS)), [], []
        asks = torch.arange(into * BLOCK, (into + 1) * BLOCK, device=device)
        for kv in range(kv_heads):
            place = int(blocks * (0.1 + 0.5 * (turn + kv / kv_heads) / ROUNDS)) * BLOCK
            # At every place of a stride, and inside one block.
            place += (turn * kv_heads + kv) * 5 % (BLOCK - keys)
            seen, own = k[0, kv, : (into + 1) * BLOCK], q[0, kv * share, asks].double()
            toward = own[-run:].mean(0)
            whole = float((seen.double() @ own[-1] * scale).logsumexp(0))
            seen[place : place + keys] = toward * ((whole + 3 - math.log(keys)) / (scale * float(own[-1] @ toward)))
            value = torch.randn(q.shape[3], generator=generator, device=device) * v.float().std() * 4
            v[0, kv, place : place + keys] = value.to(v.dtype)
            scores = own.float() @ seen.float().T * scale
            scores.masked_fill_(torch.arange(len(asks) + int(asks[0]), device=device) > asks[:, None], -math.inf)
            weights = scores.softmax(-1)
            held.append(float(weights[:, place : place + keys].sum(-1).mean()))
            wanted.append(weights[-1] @ v[0, kv, : (into + 1) * BLOCK].float())
            spots.append(place // BLOCK)
        for form in kept:
            mask = choose(form, q, k)
            out = attend(q, k, v, mask)[0, ::share, int(asks[-1])].float()
            for kv in range(kv_heads):
                kept[form].append(bool(mask[0, kv * share, into, spots[kv]]))
                off[form].append(float((out[kv] - wanted[kv]).norm() / wanted[kv].norm()))
    found: dict[str, Any] = {**about, "method": "xattention", "what": "needles", "layer": one.layer, "tokens": tokens}
    found |= {"queries_in_a_row": run, "keys_in_a_row": keys, "needles": len(held)}
    found["weight_of_its_block_of_queries"] = statistics.mean(held)
    for form in kept:
        found[f"kept_{form}"] = statistics.mean(kept[form])
        for name, state in (("kept", True), ("not_kept", False)):
            some = [x for x, there in zip(off[form], kept[form], strict=True) if there == state]
            found[f"off_where_{name}_{form}"] = statistics.median(some) if some else None
    return found
