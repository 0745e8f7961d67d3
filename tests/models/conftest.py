"""What the tests of models share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def smollm2_tokenizer():
    """The packaged model's tokenizer, from the user's cache (prepared there once)."""
    from transformers import AutoTokenizer

    from focus_core.models.loading import find_source

    return AutoTokenizer.from_pretrained(find_source("smollm2").folder)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder of this program and of Hugging Face, and no network."""
    monkeypatch.setenv("FOCUS_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return tmp_path / "cache"
