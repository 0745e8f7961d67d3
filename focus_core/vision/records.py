"""What is measured of trained vision models: maps on the object, XAttention's sweep, time and memory, tables."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from focus_core.vision.augment import fit
from focus_core.vision.config import PRESETS, AttentionConfig, ViTConfig
from focus_core.vision.graphed_step import Drawn, GraphedSteps
from focus_core.vision.look import coverage, object_mass, rollout
from focus_core.vision.training import accuracy
from focus_core.vision.vit import ViT


@torch.no_grad()
def maps_record(model: ViT, images: torch.Tensor, batch: int = 250) -> dict[str, Any]:
    """Attention mass on the object and the signs of the weights.

    Args:
        model: a trained model.
        images: uint8 [n, side, side].
        batch: images at a time.

    Returns:
        ``object_mass``, ``rollout_mass``, ``uniform_mass``: mean and sd over images (heads and layers averaged);
        ``by_head``: [depth][heads] means of the object mass; ``negative_share``, ``row_sum`` (mean, sd).
    """
    mass, rolled, plain, heads, negative, sums = [], [], [], [], [], []
    for i in range(0, len(images), batch):
        given = fit(images[i : i + batch], model.config)
        maps: list[torch.Tensor] = []
        model(given, watch=lambda layer, w, scores, v, maps=maps: maps.append(w.float()))
        weights, cover = torch.stack(maps, 1), coverage(given, model.config.patch)
        by_head = object_mass(weights[:, :, :, 0, 1:], cover)
        heads.append(by_head.sum(0))
        mass += by_head.mean((1, 2)).tolist()
        rolled += object_mass(rollout(weights), cover).tolist()
        plain += cover.mean(1).tolist()
        negative.append((weights < 0).float().mean((3, 4)).sum(0))
        sums.append(weights.sum(-1).mean((1, 2, 3)))
    rows = torch.cat(sums)
    return {
        "images": len(images),
        "object_mass": _spread(mass),
        "rollout_mass": _spread(rolled),
        "uniform_mass": _spread(plain),
        "by_head": (torch.stack(heads).sum(0) / len(images)).tolist(),
        "negative_share": (torch.stack(negative).sum(0) / len(images)).tolist(),
        "row_sum": _spread(rows.tolist()),
    }


def xattention_sweep(
    model: ViT,
    images: torch.Tensor,
    labels: torch.Tensor,
    thresholds: Sequence[float] = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0),
    warm_ups: Sequence[int] = (0, 1, 2),
    stride: int = 4,
    block: int = 16,
) -> list[dict[str, Any]]:
    """Accuracy and pairs kept of a trained softmax under XAttention, by threshold and warm-up layers."""
    found = []
    for warm_up in warm_ups:
        for threshold in thresholds:
            settings = AttentionConfig("xattention", stride=stride, block=block, threshold=threshold, warm_up=warm_up)
            counts: list[float] = []
            right = accuracy(model, images, labels, 250, attention=settings, counts=counts)
            depth = model.config.depth
            by_layer = [statistics.fmean(counts[i::depth]) for i in range(depth)]
            row = {"threshold": threshold, "warm_up": warm_up, "stride": stride, "block": block}
            found.append(row | {"accuracy": right, "kept_pairs": statistics.fmean(by_layer), "by_layer": by_layer})
    return found


def step_cost(config: ViTConfig, device: str, batch: int, steps: int = 20, warm: int = 5) -> dict[str, Any]:
    """Time and memory of a training step and of inference, alone on the device.

    Returns:
        ``step_ms`` and ``inference_ms`` (median, quartiles), ``peak_memory_bytes`` of the step (None on a CPU), batch.
    """
    place = torch.device(device)
    cuda = place.type == "cuda"
    model = ViT(config).to(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=cuda)
    x = torch.randn(batch, config.channels, config.image, config.image, device=place)
    y = torch.zeros(batch, dtype=torch.long, device=place)

    def step() -> None:
        _loss(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def infer() -> None:
        with torch.autocast(place.type, torch.bfloat16, enabled=cuda):
            model(x)

    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(place)
    trained = _timed(step, place, warm, steps)
    peak = torch.cuda.max_memory_allocated(place) if cuda else None
    return {"batch": batch, "step_ms": trained, "inference_ms": _timed(infer, place, warm, steps)} | {
        "peak_memory_bytes": peak
    }


def graphed_cost(
    config: ViTConfig, device: str, batch: int, steps: int = 20, rounds: int = 5
) -> dict[str, dict[str, float] | str | None]:
    """Time of a training step that is one captured CUDA graph, alone on the device.

    Returns:
        ``graph_step_ms`` (median, quartiles over ``rounds`` of ``steps``), or None and ``graph_why_not``.
    """
    place = torch.device(device)
    model = ViT(config).to(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=place.type == "cuda")
    x = torch.randn(batch, config.channels, config.image, config.image, device=place)
    y = torch.zeros(batch, dtype=torch.long, device=place)

    def learn(index: torch.Tensor, moved: torch.Tensor, mirrored: torch.Tensor | None) -> torch.Tensor:
        loss = _loss(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    nothing = torch.zeros(steps, 1, dtype=torch.long, device=place)
    graphed = GraphedSteps(learn, optimizer, place)
    taken = _timed(lambda: graphed(Drawn(nothing, nothing, None), [1e-4] * steps), place, 1, rounds)
    if why := graphed.why_not():
        return {"graph_step_ms": None, "graph_why_not": why}
    return {"graph_step_ms": {k: v if k == "n" else v / steps for k, v in taken.items()}}


def memory_by_rank(
    device: str, batch: int = 32, ranks: Sequence[int | None] = (2, 4, 12, None), **step: Any
) -> list[dict[str, Any]]:
    """The published ViT-Tiny shape at 224 pixels with softmax and with G3B at some ranks: memory and time a step.

    Rank None is the full operator; its row is called ``full``, and its rank is the number of tokens.
    """
    shape = dataclasses.replace(PRESETS["vit-tiny"], classes=10)
    rows = [{"attention": "softmax", "rank": None, **step_cost(shape, device, batch, **step)}]
    for rank in ranks:
        cost = step_cost(shape.with_attention(kind="karat", rank=rank), device, batch, **step)
        rows.append({"attention": "G3B" if rank else "full", "rank": rank or shape.tokens, **cost})
    return rows


def summarise(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row an arm and size: mean, standard deviation (over seeds) and gain over softmax of the same size."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["size"], run["arm"]), []).append(run)
    rows = []
    for (size, arm), found in groups.items():
        values = [run["accuracy"] for run in found]
        masses = [run["maps"]["object_mass"]["mean"] for run in found]
        control = [run["accuracy"] for run in groups.get((size, "softmax"), [])]
        rows.append(
            {
                "size": size,
                "arm": arm,
                "seeds": len(found),
                "accuracy": statistics.fmean(values),
                "accuracy_sd": statistics.stdev(values) if len(values) > 1 else None,
                "gain": statistics.fmean(values) - statistics.fmean(control) if control else None,
                "parameters": found[0]["parameters"],
                "object_mass": statistics.fmean(masses),
                "object_mass_sd": statistics.stdev(masses) if len(masses) > 1 else None,
                "rollout_mass": statistics.fmean(run["maps"]["rollout_mass"]["mean"] for run in found),
                "roughness": statistics.fmean(run["loss_spread"]["roughness"] for run in found),
            }
        )
    return rows


def _loss(model: ViT, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.device.type == "cuda"):
        logits = model(x)
    return F.cross_entropy(logits.float(), y)


def _timed(act: Callable[[], object], place: torch.device, warm: int, steps: int) -> dict[str, float]:
    def wait() -> None:
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    for _ in range(warm):
        act()
    taken = []
    for _ in range(steps):
        wait()
        begun = time.perf_counter()
        act()
        wait()
        taken.append((time.perf_counter() - begun) * 1e3)
    low, middle, high = statistics.quantiles(taken, n=4) if len(taken) > 1 else taken * 3
    return {"median": middle, "q1": low, "q3": high, "n": len(taken)}


def _spread(values: list[float]) -> dict[str, float]:
    return {"mean": statistics.fmean(values), "sd": statistics.stdev(values) if len(values) > 1 else 0.0}
