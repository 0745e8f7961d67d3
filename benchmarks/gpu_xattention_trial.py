"""Where XAttention's time goes on a GPU, and what may save some: in stages that say where they are and cannot hang.

``python -m benchmarks.gpu_xattention_trial --json FILE --parts check`` checks the candidates against the specification;
``--parts time`` times selection and attention apart, one by one and as CUDA graphs, on the shipped model's activations;
``--parts flex`` times FlexAttention on the same blocks. Each stage is a process with a limit of seconds; each figure is
printed and written as it is found. The project's own kernels stay as they are.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_record import Recording
from benchmarks.gpu_xattention import SOURCES, STRIDE, density, sampled
from benchmarks.gpu_xattention_checks import LIMITS, check_choice, make_call
from benchmarks.gpu_xattention_choose import choosing
from benchmarks.gpu_xattention_tune import pass_with, score_with
from benchmarks.gpu_xattention_ways import BLOCK, Flex, dense_runs, flash_masked, milliseconds
from benchmarks.stages import Row, run_stage
from focus_core.kernels.block_sparse import block_sparse_attention

PARTS = ("check", "time", "flex")
CHOICES = [(0, 0), (1, 1), (1, 2), (4, 2), (4, 4), (8, 4)]
"""Strided rows read at a time and warps of the trial; 0 rows is the project's own choice."""
TILES = [(128, 256, 64, 8, 3), (128, 128, 64, 4, 3), (256, 128, 64, 8, 3), (128, 256, 64, 8, 4)]
PASSES = [((128, 64, 4, 3), True), ((128, 64, 4, 3), False), ((128, 128, 8, 2), True)]
Run = Callable[[], Any]


def check_choices(at: int, warps: int) -> Iterator[Row]:
    """The trial's masks against the specification's, with the rule of the project's own kernels."""
    cases: list[Row] = [{"keys": 2048, "heads": 9, "kv": 3}, {"keys": 1333}, {"threshold": 1.0}, {"threshold": 0.0}]
    cases += [{"keys": 4096, "room": 1 << 20, "batch": 2}, {"causal": False}]
    for case in cases:
        with torch.no_grad(), choosing(at, warps):
            yield {"what": "trial choice", "at": at, "warps": warps, **case, **check_choice(case, "cuda")}


