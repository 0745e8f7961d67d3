"""The notebooks run from top to bottom, draw their figures, and are kept without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def test_there_are_notebooks():
    assert NAMES == ["compare.ipynb", "overview.ipynb"]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_kept_without_outputs(name):
    cells = nbformat.read(FOLDER / name, 4).cells
    assert [cell for cell in cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)] == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(300)
def test_a_notebook_runs_and_its_figures_render(name):
    notebook = nbformat.read(FOLDER / name, 4)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(FOLDER)}}).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    figures = [output for output in shown if "application/vnd.plotly.v1+json" in output.get("data", {})]
    assert len(figures) == 2
    assert all(output["data"]["application/vnd.plotly.v1+json"]["data"] for output in figures)
    assert [output for output in shown if output.output_type == "error"] == []
