"""Hugging Face ids, against a local server that speaks as much of its protocol as a download needs."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import threading
import time
from pathlib import Path

import pytest
import torch

from focus_core import errors
from focus_core.models import hub
from focus_core.models.loading import load_model
from tests.tiny import save_tiny

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves the repositories of ``Hub.folders``; ``Hub.mode`` makes it misbehave."""

    folders: dict[str, Path] = {}  # noqa: RUF012
    mode = ""

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        if self.mode == "silent":
            time.sleep(30)
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            name, rest = "/".join(parts[2:4]), parts[4:]
            if name not in self.folders:
                return self.reply(401, b"{}", {"X-Error-Code": "RepoNotFound"})
            if rest[:1] == ["tree"]:
                return self.reply(200, json.dumps([self.entry(p) for p in self.files(name)]).encode())
            return self.reply(200, json.dumps(self.info(name)).encode())
        name, file = "/".join(parts[:2]), parts[-1]
        path = self.folders.get(name, Path("/nowhere")) / file
        if self.mode == "gated":
            return self.reply(403, b"{}", {"X-Error-Code": "GatedRepo"})
        if not path.is_file():
            return self.reply(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        data = path.read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
        slow = self.mode == "slow" and file.endswith(".safetensors")
        return self.reply(200, data, headers, slow)

    def files(self, name):
        return sorted(p for p in self.folders[name].iterdir() if p.is_file())

    def entry(self, path):
        return {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": "0" * 40}

    def info(self, name):
        siblings = [{"rfilename": p.name, "size": p.stat().st_size} for p in self.files(name)]
        size = next((p.stat().st_size // 4 for p in self.files(name) if p.suffix == ".safetensors"), 0)
        if self.mode == "huge":
            size = 10**13
        return {
            "_id": "1",
            "id": name,
            "modelId": name,
            "sha": COMMIT,
            "private": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": siblings,
            "safetensors": {"parameters": {"F32": size}, "total": size},
        }

    def reply(self, status, data, headers=None, slow=False):
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if slow:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            time.sleep(30)
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write(data)


@pytest.fixture
def server(tmp_path, cache, monkeypatch):
    """The server, holding the model ``org/tiny``."""
    original = save_tiny(tmp_path / "tiny")
    (tmp_path / "tiny" / "pytorch_model.bin").write_bytes(b"pickled")
    monkeypatch.setattr(Hub, "folders", {"org/tiny": tmp_path / "tiny"})
    monkeypatch.setattr(Hub, "mode", "")
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    serving.daemon_threads = True
    serving.block_on_close = False
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{serving.server_port}")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    yield original
    serving.shutdown()
    serving.server_close()


def test_an_id_is_downloaded_once(server, monkeypatch, tmp_path):
    told = []
    loaded = load_model("org/tiny", device="cpu", progress=lambda f, m: told.append((f, m)))
    ids = torch.arange(30)[None]
    assert torch.equal(server(ids).logits, loaded.model(ids).logits)
    assert (loaded.facts.name, loaded.facts.revision) == ("org/tiny", COMMIT)
    fractions = [f for f, _ in told]
    assert fractions == sorted(fractions)
    assert any("Hugging Face" in m for _, m in told)
    snapshot = hub.cached_snapshot("org/tiny")
    assert "pytorch_model.bin" not in {p.name for p in snapshot.iterdir()}
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert load_model("org/tiny", device="cpu").facts.revision == COMMIT


def test_an_id_that_does_not_exist(server):
    with pytest.raises(errors.NotAvailable, match="no public model org/other") as caught:
        load_model("org/other")
    assert "Check the id" in caught.value.hint


def test_gated(server, monkeypatch):
    monkeypatch.setattr(Hub, "mode", "gated")
    with pytest.raises(errors.NotAvailable, match="is gated") as caught:
        load_model("org/tiny")
    assert "hf auth login" in caught.value.hint


def test_without_safetensors(server, tmp_path):
    (tmp_path / "tiny" / "model.safetensors").unlink()
    with pytest.raises(errors.Unsupported, match="has no safetensors"):
        load_model("org/tiny")


def test_too_large_is_said_before_the_download(server, monkeypatch):
    monkeypatch.setattr(Hub, "mode", "huge")
    with pytest.raises(errors.TooLarge, match=r"10000\.00 billion weights"):
        load_model("org/tiny", device="cpu")
    assert hub.cached_snapshot("org/tiny") is None


def test_too_large_for_the_disk(server, monkeypatch):
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda p: type("Usage", (), {"free": 1000})())
    with pytest.raises(errors.TooLarge, match="free on the disk"):
        load_model("org/tiny", device="cpu")


def test_cancel_and_go_on(server, monkeypatch):
    monkeypatch.setattr(Hub, "mode", "slow")
    downloading, asked = [], []

    def cancel():
        if len(downloading) > 3:
            asked.append(time.monotonic())
        return bool(asked)

    with pytest.raises(errors.Cancelled, match="was stopped"):
        load_model("org/tiny", progress=lambda f, m: "Downloading" in m and downloading.append(f), cancel=cancel)
    assert time.monotonic() - asked[0] < 2
    assert hub.cached_snapshot("org/tiny") is None
    assert list(hub.hub_folder().rglob("*.incomplete")) == []
    monkeypatch.setattr(Hub, "mode", "")
    assert load_model("org/tiny", device="cpu").facts.layers == 3


def test_what_is_there_of_a_download_is_counted(tmp_path):
    assert hub._bytes_in(tmp_path / "nowhere", set()) == 0
    (tmp_path / "whole").write_bytes(bytes(100))
    (tmp_path / "other.incomplete").write_bytes(bytes(20))
    (tmp_path / "old.incomplete").write_bytes(bytes(7))
    assert hub._bytes_in(tmp_path, {tmp_path / "old.incomplete"}) == 120


@pytest.mark.parametrize("name", ["gpt2", "org/name"])
def test_no_network_is_answered_in_seconds(name, cache):
    began = time.monotonic()
    with pytest.raises(errors.NotAvailable, match="Hugging Face cannot be reached"):
        load_model(name)
    assert time.monotonic() - began < 15


def test_offline_mode_is_answered_in_seconds(server, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(errors.NotAvailable, match="Hugging Face cannot be reached"):
        load_model("org/tiny")


def test_a_network_that_swallows_everything(server, monkeypatch):
    monkeypatch.setattr(Hub, "mode", "silent")
    monkeypatch.setattr(hub, "ANSWER_WITHIN", 3.0)
    began = time.monotonic()
    with pytest.raises(errors.NotAvailable, match="cannot be reached"):
        load_model("org/tiny")
    assert time.monotonic() - began < 8


def test_a_download_that_stands_still(server, monkeypatch):
    monkeypatch.setattr(Hub, "mode", "slow")
    monkeypatch.setattr(hub, "STALLED_AFTER", 2.0)
    with pytest.raises(errors.NotAvailable, match="stood still"):
        load_model("org/tiny", device="cpu")
