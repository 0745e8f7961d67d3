"""Slim attention's cluster kernel as the benchmark runs it: sizes that could be shipped, and its source changed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from focus_core.kernels.slim import Turned
from focus_core.kernels.slim import cluster_decode as clusters
from focus_core.kernels.slim.cluster_decode import ClusterPlan
from focus_core.kernels.slim.operands import Operands

PLANS = {
    False: [
        ClusterPlan(), ClusterPlan(teams=2), ClusterPlan(stages=5), ClusterPlan(stages=3), ClusterPlan(64, 3),
    ],
    True: [
        ClusterPlan(teams=2), ClusterPlan(), ClusterPlan(stages=3, teams=2), ClusterPlan(stages=3),
        ClusterPlan(stages=4, teams=4), ClusterPlan(48, 2, 2), ClusterPlan(64, 2),
    ],
}  # fmt: skip
"""Sizes that are timed, by whether keys are rotated; the usual ones first."""
CHECKED = [ClusterPlan(64, 2), ClusterPlan(48, 2, 2), ClusterPlan(32, 3, 4)]
"""Sizes that are checked beside the usual ones, each on a third of the cases."""

_SCORING = "for (int i = 0; i < tiles; i++, next()) {\n      if (i == 0 || t == 0)"
_WAITING = "barrier_wait_cluster(sent, (i / SLOTS) & 1);\n      if (thread == 0) barrier_expect(sent, SENT);\n"
_WEIGHTING = "for (int k = 0; k < TILE; k += 16)"
_SENDING = "const int to = n + lane / 4 / MINE * 4 + lane % 4;\n        if (to >= CLUSTER) continue;"
_COPIES = "for (int n = rank; n < ANGLES / BLOCK; n += CLUSTER)"
_ROTATING = "x[n] = pair(x0 * c[n][0] - y0 * s[n][0], x1 * c[n][1] - y1 * s[n][1]);"
_ROTATING_TOO = "y[n] = pair(y0 * c[n][0] + x0 * s[n][0], y1 * c[n][1] + x1 * s[n][1]);"
_READING = "load(from, c[n]);\n          load(from + SINES, s[n]);"
_EXPECTED = "barrier_expect(full, STAGE + ANGLES);"
_NO_WEIGHTS = {_WEIGHTING: _WEIGHTING.replace("TILE", "0")}
_NO_COPIES = {_EXPECTED: "barrier_expect(full, STAGE);", _COPIES: _COPIES.replace("n < ANGLES / BLOCK", "n < 0")}
_OWN_COPIES = {_COPIES: "for (int n = 0; n < ANGLES / BLOCK; n++)", "copy_box_to_all<CLUSTER>(": "copy_box("}
# Blocks that do not wait for each other must not copy to each other.
_NO_SCORES = {_SCORING: _SCORING.replace("i = 0", "i = tiles"), _WAITING: ""} | _NO_COPIES
OWN = "with each block's own copies of angles"
CHANGED: dict[str, dict[str, str]] = {
    "without weighting": _NO_WEIGHTS,
    "without scoring and exchange": _NO_SCORES,
    "without all but copies": _NO_SCORES | _NO_WEIGHTS,
    "without other blocks": {
        "SENT = HEADS * (": "SENT = OWN * (",
        _SENDING: "const int to = rank;\n        if (n > 0 || lane % 4 > 0 || lane >= MINE * 4) continue;",
    }
    | _OWN_COPIES,
    "without copies of angles": _NO_COPIES,
    "without reading angles": {_READING: "c[n][0] = c[n][1] = s[n][0] = s[n][1] = 0.5f;"},
    "without rotating": {_ROTATING: "x[n] ^= bits(c[n][0]) ^ bits(x1);", _ROTATING_TOO: "y[n] ^= bits(s[n][1]);"},
    OWN: _OWN_COPIES,
}
"""Changes of the source that tell what bounds the kernel. Only what is `with` something computes the same."""
ROTATED = [name for name in CHANGED if "angles" in name or "rotating" in name]
"""Those that change nothing where keys are not rotated."""


@contextmanager
def used(plan: ClusterPlan | None) -> Iterator[None]:
    """``backend="cuda"`` computes by these sizes; by the usual ones where none are given."""
    before = clusters.USUAL
    clusters.USUAL = before if plan is None else {False: plan, True: plan}
    try:
        yield
    finally:
        clusters.USUAL = before


@contextmanager
def changed(name: str) -> Iterator[None]:
    """The kernel's source with one of ``CHANGED``."""
    usual = clusters._SOURCE
    text = usual.read_text(encoding="utf-8")
    for old, new in CHANGED[name].items():
        assert old in text, f"{old} is written otherwise."
        text = text.replace(old, new)
    with tempfile.TemporaryDirectory() as folder:
        clusters._SOURCE = Path(folder, f"{name}.cu".replace(" ", "-"))
        clusters._SOURCE.write_text(text, encoding="utf-8")
        try:
            yield
        finally:
            clusters._SOURCE = usual


def suits(plan: ClusterPlan, dim: int) -> bool:
    """Whether the heads of a block can be shared by a plan's teams."""
    return clusters.COLUMNS // dim % plan.teams == 0


def build(jobs: list[tuple[Operands, bool, ClusterPlan | None]]) -> None:
    """Compile kernels by several threads; what the compiler refuses is refused again where it is used."""

    def one(job: tuple[Operands, bool, ClusterPlan | None]) -> None:
        operands, capped, plan = job
        try:
            clusters.compiled(operands, capped, plan or clusters.plan_for(operands))
        except Exception as problem:
            print(f"{plan}: {type(problem).__name__}: {problem}"[:500], flush=True)

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
