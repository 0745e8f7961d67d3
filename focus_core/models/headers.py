"""Sizes of checkpoints from their headers alone: safetensors and GGUF, without reading a weight."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from focus_core.errors import InvalidInput

SAFETENSORS_LIMIT = 100_000_000
"""Longest header that the safetensors format allows."""

_FIXED = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class Weights:
    """How much a checkpoint holds: number of values, and the stored dtype that most of them have."""

    values: int
    dtype: str


def folder_weights(folder: Path) -> Weights:
    """Values and dtype of a folder's safetensors files.

    Raises:
        InvalidInput: there are none, or a header cannot be read.
    """
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if missing := sorted(n for n in names if not (folder / n).is_file()):
            raise InvalidInput(
                f"{folder} misses {len(missing)} of {len(names)} weight files ({missing[0]}).", "Download it again."
            )
        files = [folder / n for n in sorted(names)]
    elif (folder / "model.safetensors").is_file():
        files = [folder / "model.safetensors"]
    if not files:
        other = next((p.name for p in [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.gguf")]), None)
        raise InvalidInput(
            f"{folder} holds no .safetensors weights" + (f", only {other}." if other else "."),
            "Name the .gguf file itself."
            if other and other.endswith(".gguf")
            else "Save the model with save_pretrained; pickled weights are not opened.",
        )
    counts: Counter[str] = Counter()
    for path in files:
        counts.update(_safetensors_counts(path))
    return Weights(sum(counts.values()), counts.most_common(1)[0][0] if counts else "F32")


def _safetensors_counts(path: Path) -> Counter[str]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > SAFETENSORS_LIMIT:
                raise ValueError("its header is too long")
            header = json.loads(file.read(length))
            start, end = 8 + length, path.stat().st_size
        counts: Counter[str] = Counter()
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            if start + tensor["data_offsets"][1] > end:
                raise ValueError("the file is cut off")
            counts[tensor["dtype"]] += math.prod(tensor["shape"])
        return counts
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise InvalidInput(f"{path} is not a safetensors file ({error}).", "Download or save it again.") from None


def gguf_values(path: Path) -> int:
    """Number of weights in a GGUF file, from its header.

    Raises:
        InvalidInput: the file is not a GGUF of version 2 or 3, or is cut off.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ValueError("it does not begin with GGUF")
            version, tensors, fields = _unpack(file, "<IQQ")
            if version not in (2, 3):
                raise ValueError(f"version {version}")
            for _ in range(fields):
                _skip(file, _unpack(file, "<Q")[0])
                _skip_value(file, _unpack(file, "<I")[0])
            total = furthest = 0
            for _ in range(tensors):
                _skip(file, _unpack(file, "<Q")[0])
                shape = _unpack(file, f"<{_unpack(file, '<I')[0]}Q")
                _, offset = _unpack(file, "<IQ")
                total, furthest = total + math.prod(shape), max(furthest, offset)
            if file.tell() + furthest > path.stat().st_size:
                raise ValueError("the file is cut off")
            return total
    except (OSError, ValueError, struct.error, KeyError) as error:
        raise InvalidInput(f"{path} is not a GGUF file that can be read ({error}).", "Download it again.") from None


def _unpack(file: BinaryIO, layout: str) -> tuple:
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def _skip(file: BinaryIO, count: int) -> None:
    file.seek(count, 1)


def _skip_value(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        _skip(file, _unpack(file, "<Q")[0])
    elif kind == _ARRAY:
        inner, count = _unpack(file, "<IQ")
        if inner in _FIXED:
            _skip(file, count * _FIXED[inner])
        else:
            for _ in range(count):
                _skip_value(file, inner)
    else:
        _skip(file, _FIXED[kind])
