"""Sizes from headers, and what is free."""

from __future__ import annotations

import builtins
import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from focus_core.errors import InvalidInput, TooLarge
from focus_core.models import memory
from focus_core.models.headers import Weights, folder_weights
from focus_core.models.memory import check_fits, free_memory
from tests.tiny import tiny_model

GB = 10**9


def test_weights_of_one_file(tmp_path):
    model = tiny_model(dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    found = folder_weights(tmp_path)
    assert (found.values, found.dtype) == (sum(p.numel() for p in model.parameters()), "BF16")


def test_weights_of_shards(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path, max_shard_size="200KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert folder_weights(tmp_path).values == sum(p.numel() for p in model.parameters())
    sorted(tmp_path.glob("*.safetensors"))[1].unlink()
    with pytest.raises(InvalidInput, match="misses 1 of"):
        folder_weights(tmp_path)


def test_dtype_is_that_of_most_values(tmp_path):
    tensors = {
        "a": torch.zeros(100, dtype=torch.float16),
        "b": torch.zeros(10),
        "c": torch.zeros((), dtype=torch.int64),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    assert folder_weights(tmp_path) == memory_weights(111, "F16")


def memory_weights(values, dtype):

    return Weights(values, dtype)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"123",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 4) + b"nope",
        struct.pack("<Q", 2) + b"[]",
        (lambda h: struct.pack("<Q", len(h)) + h)(json.dumps({"a": {"dtype": "F32"}}).encode()),
    ],
)
def test_damaged_headers(data, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(InvalidInput, match="is not a safetensors file"):
        folder_weights(tmp_path)


def test_fits():
    check_fits("m", 10**9, "float32", free=5 * GB)
    check_fits("m", 10**9, "bfloat16", free=int(2.3 * GB))


def test_too_large_offers_bf16_where_it_fits():
    with pytest.raises(TooLarge) as caught:
        check_fits("m", 10**9, "float32", free=3 * GB)
    assert caught.value.message == "m has 1.00 billion weights and needs 4.4 GB in float32; 3.0 GB of memory is free."
    assert caught.value.hint == "In bfloat16 it needs 2.2 GB, which fits: load it with dtype bfloat16."


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_too_large_for_bf16_names_what_fits(dtype):
    with pytest.raises(TooLarge) as caught:
        check_fits("m", 10**9, dtype, "cuda:1", free=int(1.1 * GB))
    assert "memory on cuda:1" in caught.value.message
    assert "at most 500.0 million weights in bfloat16" in caught.value.hint


def test_free_memory_with_and_without_psutil(monkeypatch):
    import psutil

    total = psutil.virtual_memory().total
    with_psutil = free_memory()
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "psutil":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert 0 < with_psutil <= total
    assert 0 < free_memory() <= total


def test_a_container_s_limit_counts(tmp_path):
    assert memory._container_room(tmp_path) > 1 << 60
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._container_room(tmp_path) > 1 << 60
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert memory._container_room(tmp_path) == 450
