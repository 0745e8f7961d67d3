"""Sizes of Focus's GPU kernels, timed beside one another: those in ``tiles.py`` and ``flash`` come from here.

``python -m benchmarks.gpu_focus_tiles --json FILE`` times every pass with every candidate at one length, as CUDA
graphs; kernels are compiled by several processes before.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu_focus_prefill import SINKS, WINDOW, clock, dense, flash_there, graphed, inputs, quiet
from benchmarks.gpu_options import Options, count
from benchmarks.gpu_record import Recording
from focus_core.benchmark.prefill import rotated
from focus_core.kernels.focus.flash import attend, scatter, sort, tiled
from focus_core.kernels.focus.triton import gather, group_pass, near_pass, plan, tiles
from focus_core.kernels.focus.triton.run import FarPass, focus_triton
from focus_core.kernels.focus.triton.tiles import Tile

SOURCES = ("focus_core/kernels/focus/triton", "focus_core/kernels/focus/flash")
SHAPES = {
    "12x64": {"heads": 12, "kv": 12, "dim": 64},
    "8x128": {"heads": 8, "kv": 8, "dim": 128},
    "32 on 8x128": {"heads": 32, "kv": 8, "dim": 128, "routers": 8, "looks": 4},
}
NEAR = [
    Tile(64, 32, 4, 2), Tile(64, 32, 4, 3), Tile(64, 32, 4, 4), Tile(64, 64, 4, 2), Tile(64, 64, 4, 3),
    Tile(64, 128, 4, 2), Tile(128, 32, 4, 3), Tile(128, 32, 8, 3), Tile(128, 64, 8, 2), Tile(128, 64, 8, 3),
]  # fmt: skip
FAR = [
    Tile(128, 64, 8, 3, True), Tile(128, 64, 8, 4, True), Tile(128, 64, 8, 3, False), Tile(64, 64, 4, 3, True),
    Tile(64, 128, 4, 2, True),
]  # fmt: skip
BEGUN = [Tile(128, 64, 8, 3, True), Tile(128, 64, 8, 2, True), Tile(128, 32, 8, 3, True), Tile(64, 64, 4, 3, True)]
STANDING = (1, 2, 4)
MOVED = (32, 64, 128, 256)


class Prepared:
    """A call with what its passes need."""

    def __init__(self, name: str, tokens: int) -> None:
        self.name, self.shape = name, {**SHAPES[name], "tokens": tokens}
        self.looks = self.shape.get("looks", 1)
        self.call = inputs(self.shape, 16)
        self.scores = tiles.scores_of(self.shape["dim"] ** -0.5, None)
        self.out = torch.empty_like(self.call[0])

    def near(self, parts: Any, tile: Tile) -> None:
        """The near pass on given parts."""
        q, k, v, sets, _ = self.call
        near_pass.near_pass((q, k, v), self.out, None, parts, sets, None, WINDOW, SINKS, self.scores, tile)

    def slots(self) -> near_pass.SlotParts:
        """Parts of Triton's group pass, made up: their values change no time."""
        kind = self.call[0].shape[:3]
        part = torch.randn(*kind, self.looks, self.shape["dim"], device="cuda", dtype=torch.bfloat16)
        return near_pass.SlotParts(part, torch.randn(*kind, self.looks, device="cuda"), self.over(), 0)

    def over(self) -> torch.Tensor:
        """Nothing is wrong with the sets."""
        return torch.zeros(64, dtype=torch.int32, device="cuda")

    def sorted(self) -> near_pass.SortedPart:
        """Parts of flash-attn-4, made up likewise."""
        q, _, _, sets, offered = self.call
        at = sort.sort_tokens(sets, offered, None, 0, True)
        part = torch.randn(q.shape[2], q.shape[1], q.shape[3], device="cuda", dtype=torch.bfloat16)
        return near_pass.SortedPart(
            part, torch.randn(q.shape[1], q.shape[2], device="cuda"), at.spot, at.group, at.over
        )

    def far(self, tile: Tile) -> Callable[[], Any]:
        """Triton's group pass."""
        q, k, v, sets, offered = self.call
        made = plan.make_plan(sets, offered, None, WINDOW, SINKS, (self.looks, 1), 0, self.looks, tile.rows)
        rows = gather.gather_keys(k, v, made, offered.shape[1])
        return lambda: group_pass.group_pass(q, *rows, made, sets, offered, False, self.scores, tile)

    def tiled(self, tile: Tile, standing: int) -> Callable[[], Any]:
        """The whole call with flash-attn-4 on tiles."""
        kind = {"window": WINDOW, "sinks": SINKS, "first_key": None, "scale": self.shape["dim"] ** -0.5}
        kind |= {"softcap": None, "return_lse": False, "members": (self.looks, 1)}
        far = FarPass(tiled.tiled_pass, lambda *_: tile, standing)
        return lambda: focus_triton(*self.call, **kind, far=far)


def time_of(run: Callable[[], Any]) -> float:
    """Median milliseconds of five replays."""
    return times_of({"": run})[""]


