"""The command `validate` gives the committed constants, error bands and page; scipy gives the constants."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import least_squares

from wafer_triton.cli import main as cli
from wafer_triton.cost.bands import FOLDER
from wafer_triton.cost.calibrate import FAMILIES, fit, paper, rows, validation
from wafer_triton.cost.constants import constants
from wafer_triton.device import device, spec

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "validation.md"


@pytest.mark.parametrize("stage", fit.STAGES, ids=lambda stage: stage.family)
def test_scipy_finds_the_same_constants(stage: fit.Stage) -> None:
    fitted, results = fit.fit()
    (own,) = (result for result in results if result.stage == stage)
    made, measured = stage.rows(), np.array([row.measured for row in stage.rows()])

    def errors(values: np.ndarray) -> np.ndarray:
        c = replace(fitted[stage.device], **dict(zip(stage.names, values.tolist(), strict=True)))
        return np.array([row.predict(c) for row in made]) / measured - 1

    least = least_squares(errors, [10.0] * len(stage.names), bounds=(0, np.inf), x_scale="jac", xtol=1e-12, ftol=1e-12)
    assert own.values == pytest.approx(dict(zip(stage.names, least.x, strict=True)), rel=1e-5)


def test_the_page_is_current() -> None:
    made = validation.markdown(validation.families(), paper.cells(), paper.derived())

    def close(one: str, two: str) -> bool:
        if one == two:
            return True
        numbers = [float(text.replace(",", "")) for text in (one, two)]
        return abs(numbers[0] - numbers[1]) <= 0.011 + 1e-5 * abs(numbers[0])  # another machine may round otherwise

    def split(page: str) -> tuple[list[str], list[str]]:
        number = r"\d[\d,]*(?:\.\d+)?"
        return re.split(number, page), re.findall(number, page)

    (text, numbers), (held_text, held_numbers) = split(made), split(PAGE.read_text(encoding="utf-8"))
    assert text == held_text
    assert all(map(close, numbers, held_numbers))


def test_the_commands_of_the_page_print_their_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(PAGE.parents[1])
    commands = re.findall(r"`(?:wafer-triton )?((?:validate|devices) .+?)`", PAGE.read_text(encoding="utf-8"))
    assert len(commands) >= 11
    for line in commands:
        assert cli.main(line.split()) == 0, line
        assert capsys.readouterr().out.count("\n") > 3, line


def test_held_out_measurements_are_predicted_without_them() -> None:
    """The communication of a decode layer does not depend on the constant that is fitted on its total."""
    held_out = [cell.what for cell in validation.measured() if not cell.fitted]
    assert held_out == [*(row.name for row in rows("MeshGEMV")[:4]), "240, communication"]
    c = constants(device("wse3"))
    total, communication = rows("WSE-3 decode layer")
    other = replace(c, decode_work_cycles=0.0)
    assert total.predict(other) < total.predict(c) and communication.predict(other) == communication.predict(c)


def test_the_command_prints_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, picture = tmp_path / "page.md", tmp_path / "validation.png"
    assert cli.main(["validate", "--out", str(path), "--out", str(picture), "--json"]) == 0
    out, err = capsys.readouterr()
    begin, _, page = err.partition(validation.TITLE)
    assert begin.splitlines()[:5] == [f"families: {done} of 5" for done in range(1, 6)]
    assert begin.splitlines()[-1].startswith("cells: ")
    assert f"{validation.TITLE}{page}" == f"{path.read_text()}written: {path}\nwritten: {picture}\n"
    found = json.loads(out.splitlines()[-1])["families"]
    assert len(found) == 5
    assert found["MeshGEMM"]["rows"] == 66 and found["MeshGEMM"]["mean_error"] <= 0.02


def test_a_fit_writes_the_committed_constants_and_bands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", "--fit", "--out", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert "k_step_cycles" in err and "+-" in err and "worst" in err
    assert json.loads(out.splitlines()[-1])["constants"]["wse3"]["round_cycles"]["kind"] == "fitted"
    for name in ("wse2", "wse3"):
        made, held = (json.loads((folder / f"{name}.json").read_text()) for folder in (tmp_path, spec.FOLDER))
        assert made["numbers"] == held["numbers"]
        made, held = (each["constants"]["round_cycles"] for each in (made, held))
        assert made["value"] == pytest.approx(held["value"], rel=1e-6)
    written, committed = (json.loads((folder / "bands.json").read_text()) for folder in (tmp_path, FOLDER))
    assert written.keys() == committed.keys() == FAMILIES.keys()
    for family, entry in written.items():
        assert entry["error_band"] == pytest.approx(committed[family]["error_band"], rel=1e-4)
        assert (entry["sizes"], entry["rows"]) == (committed[family]["sizes"], committed[family]["rows"])
        for key, errors in entry["left_out"].items():
            assert errors == pytest.approx(committed[family]["left_out"][key], abs=2e-6)
