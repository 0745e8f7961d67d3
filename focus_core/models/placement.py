"""Frozen models too large for one GPU: placed over the devices of one process, or sharded over processes (FSDP2)."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

from focus_core.errors import InvalidInput, TooLarge, Unsupported
from focus_core.launched import number
from focus_core.models.memory import BYTES, MARGIN, free_memory

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Ways to spread a model, as transformers and accelerate call them; a device's name puts all of it there."""
SHARDS = {"full_shard": True, "shard_grad_op": False}
"""Accelerate's names: whether a layer is taken apart again after its forward, or only after its backward."""


@dataclass(frozen=True)
class Placed:
    """Where each part of a model goes, by the names of modules, and what that takes, for a person."""

    device_map: dict[str, Any]
    told: str


def place(model: Any, name: str, device_map: str | dict[str, Any], dtype: str) -> Placed:
    """Decide where each part of a model goes, before anything of it is loaded.

    Args:
        model: the model on the meta device.
        name: what it was asked for by.
        device_map: one of ``DEVICE_MAPS``, a device, or a map from modules to devices (also as JSON).
        dtype: of the weights.

    Raises:
        TooLarge: it does not fit on the GPUs, or on the CPU where there is none; nothing is left on a disk or moved
            back and forth.
        InvalidInput: no such map, or no such device.
    """
    import torch
    from accelerate.utils import compute_module_sizes, get_balanced_memory, infer_auto_device_map

    from focus_core.models.loading import device_of

    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    free: dict[Any, int] = {n: free_memory(f"cuda:{n}") for n in gpus} or {"cpu": free_memory()}
    kind = getattr(torch, dtype)
    model.tie_weights()
    sizes = compute_module_sizes(model, dtype=kind)
    if device_map in DEVICE_MAPS:
        room: dict[Any, Any] = {where: int(count / MARGIN) for where, count in free.items()} | (
            {"cpu": 0} if gpus else {}
        )
        whole = list(getattr(model, "_no_split_modules", None) or [])
        options: dict[str, Any] = {"no_split_module_classes": whole, "dtype": kind}
        if device_map != "sequential" and gpus:
            room = get_balanced_memory(model, room, **options, low_zero=device_map == "balanced_low_0")
        found = dict(infer_auto_device_map(model, room, **options))
    else:
        found = _given(device_map, device_of)
        _check_parts(found, sizes, [name for name, _ in model.named_parameters()])
    used: dict[str, int] = {}
    for part, where in found.items():
        used[_device(where)] = used.get(_device(where), 0) + sizes.get(part, 0)
    _check(used, {_device(where): count for where, count in free.items()}, name, dtype, sizes[""])
    told = ", ".join(f"{_size(count)} on {where}" for where, count in used.items())
    return Placed(found, f"{name} in {dtype}: {told}")


def _given(device_map: str | dict[str, Any], device_of: Callable[[Any], str]) -> dict[str, Any]:
    if isinstance(device_map, str) and device_map.lstrip().startswith("{"):
        try:
            device_map = json.loads(device_map)
        except ValueError:
            told = f"The device map {device_map!r:.80} is no JSON."
            raise InvalidInput(told, 'Write {"module": "cuda:0"}.') from None
    parts = device_map if isinstance(device_map, dict) else {"": device_map}
    try:
        return {part: device_of(_device(where)) for part, where in parts.items()}
    except InvalidInput as error:
        hint = f"A device map is {', '.join(DEVICE_MAPS)}, a device, or JSON from modules to devices."
        raise InvalidInput(error.message, hint) from None


def _check_parts(found: dict[str, Any], parts: Container[str], weights: Iterable[str]) -> None:
    """Refuse a map that names what the model has not, or leaves out a part of it."""
    if unknown := [part for part in found if part not in parts]:
        raise InvalidInput(f"The model has no module {unknown[0]!r:.80}.", "The module '' is the whole model.")
    left = [name for name in weights if "" not in found and not any(f"{name}.".startswith(f"{p}.") for p in found)]
    if left:
        raise InvalidInput(f"The device map says nothing of {left[0]}.", "Name all modules, or '' for the rest.")


