"""docs/quickstart.ipynb runs, and prints what it shows."""

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/quickstart.ipynb"


def test_the_notebook_prints_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, shown = {"__name__": "quickstart"}, []
    for cell in json.loads(PAGE.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            printed = StringIO()
            with redirect_stdout(printed):
                exec("".join(cell["source"]), names)
            shown.append("".join(text for output in cell["outputs"] for text in output["text"]))
            assert printed.getvalue() == shown[-1], f"run jupyter nbconvert --to notebook --execute --inplace {PAGE}"
    assert all(shown[:4])
