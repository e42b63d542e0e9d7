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
from wafer_triton.cost.calibrate import FAMILIES, fit, rows, validation
from wafer_triton.cost.calibrate.cells import TABLES
from wafer_triton.cost.constants import constants
from wafer_triton.device import device, spec

PAGE = Path(__file__).parents[2] / "docs" / "validation.md"


@pytest.mark.parametrize("stage", fit.STAGES[1:], ids=lambda stage: stage.family)  # the first has 66 rows
def test_scipy_finds_the_same_constants(stage: fit.Stage) -> None:
    fitted, results = fit.fit()
    (own,) = (result for result in results if result.stage == stage)
    made, measured = stage.rows(), np.array([row.measured for row in stage.rows()])

    def errors(values: np.ndarray) -> np.ndarray:
        c = replace(fitted[stage.device], **dict(zip(stage.names, values.tolist(), strict=True)))
        return np.array([row.predict(c) for row in made]) / measured - 1

    least = least_squares(errors, [10.0] * len(stage.names), bounds=(0, np.inf), x_scale="jac", xtol=1e-12, ftol=1e-12)
    assert own.values == pytest.approx(dict(zip(stage.names, least.x, strict=True)), rel=1e-5)


def example(line: str) -> str:
    """Return the beginning of the output that docs/reference.md shows of a command."""
    text = (PAGE.parent / "reference.md").read_text(encoding="utf-8")
    return text.partition(f"```console\n$ wafer-triton {line}\n")[2].partition("...\n```\n")[0]


def without_numbers(printed: str) -> str:
    return re.sub(r" *[+-]?\d[\d,.]*", " #", "".join(f"{line.rstrip()}\n" for line in printed.splitlines()))


def test_the_commands_of_the_page_print_their_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(PAGE.parents[1])
    commands = re.findall(r"`(?:wafer-triton )?((?:validate|devices) .+?)`", PAGE.read_text(encoding="utf-8"))
    tables = {line.split()[-1] for line in commands if "--table" in line}
    assert tables <= {"all", *TABLES}  # which test_paper.py prints
    assert len(commands) >= 11
    others = {"validate --fit", "validate --out FILE.md"}  # of the next test but one, and of test_paper.py
    for line in (line for line in commands if "--table" not in line and line not in others):
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


def test_a_fit_writes_the_committed_constants_and_bands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", "--fit", "--out", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert without_numbers(err).startswith(without_numbers(example("validate --fit --out mine")))
    assert json.loads(out.splitlines()[-1])["constants"]["wse3"]["round_cycles"]["kind"] == "fitted"
    for name in ("wse2", "wse3"):
        made, held = (json.loads((folder / f"{name}.json").read_text()) for folder in (tmp_path, spec.FOLDER))
        assert made["numbers"] == held["numbers"]
        made, held = made["constants"], held["constants"]
        assert list(made) == list(held)
        for key in made:
            for quantity, share in (("value", 1e-6), ("standard_error", 1e-4)):
                one, two = (each[key].pop(quantity, None) for each in (made, held))
                assert one == two or one == pytest.approx(two, rel=share), (name, key)
            assert made[key] == held[key]
    written, committed = (json.loads((folder / "bands.json").read_text()) for folder in (tmp_path, FOLDER))
    assert written.keys() == committed.keys() == FAMILIES.keys()
    for family, entry in written.items():
        assert entry["error_band"] == pytest.approx(committed[family]["error_band"], rel=1e-4)
        assert (entry["sizes"], entry["rows"]) == (committed[family]["sizes"], committed[family]["rows"])
        for key, errors in entry["left_out"].items():
            assert errors == pytest.approx(committed[family]["left_out"][key], abs=2e-6)
