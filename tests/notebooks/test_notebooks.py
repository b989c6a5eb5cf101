"""Every notebook of the tutorials and of the gallery runs, as a script and in Jupyter; what it shows is asserted in its cells."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.helpers.run import started

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted([*EXAMPLES.glob("notebooks/*.py"), *EXAMPLES.glob("gallery/*.py")])

pytestmark = pytest.mark.slow


def test_there_are_ten() -> None:
    assert len(NOTEBOOKS) == 10


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_as_a_script(path: Path, tmp_path: Path) -> None:
    with started([sys.executable, path], cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}) as run:
        assert run.wait(250) == 0, run.output


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_in_jupyter(path: Path, tmp_path: Path) -> None:
    for package in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(package, reason="needs the extra notebooks: pip install 'glt-lightning[notebooks]'")
    code = (
        "import sys, jupytext, nbclient\n"
        "notebook = jupytext.read(sys.argv[1])\n"
        "assert sum(cell.cell_type == 'code' for cell in notebook.cells) > 3\n"
        "nbclient.NotebookClient(notebook, timeout=200, kernel_name='python3').execute()\n"
    )
    with started([sys.executable, "-c", code, path], cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}) as run:
        assert run.wait(280) == 0, run.output
