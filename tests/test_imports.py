"""Imports point one way: app -> analysis -> focus_core; and the app's process stays light."""

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FORBIDDEN = {
    "focus_core": {"streamlit", "plotly", "pandas", "app", "analysis"},
    "analysis": {"streamlit", "torch", "transformers", "app"},
    "app": {"torch", "transformers", "accelerate", "tests"},
}
GPU_ONLY = {"triton", "flash_attn", "cutlass", "spacy"}
OPTIONAL = {"lm_eval", "ray"}
"""Imported where a command that needs them is run, and asked for by files of their own (requirements-*.txt)."""


def modules(package: str) -> list[str]:
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found.append(name.removesuffix(".__init__"))
    assert found, f"{package} has no modules"
    return [name for name in found if not name.endswith("__main__")]


def imported(path: Path) -> set[str]:
    """Top-level names of every absolute import in a file, those inside functions included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_file_imports_against_the_direction(package):
    wrong = {
        str(path.relative_to(ROOT)): sorted(imported(path) & FORBIDDEN[package])
        for path in (ROOT / package).rglob("*.py")
        if imported(path) & FORBIDDEN[package]
    }
    assert wrong == {}


BELOW_THE_HANDLERS = ("benchmark", "cli", "evaluation", "kernels", "models", "routing", "training", "variants")


@pytest.mark.parametrize("package", BELOW_THE_HANDLERS)
def test_what_handlers_are_made_of_does_not_import_them(package):
    found = {}
    for path in (ROOT / "focus_core" / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            if wrong := [name for name in names if name.startswith("focus_core.handlers")]:
                found[path.name] = wrong
    assert found == {}


def loaded_after_importing(names: list[str]) -> set[str]:
    code = "import sys\n" + "".join(f"import {name}\n" for name in names) + "print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2_000:]
    return {name.split(".")[0] for name in done.stdout.split()}


def test_the_apps_process_never_loads_torch():
    loaded = loaded_after_importing(modules("app") + modules("analysis"))
    assert "streamlit" in loaded
    assert loaded & {"torch", "transformers", "accelerate", "umap", "numba", "nltk"} == set()


def test_the_engine_loads_no_part_of_the_app():
    loaded = loaded_after_importing(modules("focus_core"))
    assert "torch" in loaded
    assert loaded & {"streamlit", "plotly", "app", "analysis"} == set()


def requirement_lines(name: str) -> list[str]:
    written = (ROOT / name).read_text(encoding="utf-8").splitlines()
    lines = (line.split("#")[0].split(";")[0].strip() for line in written)
    return [line for line in lines if line and not line.startswith("-r ")]


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("requirements*.txt")))
def test_requirements_are_pinned(name):
    lines = requirement_lines(name)
    assert lines
    assert [line for line in lines if "==" not in line or "*" in line] == []


def test_the_environment_has_the_pinned_versions():
    for line in requirement_lines("requirements.txt") + requirement_lines("requirements-dev.txt"):
        name, version = line.split("==")
        assert importlib.metadata.version(name).split("+")[0] == version, name


def test_every_package_that_is_imported_is_required():
    required = {line.split("==")[0].lower() for line in requirement_lines("requirements.txt")}
    providers = importlib.metadata.packages_distributions()
    missing = set()
    for package in FORBIDDEN:
        for path in (ROOT / package).rglob("*.py"):
            for name in imported(path) - set(sys.stdlib_module_names) - set(FORBIDDEN) - GPU_ONLY - OPTIONAL:
                if not {provider.lower() for provider in providers.get(name, [])} & required:
                    missing.add((str(path.relative_to(ROOT)), name))
    assert missing == set()