def _check(used: dict[str, int], free: dict[str, int], name: str, dtype: str, size: int) -> None:
    beside = len(used) > 1 and "cpu" in used
    lacking = beside or any(where == "disk" or count > free.get(where, count) for where, count in used.items())
    if lacking:
        there = ", ".join(f"{_size(count)} free on {where}" for where, count in free.items())
        raise TooLarge(
            f"{name} takes {_size(size)} in {dtype}; there are {there}, and no part of it is left on a CPU beside "
            "GPUs or on a disk.",
            "Take a dtype of two bytes, more GPUs, or `train --shard` over several processes.",
        )


def _device(where: Any) -> str:
    return f"cuda:{where}" if isinstance(where, int) else "cuda:0" if str(where) == "cuda" else str(where)


def shard(
    load: Callable[[], Any], meta: Any, name: str, dtype: str, device: str, how: str = "full_shard"
) -> tuple[Any, str]:
    """Load a frozen model so that each process holds its part of every layer, and a layer is whole only while it runs.

    Every process reads the whole model into the machine's memory once, as many at a time as fit there, and keeps its
    part on its device. What hooks a layer sees it whole; its parameters outside of a forward are this process's parts.

    Args:
        load: reads the model onto the CPU.
        meta: the same model on the meta device.
        name: what it was asked for by.
        dtype: of the weights.
        device: where this process computes.
        how: one of ``SHARDS``.

    Returns:
        The model, and what it takes, for a person.

    Raises:
        InvalidInput: there is one process alone, or no such way.
        TooLarge: a part with the layers that are whole does not fit on the device, or the model not in memory.
        Unsupported: the layers mix dtypes.
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from focus_core.adapter import fingerprint
    from focus_core.processes import Processes

    if how not in SHARDS:
        raise InvalidInput(f"A model cannot be sharded by {how!r}.", f"It can be {', '.join(SHARDS)}.")
    target = torch.device(device)
    processes = Processes(target)
    if processes.count == 1:
        raise InvalidInput(
            "Sharding spreads a model over processes, and there is one alone.",
            "Start several with `accelerate launch`, or spread it over the GPUs of one process with --device-map.",
        )
    layers = blocks(meta)
    whole = sum(p.numel() for p in meta.parameters()) * BYTES[dtype]
    each = [sum(p.numel() for p in layer.parameters()) * BYTES[dtype] for layer in layers]
    around = whole - sum(each)
    # The next layer is fetched while one runs.
    held = whole // processes.count + around + 2 * max(each)
    room = free_memory(device)
    if held * MARGIN > room:
        raise TooLarge(
            f"{name} takes {_size(held)} of each of {processes.count} devices in {dtype} (its part, two whole layers "
            f"and the embeddings); {_size(room)} of {device} is free.",
            "Start more processes, or take a dtype of two bytes.",
        )
    turns = int(processes.least(torch.tensor(free_memory() // int(whole * MARGIN))))
    if turns < 1:
        raise TooLarge(
            f"Each process reads {name} once into this machine's memory, which takes {_size(whole)} in {dtype}; "
            f"{_size(free_memory())} is free.",
            "Take a dtype of two bytes, or a machine with more memory.",
        )
    rank, local = number("LOCAL_RANK", 0), number("LOCAL_WORLD_SIZE", 1)
    mesh = init_device_mesh(target.type, (processes.count,))
    model: Any = None
    for first in range(0, int(-processes.least(torch.tensor(-local))), turns):
        if first <= rank < first + turns:
            model = load().eval().requires_grad_(False)
            model.focus_fingerprint = fingerprint(model)
            try:
                for layer in blocks(model):
                    fully_shard(layer, mesh=mesh, reshard_after_forward=SHARDS[how])
                fully_shard(model, mesh=mesh)
            except (AssertionError, ValueError, NotImplementedError) as error:
                raise Unsupported(f"{name} cannot be sharded ({str(error)[:160]}).", "Try --device-map.") from None
        processes.wait()
    told = (
        f"{name} in {dtype}: {_size(whole // processes.count)} of {_size(whole)} on each of {processes.count} devices"
    )
    return model, f"{told}, {_size(around + 2 * max(each))} more while it runs"


def blocks(model: Any) -> list[Any]:
    """The decoder's layers: the modules that hold one attention each."""
    from focus_core.models.facts import attention_modules

    names = {id(module): name for name, module in model.named_modules()}
    return [model.get_submodule(names[id(m)].rpartition(".")[0]) for m in attention_modules(model)]


def _size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
