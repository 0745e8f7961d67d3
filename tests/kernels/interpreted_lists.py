"""Runs Focus's decoding by lists under Triton's interpreter: ``python -m tests.kernels.interpreted_lists``.

A process of its own, because Triton reads TRITON_INTERPRET when the kernels are defined. Prints one JSON line a case.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu_focus_decode_checks import check, check_limits, check_steps
from focus_core import compat
from focus_core.graphs import graph_decoding
from focus_core.kernels.focus import listed
from focus_core.retrofit import retrofit
from focus_core.routing.router import Router, RouterConfig
from focus_core.variants.base import Prepared
from focus_core.variants.dense import Dense
from focus_core.variants.groups import GroupedVariant
from tests.retrofit.helpers import Routed, far, positions_of, step, tokens
from tests.tiny import tiny_model

_SMALL = {"queries": 1, "keys": 70, "dim": 16, "heads": 2, "kv": 1, "window": 9, "sinks": 2, "groups": 4}
_SMALL |= {"dtype": "float32", "page": 32, "splits": 2}
_PADDED = {"batch": 2, "first": [25, 70], "looks": 2}
CASES = {
    "one token": {"keys": 1, "window": 1},
    "two tokens": {"keys": 2, "window": 1, "sinks": 0},
    "a page is full": {"keys": 33, "groups": 1, "window": 1},
    "the next page begins": {"keys": 34, "groups": 1, "window": 1},
    "empty groups": {"groups": 40, "looks": 3},
    "no groups": {"looks": 0, "held": 0},
    "a router a key head": {"heads": 6, "kv": 2, "routers": 2, "looks": 2, "splits": 4},
    "one router for two key heads": {"heads": 4, "kv": 2, "batch": 2},
    "three new tokens": {"queries": 3, "looks": 2, "softcap": 0.8, "window": 2},
    "eight, both sides in several groups": {"queries": 8, "held": 2, "looks": 3, "routers": 2, "kv": 2, "heads": 6},
    "keys in several groups": {"held": 3, "looks": 2, "scale": -0.4},
    "sixty-four groups and bit 63": {"groups": 64, "routers": 2, "kv": 2, "looks": 2, "held": 2, "queries": 2},
    "window over everything": {"window": 70},
    "sinks over everything": {"sinks": 68},
    "left padding": _PADDED | {"queries": 2},
    "all padding": {"batch": 2, "first": [0, 70]},
    "strided by token, odd sizes": {"layout": "tokens", "dim": 24, "value_dim": 40, "dtype": "float16"},
}


@dataclass(frozen=True)
class Listed(GroupedVariant):
    """The sets of ``Routed``, which depend on the text, so that beams differ in theirs."""

    def prepare(self, hidden, layer, positions, adapter, first_key):
        found = Routed().prepare(hidden, layer, positions, adapter, first_key)
        return Prepared(found.cached, found.fresh)


def _chat(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits of decoding, a longer turn, decoding, forgetting three tokens and decoding again; rows padded."""
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    cache, logits, start = None, [], 0
    for size in (12, 1, 1, 10, 1, -3, 1, 2):
        if size < 0:
            compat.drop_last(cache, -size)
            start += size
            assert cache.get_seq_length() == start
            continue
        end = start + size
        out, cache = step(model, ids[:, start:end], cache, mask[:, :end], positions_of(mask)[:, start:end])
        logits.append(out[:, -1])
        start = end
    return torch.stack(logits)


def _generated(model: Any, ids: torch.Tensor, **settings: Any) -> Any:
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    settings = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True} | settings
    return model.generate(ids, attention_mask=mask, pad_token_id=0, eos_token_id=None, output_logits=True, **settings)


