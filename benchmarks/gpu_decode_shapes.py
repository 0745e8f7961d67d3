"""Shapes, inputs and sizes of the decode benchmark, and the compilation of its kernels by several processes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu_decode_ways import relative
from focus_core.kernels.mla import mla_attention
from focus_core.kernels.mla import triton_decode as latents
from focus_core.kernels.sfa import Codes, encode, pack, sfa_attention, unpack
from focus_core.kernels.sfa import triton_decode as codes
from focus_core.kernels.slim import Turned, slim_attention
from focus_core.kernels.slim import triton_decode as states
from focus_core.kernels.slim.operands import Operands

_SFA = {"dim": 128, "features": 16, "tokens": 131_072}
_SLIM = {"heads": 32, "dim": 128, "tokens": 32_768}
_MLA = {"rank": 512, "nope": 128, "rope": 64, "value": 128, "tokens": 32_768}
SHAPES: dict[str, list[dict[str, Any]]] = {
    "sfa": [
        {**_SFA, "heads": 32, "kv": 8, "batch": 16, "caches": 1},
        {**_SFA, "heads": 32, "kv": 8, "batch": 1, "caches": 2},
        {**_SFA, "heads": 32, "kv": 32, "batch": 4, "caches": 1, "tune": False},
    ],
    "slim": [
        {**_SLIM, "batch": 16, "turned": False},
        {**_SLIM, "batch": 16, "turned": True},
        {**_SLIM, "batch": 1, "turned": True},
    ],
    "mla": [
        {**_MLA, "heads": 128, "batch": 4, "caches": 1, "expanded": True},
        {**_MLA, "heads": 128, "batch": 32, "caches": 1, "expanded": False},
        {**_MLA, "heads": 16, "batch": 16, "caches": 1, "expanded": True},
        {**_MLA, "heads": 128, "batch": 1, "caches": 12, "expanded": False},
    ],
}
SFA_PLANS = [
    codes.Plan(128, 4, 2, True, 2), codes.Plan(128, 4, 2, True, 8), codes.Plan(128, 4, 2, True, 32),
    codes.Plan(128, 4, 3, True, 4), codes.Plan(64, 2, 2, True, 16), codes.Plan(64, 2, 3, True, 8),
]  # fmt: skip
MLA_PLANS = {
    128: [latents.Plan(64, 64, 8, 2, 2), latents.Plan(64, 32, 8, 3, 1)],
    16: [
        latents.Plan(16, 64, 4, 2, 2), latents.Plan(16, 32, 4, 2, 3), latents.Plan(16, 32, 4, 2, 6),
        latents.Plan(16, 32, 4, 3, 3),
    ],
}  # fmt: skip


def slim_plans(turned: bool) -> list[states.Plan]:
    """Sizes and designs of Slim's kernels, the shipped one first."""
    plans = [
        states.plan_for(torch.bfloat16, 4096, turned),
        states.Plan(256, 32, 2, 2),
        states.Plan(512, 64, 4, 2, 8, 1, swap=True),
        states.Plan(512, 64, 2, 2, 8, 1, together=False),
    ]
    return list(dict.fromkeys(plans))


def _drawer(seed: int) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)


@dataclass(frozen=True)
class SfaCall:
    """A query, a dense cache and the codes of its keys as a cache packs them."""

    q: Any
    k: Any
    v: Any
    codes: Codes


def sfa_call(shape: dict[str, Any], seed: int = 0) -> SfaCall:
    """Random numbers of a shape."""
    draw, (batch, tokens, dim) = _drawer(seed), (shape["batch"], shape["tokens"], shape["dim"])
    k, v = draw(batch, shape["kv"], tokens, dim), draw(batch, shape["kv"], tokens, dim)
    packed = torch.cat([pack(encode(part, shape["features"])) for part in k.split(1)])
    held = unpack(packed, dim, shape["features"], k.dtype)
    return SfaCall(draw(batch, shape["heads"], 1, dim), k, v, held)


@dataclass(frozen=True)
class SlimCall:
    """A query and what ``slim_attention`` takes beside it."""

    q: Any
    given: dict[str, Any]

    @property
    def operands(self) -> Operands:
        """As the kernels take them."""
        left = ("key_weight", "key_bias", "value_bias", "finish", "first_key", "key_mask")
        return Operands(q=self.q, causal=True, **(dict.fromkeys(left) | self.given))