def times_of(runs: dict[Any, Callable[[], Any]]) -> dict[Any, float]:
    """Median milliseconds of five replays of each, in turns: the first of many is timed on a cooler card."""
    replays = {name: graphed(run) for name, run in runs.items()}
    times: dict[Any, list[float]] = {name: [] for name in runs}
    for replay in replays.values():
        replay()
    for repeat in range(5):
        for name in rotated(list(runs), repeat):
            times[name].append(clock(replays[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def candidates(name: str) -> list[tuple[str, Tile]]:
    """Pass and tile of everything that is timed for a shape."""
    found = [("near after Triton", tile) for tile in NEAR]
    found += [("group pass", tile) for tile in FAR]
    if SHAPES[name].get("routers", 1) == 1:
        found += [("near after flash", tile) for tile in NEAR]
    elif flash_there():
        found += [(f"whole, {n} groups standing", tile) for n in STANDING for tile in BEGUN]
    return found


def make(prepared: Prepared, what: str, tile: Tile) -> Callable[[], Any]:
    """One candidate, ready to run."""
    if what == "group pass":
        return prepared.far(tile)
    if what.startswith("whole"):
        return prepared.tiled(tile, int(what.split()[1]))
    parts = prepared.slots() if what == "near after Triton" else prepared.sorted()
    return lambda: prepared.near(parts, tile)


def compile_one(job: tuple[str, str, Tile]) -> None:
    """Compile one candidate into Triton's cache on disk; one that does not fit is met again when it is timed."""
    name, what, tile = job
    with torch.no_grad():
        try:
            make(Prepared(name, 4096), what, tile)()
            torch.cuda.synchronize()
        except Exception as problem:
            print(name, what, tile, type(problem).__name__, str(problem)[:120], flush=True)


def flash_rows(prepared: Prepared) -> list[dict[str, Any]]:
    """Sorting, moving rows, and flash-attn-4 on rows by head and by token; dense and its own window for comparison."""
    q, k, v, sets, offered = prepared.call
    at = sort.sort_tokens(sets, offered, None, 0, True)
    spots, scale = (at.spot, at.spot), q.shape[3] ** -0.5
    rows = [{"what": "sort", "ms": time_of(lambda: sort.sort_tokens(sets, offered, None, 0, True))}]
    rows += [
        {
            "what": "scatter",
            "rows": n,
            "ms": time_of(lambda n=n: scatter.scatter_tokens(q, k, v, spots, at.group, 1, n)),
        }
        for n in MOVED
    ]
    if not flash_there():
        return rows
    from flash_attn.cute import flash_attn_func

    moved = scatter.scatter_tokens(q, k, v, spots, at.group, 1)
    apart = [x.transpose(1, 2) for x in (q, k, v)]
    kinds = {
        "in groups": lambda parts: attend.attend_groups(*parts, (at.cuts, at.cuts), None, scale, None),
        "window alone": lambda parts: flash_attn_func(*parts, causal=True, window_size=(WINDOW - 1, 0)),
        "dense": lambda parts: flash_attn_func(*parts, causal=True),
    }
    for kind, run in kinds.items():
        by_head = moved if kind == "in groups" else apart
        for layout, parts in (("by head", by_head), ("by token", [x.contiguous() for x in by_head])):
            ms = time_of(lambda run=run, parts=parts: run(parts))
            rows.append({"what": f"flash-attn-4, {kind}", "layout": layout, "ms": ms})
    rows.append({"what": "cudnn, dense", "ms": time_of(dense("cudnn", q, k, v))})
    return rows


def main() -> None:
    """Compile, time and write."""
    parser = Options(__doc__)
    parser.add_argument("--tokens", type=count, default=131072)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    chosen = parser.ready()
    quiet()
    record = Recording(chosen.json, "Sizes of Focus's GPU kernels beside one another.", SOURCES)
    jobs = [(name, *found) for name in chosen.shapes for found in candidates(name)]
    with multiprocessing.get_context("spawn").Pool(max(1, min(14, (os.cpu_count() or 2) - 2))) as pool:
        pool.map(compile_one, jobs, chunksize=2)
    with torch.no_grad():
        for name in chosen.shapes:
            prepared = Prepared(name, chosen.tokens)
            kind = {"shape": name, "tokens": chosen.tokens}
            if prepared.looks == 1:
                record.add(*({**kind, **row} for row in flash_rows(prepared)))
            for what in dict.fromkeys(found[0] for found in candidates(name)):
                runs, problems = {}, []
                for tile in [tile for found, tile in candidates(name) if found == what]:
                    row = {**kind, "what": what, "tile": [tile.rows, tile.keys, tile.warps, tile.stages, tile.copies]}
                    try:
                        run = make(prepared, what, tile)
                        run()
                        torch.cuda.synchronize()
                        runs[tile] = run, row
                    except Exception as problem:
                        # Too large for the card: the others still count.
                        problems.append(row | {"problem": f"{type(problem).__name__}: {problem}"[:120]})
                found = times_of({tile: run for tile, (run, _) in runs.items()})
                rows = [row | {"ms": found[tile]} for tile, (_, row) in runs.items()]
                record.add(*sorted(rows, key=lambda row: row["ms"]), *problems)
                torch.cuda.empty_cache()
            del prepared
            torch.cuda.empty_cache()
    sys.exit(record.failed())


if __name__ == "__main__":
    main()
