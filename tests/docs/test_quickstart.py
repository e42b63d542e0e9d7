"""docs/quickstart.ipynb runs, and prints what it shows."""

from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs/quickstart.ipynb"


def shown(page):
    """Return the text that each cell prints, in however many pieces it came."""
    return ["".join(output["text"] for output in cell.outputs) for cell in page.cells if cell.cell_type == "code"]


@pytest.mark.slow
def test_the_notebook_prints_what_it_shows(tmp_path):
    nbformat, nbclient = (pytest.importorskip(name) for name in ("nbformat", "nbclient"))
    kept = nbformat.read(PAGE, as_version=4)
    again = nbclient.NotebookClient(nbformat.read(PAGE, as_version=4), timeout=600).execute(cwd=str(tmp_path))
    assert shown(again) == shown(kept), f"run jupyter nbconvert --to notebook --execute --inplace {PAGE}"
    assert all(shown(kept)[:4])
