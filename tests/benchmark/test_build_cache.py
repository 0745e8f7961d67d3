"""The command that measures what the KV cache page opens with."""

import json
import sys

from data.build import cache
from focus_core import assets
from tests.benchmark.test_caches import loaded


def run(monkeypatch, tmp_path, *arguments):
    monkeypatch.setattr(assets, "DATA", tmp_path)
    monkeypatch.setattr(sys, "argv", ["cache", *arguments])
    cache.main()
    return json.loads((tmp_path / "results" / f"cache-{arguments[0]}-cpu.json").read_text("utf-8"))


def test_both_orders_are_the_same_attention_and_are_timed_beside_dense(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "CACHED", (8,))
    found = run(monkeypatch, tmp_path, "orders", "--repeats", "2")
    assert [row["order"] for row in found["rows"]] == ["values first", "scores first"]
    assert all(row["error"] < 1e-4 and row["ratio"]["n"] == 2 for row in found["rows"])
    assert found["about"]["command"] == "python -m data.build.cache orders --repeats 2"


def test_a_model_and_its_latents_are_measured_with_the_command_beside_them(monkeypatch, tmp_path):
    text = "the cat and the dog sat on the mat while another one ran there " * 80
    monkeypatch.setattr(cache, "load_model", lambda name: loaded(head_dim=64))
    monkeypatch.setattr(cache, "FIT_WINDOWS", 2)
    monkeypatch.setattr(assets, "training_text", lambda: text)
    monkeypatch.setattr(assets, "load_text", lambda name: type("Text", (), {"text": text}))
    sizes = ("--prompt", "16", "--decoded", "3", "--repeats", "1", "--most", "1", "--ranks", "256")
    found = run(monkeypatch, tmp_path, "any", *sizes)
    assert [row["variant"] for row in found["rows"]][-1] == "mla"
    assert found["rows"][-1]["bytes_per_token"] == 2 * 256 * 4
    assert max(found["rows"][-1]["layers"]["float32"]["error"]) < 1e-3


def test_what_ships_is_whole_says_its_command_and_has_slims_half():
    found = {path.stem: json.loads(path.read_text("utf-8")) for path in (assets.DATA / "results").glob("cache-*.json")}
    assert set(found) == {"cache-gpt2-novels-cpu", "cache-smollm2-cpu", "cache-orders-cpu", "cache-cross-cpu"}
    assert all(d["about"]["command"].startswith("python -m data.build.cache ") for d in found.values())
    small, shared = found["cache-gpt2-novels-cpu"], found["cache-smollm2-cpu"]
    assert small["complete"] is shared["complete"] is True
    slim = [row for row in small["rows"] if row["variant"] == "slim"]
    assert {row["bytes_per_token"] / small["rows"][0]["bytes_per_token"] for row in slim} == {0.5}
    assert len(small["about"]["gate"]) == small["about"]["layers"]
    assert any("GQA" in refused["reason"] for refused in shared["about"]["refused"])
    cross = {(row["model"], row["cache"]): row for row in found["cache-cross-cpu"]["rows"]}
    assert all(row["reason"] or row["same_tokens"] == row["tokens"] for row in cross.values())
    ratios = [row["dense_bytes"] / row["bytes"] for (_, cache_), row in cross.items() if cache_ == "x"]
    assert ratios == [8, 8, 32]
