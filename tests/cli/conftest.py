import json

import pytest

from focus_core.cli import main
from tests.tiny import save_tiny

TEXT = "the cat and the dog sat on the mat while another one ran there, and then it rained. " * 12


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    save_tiny(folder, "llama", layers=2)
    return str(folder)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "rain.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Run a command with ``--json``; gives the exit code and the document."""
    monkeypatch.setenv("FOCUS_LAB_CACHE", str(tmp_path / "cache"))

    def run(*arguments):
        path = tmp_path / "result.json"
        path.unlink(missing_ok=True)
        code = main([*map(str, arguments), "--json", str(path)])
        return code, json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    return run


@pytest.fixture
def refused(capsys):
    """Run a command that must be refused; gives the one line that it says."""

    def run(*arguments):
        capsys.readouterr()
        try:
            code = main([*map(str, arguments)])
        except SystemExit as exit:
            code = exit.code
        said = capsys.readouterr()
        assert code == 2, said
        assert said.out == ""
        assert said.err.count("\n") == 1, said.err
        return said.err.strip()

    return run
