"""Slim attention's two cluster kernels as the benchmark runs them: sizes that could be shipped, stages left out."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from focus_core.kernels.slim import Turned, api, cluster_decode, cluster_pipeline
from focus_core.kernels.slim.cluster_decode import ClusterPlan
from focus_core.kernels.slim.cluster_pipeline import PipelinePlan
from focus_core.kernels.slim.operands import Operands


@dataclass(frozen=True)
class Way:
    """A kernel.

    Attributes:
        name: for people.
        module: that has ``cluster_states``.
        plans: sizes that are timed, the usual ones first.
        checked: sizes that are checked beside the usual ones, each on a third of the cases.
        left_out: stages that can be left out, and the source's words that do it.
    """

    name: str
    module: Any
    plans: list[Any]
    checked: list[Any]
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)

    def step(self, operands: Operands, past: int, plan: Any = None) -> Any:
        """Sums of the past states."""
        return self.module.cluster_states(operands, past, operands.q.shape[3] ** -0.5, None, plan)

    @contextmanager
    def used(self, plan: Any = None) -> Iterator[None]:
        """``backend="cuda"`` computes by this kernel, of other sizes if any are given."""
        before, usual = api.CLUSTERS, self.module.USUAL
        api.CLUSTERS, self.module.USUAL = self.module.__name__, plan or usual
        try:
            yield
        finally:
            api.CLUSTERS, self.module.USUAL = before, usual

    @contextmanager
    def without(self, stage: str) -> Iterator[None]:
        """The kernel with one stage left out; its results are wrong."""
        usual = self.module._SOURCE
        text = usual.read_text(encoding="utf-8")
        for old, new in self.left_out[stage].items():
            assert old in text, f"{stage} is written otherwise."
            text = text.replace(old, new)
        with tempfile.TemporaryDirectory() as folder:
            self.module._SOURCE = Path(folder, f"{stage}.cu".replace(" ", "-"))
            self.module._SOURCE.write_text(text, encoding="utf-8")
            try:
                yield
            finally:
                self.module._SOURCE = usual


_MULTIPLY = "multiply(acc[i][n], left[i], right[n / 2] + n % 2 * 2)"
_LEFT = "matrices(left[i], weights + i * 16 * LINE + k * 32)"
_RIGHT = "turned_matrices(right[n], rows + k * 16 * ROW + n * 32)"
TILES = Way(
    "clusters",
    cluster_decode,
    [ClusterPlan(), ClusterPlan(64, 2), ClusterPlan(32, 6), ClusterPlan(64, 3, 4), ClusterPlan(64, 3, 8)],
    [ClusterPlan(32, 6, 3)],
    {
        "products": {_MULTIPLY: "acc[i][n][0] += number(left[i][0] ^ right[n / 2][n % 2])"},
        "reading for products": {
            _RIGHT: "for (u32& x : right[n]) x = rows",
            f" {_LEFT}": " for (u32& x : left[i]) x = weights",
        },
        "reading for scores": {
            "one = load(at_one + at), two = load(at_two + at)": "one = at_one + at, two = at_two + at"
        },
        "angles": {"if (TURNED && t + 1 < tiles) angles(t + 1)": ""},
    },
)

_SCORING = (
    "for (int i = 0; i < tiles; i++) {\n      const int b = (begin + i) / each, t = (begin + i) % each;\n      if ("
)
_WAITING = "barrier_wait_cluster(sent, (i / SLOTS) & 1);\n      if (thread == 0) barrier_expect(sent, SENT);\n"
_WEIGHTING = "for (int k = 0; k < TILE; k += 16)"
_SENDING = "const int to = n + lane / 4 / OWN * 4 + lane % 4;\n        if (to >= CLUSTER) continue;"
_NO_WEIGHTS = {_WEIGHTING: _WEIGHTING.replace("TILE", "0")}
_NO_SCORES = {_SCORING: _SCORING.replace("i = 0", "i = tiles"), _WAITING: ""}
PIPELINE = Way(
    "pipeline",
    cluster_pipeline,
    [
        PipelinePlan(), PipelinePlan(32, 4), PipelinePlan(32, 3), PipelinePlan(32, 6, 512, 32), PipelinePlan(64, 3),
        PipelinePlan(64, 2), PipelinePlan(64, 3, 512, 64), PipelinePlan(48, 4), PipelinePlan(32, 3, 1024),
    ],
    [PipelinePlan(64, 3, 512, 64), PipelinePlan(48, 4), PipelinePlan(32, 3, 1024, 32)],
    {
        "weighting": _NO_WEIGHTS,
        "scoring and exchange": _NO_SCORES,
        "all but copies": _NO_SCORES | _NO_WEIGHTS,
        "other blocks": {
            "SENT = HEADS * (": "SENT = OWN * (",
            _SENDING: "const int to = rank;\n        if (n > 0 || lane % 4 > 0 || lane >= OWN * 4) continue;",
        },
        "angles": {"if (TURNED && i + 1 < tiles) angles(begin + i + 1)": ""},
    },
)  # fmt: skip
WAYS = {way.name: way for way in (TILES, PIPELINE)}


def usual() -> Way:
    """The kernel that ``backend="cuda"`` computes by."""
    return next(way for way in WAYS.values() if way.module.__name__ == api.CLUSTERS)


def suits(plan: Any, heads: int, dim: int) -> bool:
    """Whether a plan's blocks are whole ones of a shape, with as many heads as the kernel knows."""
    columns = getattr(plan, "columns", 512)
    return heads * dim % columns == 0 and columns // dim <= 8


def build(jobs: list[tuple[Way, Operands, bool, Any]]) -> None:
    """Compile kernels by several threads; what the compiler refuses is refused again where it is used."""

    def one(job: tuple[Way, Operands, bool, Any]) -> None:
        way, operands, capped, plan = job
        try:
            way.module.compiled(operands, capped, plan)
        except Exception as problem:
            print(f"{way.name} {plan}: {type(problem).__name__}: {problem}"[:500], flush=True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, jobs))


def kind_of(case: dict[str, Any], device: Any) -> Operands:
    """Operands of a case's kind, for the compiler: no numbers."""
    heads, dim, keys = case.get("heads", 4), case.get("dim", 64), 8
    dtype = getattr(torch, case.get("dtype", "bfloat16"))
    q = torch.empty(1, heads, 1, dim, dtype=dtype, device=device)
    state = torch.empty(1, keys, heads * dim, dtype=dtype, device=device)
    angles = torch.empty(1, keys, dim // 2, device=device)
    first = torch.zeros(1, dtype=torch.int32, device=device) if case.get("first") else None
    finish = Turned(angles, angles) if case.get("turned") else None
    return Operands(q, state, None, None, None, None, finish, None, None, True, first, None)