def slim_call(shape: dict[str, Any]) -> SlimCall:
    """Random numbers of a shape; angles are those of the usual rotary embedding."""
    draw, (batch, heads, dim) = _drawer(0), (shape["batch"], shape["heads"], shape["dim"])
    width = heads * dim
    given = {"state": draw(batch, shape["tokens"], width), "value_weight": draw(width, width) / width**0.5}
    given |= {"new_key": draw(batch, heads, 1, dim), "new_value": draw(batch, heads, 1, dim)}
    if shape["turned"]:
        speed = 1e4 ** -(torch.arange(0, dim, 2, device="cuda") / dim)
        angles = torch.arange(shape["tokens"], device="cuda")[None, :, None] * speed
        given["finish"] = Turned(angles.cos(), angles.sin())
    return SlimCall(draw(batch, heads, 1, dim), given)


def slim_error(c: SlimCall, out: Any, scale: float) -> float:
    """Largest relative error of some heads of the first and the last sequence."""
    o, errors = c.operands, []
    heads, dim = o.q.shape[1], o.q.shape[3]
    for b, h in itertools.product((0, o.q.shape[0] - 1), (0, heads - 1)):
        columns, row = slice(h * dim, (h + 1) * dim), slice(b, b + 1)
        raw = o.state[b, :-1].double()
        keys = raw[None, None, :, columns]
        if isinstance(o.finish, Turned):
            angles = Turned(o.finish.cos.double(), o.finish.sin.double())
            keys = angles(keys, slice(0, 1), slice(0, raw.shape[0]))
        keys = torch.cat([keys[0, 0], o.new_key[b, h].double()])
        values = torch.cat([raw @ o.value_weight[:, columns].double(), o.new_value[b, h].double()])
        weights = (o.q[b, h].double() @ keys.T * scale).softmax(-1)
        errors.append(relative(out[row, h][0], weights @ values))
    return max(errors)


@dataclass(frozen=True)
class MlaCall:
    """A cache (B, 1, N, rank + rope) of latents with rotated keys behind, and what ``mla_attention`` takes."""

    cache: Any
    operands: list[Any]


def mla_call(shape: dict[str, Any], seed: int = 0) -> MlaCall:
    """Random numbers of a shape."""
    draw, (batch, heads, rank) = _drawer(seed), (shape["batch"], shape["heads"], shape["rank"])
    cache = draw(batch, 1, shape["tokens"], rank + shape["rope"])
    up_k, up_v = (draw(heads, shape[name], rank) / rank**0.5 for name in ("nope", "value"))
    q = draw(batch, heads, 1, shape["nope"] + shape["rope"])
    return MlaCall(cache, [q, cache[..., :rank], cache[..., rank:], up_k, up_v])


def mla_error(c: MlaCall, out: Any, scale: float) -> float:
    """Largest relative error of some heads of the last sequence."""
    q, latent, rotated, up_k, up_v = c.operands
    errors = []
    for h in (0, q.shape[1] // 2, q.shape[1] - 1):
        held = latent[-1, 0].double()
        keys = torch.cat([held @ up_k[h].double().T, rotated[-1, 0].double()], -1)
        weights = (q[-1, h].double() @ keys.T * scale).softmax(-1)
        errors.append(relative(out[-1, h], weights @ held @ up_v[h].double().T))
    return max(errors)


def jobs(parts: list[str], tune: bool) -> list[tuple[str, dict[str, Any], Any]]:
    """Kernels that the benchmark runs: method, shape of a short cache, sizes."""
    found: list[tuple[str, dict[str, Any], Any]] = []
    for part in parts:
        for shape in SHAPES[part]:
            short = {name: x for name, x in shape.items() if name not in ("caches", "expanded", "tune")}
            plans: list[Any] = {
                "sfa": SFA_PLANS,
                "slim": slim_plans(shape.get("turned", False)),
                "mla": MLA_PLANS.get(shape["heads"], []),
            }[part]
            for plan in [None, *(plans if tune and shape.get("tune", True) else [])]:
                job = (part, short | {"tokens": 2048, "batch": 1}, plan)
                found += [job] if job not in found else []
    return found


def compile_one(job: tuple[str, dict[str, Any], Any]) -> None:
    """Run a kernel once over a short cache, which compiles it for all; what fails here is refused when it is timed."""
    part, shape, plan = job
    module = {"sfa": codes, "slim": states, "mla": latents}[part]
    before = module.plan_for
    if plan is not None:
        module.plan_for = lambda *kind: plan
    try:
        with torch.no_grad():
            if part == "sfa":
                c = sfa_call(shape)
                sfa_attention(c.q, c.codes, c.v, features=shape["features"], backend="triton")
            elif part == "slim":
                s = slim_call(shape)
                slim_attention(s.q, **s.given, backend="triton")
            else:
                mla_attention(*mla_call(shape).operands, backend="triton")
        torch.cuda.synchronize()
    except Exception as problem:
        print(f"{job}: {type(problem).__name__}: {problem}"[:400], flush=True)
    finally:
        module.plan_for = before
