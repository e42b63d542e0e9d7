"""`validate --fit` writes to the path of `--out` and nowhere else."""

import pytest

from wafer_triton.cli.main import main
from wafer_triton.cost.bands import FOLDER
from wafer_triton.device.spec import FOLDER as SPECS


@pytest.mark.slow
def test_fit_without_a_folder_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    packaged = {path: path.read_bytes() for each in (FOLDER, SPECS) for path in each.iterdir() if path.is_file()}
    times = {path: path.stat().st_mtime_ns for path in packaged}
    assert main(["validate", "--fit"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("nothing written; --out FOLDER writes the specs of the devices and the error bands\n")
    assert "cycles" in out and "+-" in out
    assert {path: path.stat().st_mtime_ns for path in packaged} == times
    assert {path: path.read_bytes() for path in packaged} == packaged
    assert list(tmp_path.iterdir()) == []