def check_masked() -> Iterator[Row]:
    """flash-attn-4 that masks the own block alone, against the specification in fp32."""
    shared: Row = {"heads": 9, "kv": 3}
    for case in (shared | {"keys": 2048}, shared | {"keys": 1333, "layout": "tokens", "share": 0.1}):
        (q, k, v), _ = make_call(case, "cuda")
        rows = -(-case["keys"] // BLOCK)
        generator = torch.Generator("cuda").manual_seed(3)
        mask = torch.rand(1, 9, rows, rows, generator=generator, device="cuda") < case.get("share", 0.5)
        mask |= torch.eye(rows, dtype=torch.bool, device="cuda")
        with torch.no_grad():
            settings: dict[str, Any] = {"block_size": BLOCK, "causal": True}
            wanted = block_sparse_attention(q.float(), k.float(), v.float(), mask, **settings, backend="reference")
            error = float((flash_masked(q, k, v, mask).float() - wanted).norm() / wanted.norm())
        yield {"what": "flash_masked", **case, "error": error, "good": error < LIMITS["bfloat16"]}


def make_inputs(model: str, tokens: int, layers: list[int], folder: str) -> Iterator[Row]:
    """Activations of some layers, kept in a folder for the later stages."""
    from benchmarks.gpu_xattention_inputs import Activations

    some, about = Activations(model, "cuda", "bfloat16", layers).at(tokens)
    for one in some:
        torch.save((one.query, one.key, one.value), Path(folder) / f"{one.layer}.pt")
        yield {"what": "inputs", "layer": one.layer, "tokens": tokens, **about}


def timed(run: Run, repeats: int) -> Row:
    """Medians of a run by itself, and of its CUDA graph; or why it has none."""
    run()
    torch.cuda.synchronize()
    row: Row = {"ms": statistics.median(milliseconds(run, "cuda") for _ in range(repeats))}
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = run()
        graph.replay()
        torch.cuda.synchronize()
        row["ms_graph"] = statistics.median(milliseconds(graph.replay, "cuda") for _ in range(repeats))
        del kept
    except Exception as problem:
        # A call that cannot be captured still has its other time.
        row["no_graph"] = f"{type(problem).__name__}: {problem}"[-300:]
    return row


def _safely(about: Row, run: Run, repeats: int) -> Row:
    try:
        return about | timed(run, repeats)
    except Exception as problem:
        # One candidate that does not run must not hide the others.
        return about | {"problem": f"{type(problem).__name__}: {problem}"[-400:]}


def _without_choice(run: Run) -> Run:
    """A choice of blocks that stops after the sums: the product and its softmax."""
    from focus_core.kernels.xattention.triton import run as scoring

    def alone() -> None:
        usual = scoring.choose_blocks
        scoring.choose_blocks = lambda *args, **settings: None
        try:
            run()
        finally:
            scoring.choose_blocks = usual

    return alone


def _chosen(choice: tuple[int, int], run: Run) -> Run:
    def inside() -> None:
        with choosing(*choice):
            run()

    return inside


def _load(folder: str, layer: int) -> tuple[Any, Any, Any]:
    return torch.load(Path(folder) / f"{layer}.pt", map_location="cuda")


def selection(folder: str, layers: list[int], repeats: int) -> Iterator[Row]:
    """Each score tile without the choice, then each way to choose with the first tile; the masks stay for later."""
    with torch.no_grad():
        for layer in layers:
            q, k, _ = _load(folder, layer)
            about: Row = {"layer": layer, "tokens": q.shape[2]}
            mask = mask_of(q, k)
            torch.save(mask, Path(folder) / f"{layer}.mask.pt")
            strided = q.shape[2] // STRIDE
            products = strided * (strided + 1) * STRIDE * q.shape[3] * q.shape[1]
            for tile in TILES:
                row = _safely(
                    about | {"what": "score", "tile": tile}, _without_choice(score_with(q, k, tile, True)), repeats
                )
                if "ms_graph" in row:
                    row["tflops"] = products / row["ms_graph"] / 1e9
                yield row
            for choice in CHOICES:
                other = mask_of(q, k, choice)
                row = about | {"what": "select", "choice": choice, "differs": float((other != mask).float().mean())}
                yield _safely(row, _chosen(choice, score_with(q, k, TILES[0], True)), repeats)


def mask_of(q: Any, k: Any, choice: tuple[int, int] = (0, 0)) -> Any:
    """The kept blocks by the project's own score kernels, chosen as told."""
    from benchmarks.gpu_xattention import chosen_blocks

    with choosing(*choice):
        return chosen_blocks("own", q, k)


def even(mask: Any, by_row: bool) -> Any:
    """As many random blocks as a mask has: in every row alike with ``by_row``, else in every head alike."""
    rows = mask.shape[2]
    earlier = torch.ones(rows, rows, dtype=torch.bool, device=mask.device).tril(-1)
    generator = torch.Generator(mask.device).manual_seed(11)
    own = mask.diagonal(dim1=2, dim2=3).sum()
    wanted = float(mask.sum() - own) / (mask.shape[0] * mask.shape[1])
    room = earlier.sum(1).float()
    if by_row:
        count = room * 0 + wanted / rows
        for _ in range(20):
            count = torch.minimum(count * wanted / torch.minimum(count, room).sum(), room.max())
        count = torch.minimum(count, room)
    else:
        count = room * wanted / room.sum()
    order = torch.rand(*mask.shape[:2], rows, rows, generator=generator, device=mask.device).masked_fill_(~earlier, 2.0)
    kept = (order.argsort(-1).argsort(-1) < count.round()[:, None]) & earlier
    return kept | torch.eye(rows, dtype=torch.bool, device=mask.device)


def attention(folder: str, layers: list[int], repeats: int) -> Iterator[Row]:
    """Dense, each way over the chosen blocks, the whole, and blocks of the same number without imbalance."""
    from focus_core.kernels.block_sparse.triton_lists import list_blocks

    with torch.no_grad():
        for layer in layers:
            q, k, v = _load(folder, layer)
            mask = torch.load(Path(folder) / f"{layer}.mask.pt", map_location="cuda")
            kept = density(mask, q.shape[2])
            about: Row = {"layer": layer, "tokens": q.shape[2], "density": kept}
            dense = _safely(about | {"what": "fa4"}, dense_runs(q, k, v)["fa4"], repeats)
            yield dense
            choose = score_with(q, k, TILES[0], True)
            masked = functools.partial(flash_masked, q, k, v)
            causal = functools.partial(block_sparse_attention, q, k, v, block_size=BLOCK, causal=True, backend="flash")

            def whole(choice: tuple[int, int], run: Run, choose: Run = choose) -> Any:
                with choosing(*choice):
                    choose()
                return run()

            ways: dict[str, tuple[Run, float]] = {
                "flash_masked": (functools.partial(masked, mask), kept),
                "whole flash_masked": (functools.partial(whole, (0, 0), functools.partial(masked, mask)), kept),
                "whole flash_masked, choice 4 2": (
                    functools.partial(whole, (4, 2), functools.partial(masked, mask)),
                    kept,
                ),
                "flash": (functools.partial(causal, block_mask=mask), kept),
                "whole flash": (functools.partial(whole, (0, 0), functools.partial(causal, block_mask=mask)), kept),
                "lists": (functools.partial(list_blocks, mask, q.shape[2], k.shape[2], BLOCK, True, None), kept),
            }
            for name, by_row in (("heads alike", False), ("rows alike", True)):
                other = even(mask, by_row)
                ways[f"flash_masked, {name}"] = (functools.partial(masked, other), density(other, q.shape[2]))
            for tile, sort in PASSES:
                ways[f"triton {tile} {'longest first' if sort else 'in order'}"] = (
                    pass_with(q, k, v, mask, tile, True, sort),
                    kept,
                )
            for name, (run, share) in ways.items():
                row = _safely(about | {"what": name, "density": share}, run, repeats)
                for form in ("ms", "ms_graph"):
                    if form in row and form in dense:
                        row[f"of_limit{form[2:]}"] = dense[form] / row[form] * share
                yield row
            found = {"flash_masked": masked(mask), "flash": causal(block_mask=mask)}
            errors = sampled(q, k, v, mask, found)
            yield about | {"what": "errors", **errors, "good": max(errors["errors"].values()) < LIMITS["bfloat16"]}


def flex(folder: str, layer: int, repeats: int, backend: str) -> Iterator[Row]:
    """FlexAttention on the same blocks, with the time until its first output."""
    with torch.no_grad():
        q, k, v = _load(folder, layer)
        mask = mask_of(q, k)
        way, began = Flex(backend), time.monotonic()
        out = way(q, k, v, mask)
        torch.cuda.synchronize()
        row: Row = {"what": f"flex {backend}", "layer": layer, "density": density(mask, q.shape[2])}
        row |= {"first_s": time.monotonic() - began, **sampled(q, k, v, mask, {"flex": out})}
        yield _safely(row, functools.partial(way, q, k, v, mask), repeats)


def main() -> None:
    """Run the stages that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--parts", default="check")
    parser.add_argument("--model", default="smollm2", help="what load_model takes")
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--layers", default="2,15,28")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=115, help="of all stages together")
    chosen = parser.parse_args()
    parts, layers = chosen.parts.split(","), [int(n) for n in chosen.layers.split(",")]
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part {sorted(unknown)}: {', '.join(PARTS)}")
    sources = (*SOURCES, *(f"benchmarks/{name}.py" for name in ("gpu_xattention_choose", "gpu_xattention_trial")))
    record = Recording(chosen.json, "XAttention's stages and candidates on a GPU.", sources, "cuda")
    ends = time.monotonic() + chosen.seconds

    def stage(name: str, work: Any, args: tuple, limit: float) -> None:
        left = ends - time.monotonic()
        if left < 5:
            record.add({"stage": name, "problem": f"not begun: {chosen.seconds:.0f} s are over"})
            return
        for row in run_stage(name, work, args, min(limit, left)):
            if "good" in row:
                record.check(row)
            record.add(row)

    with tempfile.TemporaryDirectory() as folder:
        if "check" in parts:
            for at, warps in CHOICES[1:]:
                stage(f"trial choice {at} {warps}", check_choices, (at, warps), 30)
            stage("flash_masked", check_masked, (), 45)
            checks = record.found["checks"]
            print(f"{sum(row['good'] for row in checks)} of {len(checks)} checks hold", flush=True)
        if {"time", "flex"} & set(parts):
            stage("inputs", make_inputs, (chosen.model, chosen.tokens, layers, folder), 45)
        if "time" in parts:
            stage("selection", selection, (folder, layers, chosen.repeats), 45)
            stage("attention", attention, (folder, layers, chosen.repeats), 75)
        if "flex" in parts:
            for backend in ("TRITON", "FLASH"):
                stage(f"flex {backend}", flex, (folder, layers[0], chosen.repeats, backend), 45)
    problems = sum("problem" in row for row in record.found["rows"])
    print(f"{problems} rows with a problem", flush=True)
    if problems or record.failed():
        raise SystemExit(1)


if __name__ == "__main__":
    main()