def in_models() -> list[dict[str, Any]]:
    """What a model gives with lists, against the reference without: greedy, beams, and a cache that is cut."""
    model, served = tiny_model("llama", layers=1, heads=4, kv_heads=2), [0]
    by_lists = Listed(groups=8, window=3, sinks=1)
    plain = dataclasses.replace(by_lists, backend="reference")
    inside = listed.listed_attention

    def counted(*args: Any, **kwargs: Any) -> Any:
        out = inside(*args, **kwargs)
        served[0] += out is not None
        return out

    listed.listed_attention = counted
    rows = []
    runs = {
        "greedy": lambda: torch.stack(_generated(model, tokens(2, 12)).logits),
        "beams": lambda: _generated(model, tokens(2, 12), num_beams=2, output_scores=True).sequences_scores,
        "turns and a cut": lambda: _chat(model, tokens(2, 30)),
    }
    for name, run in runs.items():
        with torch.no_grad():
            with retrofit(model, plain):
                wanted = run()
            assert not served[0], "the reference must not go by lists"
            with retrofit(model, by_lists):
                got = run()
        rows.append({"name": name, "served": served[0], "error": far(got.float(), wanted.float())})
        served[0] = 0
    listed.listed_attention = inside
    return rows


def in_room() -> list[dict[str, Any]]:
    """Decoding in a cache with room, the number of tokens read on the device, against decoding without."""
    model, rows = tiny_model("llama", layers=1, heads=4, kv_heads=2), []
    ids = tokens(2, 12)
    for name, variant in {"dense in room": Dense(), "lists in room": Listed(groups=8, window=3, sinks=1)}.items():
        with torch.no_grad(), retrofit(model, variant) as active:
            wanted = _generated(model, ids, max_new_tokens=4)
            with graph_decoding(active, 15, graph=True) as decoding:
                got = _generated(model, ids, max_new_tokens=4)
        error = far(torch.stack(got.logits), torch.stack(wanted.logits))
        same = torch.equal(got.sequences, wanted.sequences)
        rows.append({"name": name, "served": decoding.eager, "error": error if same else float("inf")})
    return rows


ROUTERS = {
    "directed": {"routers": 3, "groups": 16, "dim": 16, "looks": (1, 4)},
    "shared, odd sizes": {"form": "shared", "groups": 5, "dim": 6, "hidden_size": 70, "looks": (2, 1)},
    "sixty-four groups, all of them": {"groups": 64, "dim": 4, "looks": (3, 64)},
    "a number of looks a router": {
        "routers": 4,
        "groups": 5,
        "dim": 6,
        "table": ((1, 1, 1, 1), (0, 5, 5, 2)),
        "looks": (2, 3),
    },
    "one group": {"groups": 1, "dim": 1, "looks": (1, 1), "dtype": torch.float16},
}


def in_routers() -> list[dict[str, Any]]:
    """The sets of a few tokens, against those of the same tokens in a long text."""
    rows = []
    for name, case in ROUTERS.items():
        case = dict(case)
        looks, dtype, table = case.pop("looks"), case.pop("dtype", torch.float32), case.pop("table", None)
        router = Router(RouterConfig(**({"layers": 2, "hidden_size": 64} | case))).to(dtype)
        router.bias.normal_(generator=torch.Generator().manual_seed(1))
        text = torch.randn(2, 40, router.config.hidden_size, generator=torch.Generator().manual_seed(0)).to(dtype)
        # Strided by token, as a part of a text is.
        if table:
            router, looks = router.with_looks(table), (looks[0], router.with_looks(table).looks_of(1))
        few = router.sets(1, text[:, 3:5], *looks)
        whole = router.sets(1, text, *looks)
        wrong = sum(int((a != b[:, :, 3:5]).sum()) for a, b in zip(few, whole, strict=True))
        rows.append({"name": name, "good": wrong == 0, "wrong": wrong})
    return rows


def main() -> None:
    """Every case, a line each."""
    torch.set_num_threads(1)
    for name, case in CASES.items():
        print(json.dumps({"name": name, **check(_SMALL | case, "cpu")}), flush=True)
    print(json.dumps({"name": "limits", **check_limits("cpu")}), flush=True)
    print(json.dumps({"name": "steps", **check_steps("cpu", graph=False, steps=8)}), flush=True)
    for row in in_routers():
        print(json.dumps(row), flush=True)
    for row in in_models() + in_room():
        print(json.dumps(row | {"good": row["error"] < 1e-4 and row["served"] > 0}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
