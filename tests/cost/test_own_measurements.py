"""A user's own measurements: errors of predictions, a fit with them, and refused files."""

from dataclasses import replace
from pathlib import Path

import pytest

from commands import answer, refused
from wafer_triton.cli import main as cli
from wafer_triton.cost.bands import FOLDER
from wafer_triton.cost.calibrate import FAMILIES, own, rows
from wafer_triton.cost.constants import constants
from wafer_triton.device import PRESETS

pytestmark = pytest.mark.slow

GEMV = "mesh,tile_k,tile_n,group_num,cycles\n"
LAYER = "mesh,dim,sequence,ffn_dim,group_num,total_cycles,phases_cycles,communication_cycles\n"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_calibration_files_are_read_as_a_users(family: str, tmp_path: Path) -> None:
    file, _, name = FAMILIES[family]
    lines = (FOLDER / file).read_text(encoding="utf-8").splitlines()
    (tmp_path / "own.csv").write_text("\n".join(dict.fromkeys((*lines[:3], lines[-1]))), encoding="utf-8")
    (made,) = (each for each in own.read(tmp_path / "own.csv") if each.family == family)
    assert made.device == PRESETS[name]
    known = {(row.name, row.measured) for row in rows(family)}
    assert made.rows and all((row.name, row.measured) in known for row in made.rows)


def test_a_fit_finds_the_constants_that_measurements_were_made_with(tmp_path: Path) -> None:
    """Write measurements of an own device, which has no calibration rows beside it."""
    mine = replace(PRESETS["wse3"], name="mine", hop_cycles=3)
    true = replace(constants(mine), stage_cycles=25.0, collective_cycles=70.0)
    path = tmp_path / "mine.csv"
    blank = [(side, tile, tile, 4, 1.0) for side in (80, 120, 160) for tile in (1, 6)]
    path.write_text(GEMV + "".join(",".join(map(str, row)) + "\n" for row in blank))
    (first,) = own.read(path, mine)
    cycles = [row.predict(true) for row in first.rows]
    made = [(*row[:-1], value) for row, value in zip(blank, cycles, strict=True)]
    path.write_text(GEMV + "".join(",".join(map(str, row)) + "\n" for row in made))
    (read,) = own.read(path, mine)
    fitted = own.refitted(read)
    assert fitted.beside == 0 and max(map(abs, fitted.errors_before)) > 0.1
    assert fitted.after == pytest.approx({"collective_cycles": 70.0, "stage_cycles": 25.0}, rel=1e-6)
    assert max(map(abs, fitted.errors_after)) < 1e-9


def test_on_a_preset_the_calibration_rows_count_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.csv"
    path.write_text(f"{GEMV}100,4,4,4,500\n")
    found = answer(f"validate {path}", capsys)[0]["families"]["MeshGEMV"]
    (row,) = found["rows"]
    assert row["measured"] == 500 and row["error"] == pytest.approx(row["predicted"] / 500 - 1)
    assert found["device"] == "wse3" and found["within_band"] == 0 and found["worst_error"] == abs(row["error"])
    assert cli.main(["validate", str(path), "--fit"]) == 0
    said = capsys.readouterr().out
    assert "MeshGEMV on wse3: fitted on 1 row, beside 24 calibration rows" in said and "nothing written" in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a,b\n1,2\n",
            "own.csv: its columns are a,b; give those of one of these lists, with commas between them: mesh,tile_m,",
        ),
        (GEMV, "own.csv: 0 rows; give from 1 to 1,000"),
        (GEMV.replace("cycles", "cycles,cycles"), "own.csv: column cycles stands twice; leave one out"),
        (f"{GEMV}16,100000,100000,2,5\n", "own.csv, line 2: "),
        (
            f"{LAYER}240,2160,2160,7200,10,19546,19546,99999\n",
            "own.csv, line 2: communication_cycles is more than ",
        ),
        (f"{GEMV}16,1,1,2\n", "own.csv, line 2: as many values as there are columns are needed"),
        (f"{GEMV}16,1,x,2,3\n", "own.csv, line 2: tile_n = 'x' must be a whole number of at least 1"),
        (f"{GEMV}\n16,1,1,2,3\n\n16,1,x,2,3\n", "own.csv, line 5: tile_n = 'x' must be a whole number"),
        (f"{GEMV}16,1,1,2,nan\n", "own.csv, line 2: cycles = 'nan' must be a positive number"),
        (f"{GEMV}9999,1,1,2,3\n", "own.csv, line 2: mesh 9999 x 9999 at (0, 0) leaves device wse3"),
        (
            "phase,model,mesh,tokens,tokens_per_second\nlunch,llama3-8b,420,8,9\n",
            "phase is 'lunch'; write decode or pr",
        ),
        ("\ud800", "is not UTF-8 text ("),
    ],
)
def test_a_bad_measurement_is_refused_with_its_line(tmp_path, monkeypatch, capsys, text, message) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert message in refused("validate own.csv", capsys)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("validate none.csv", "none.csv: No such file or directory; give another path"),
        ("validate /dev/zero", "/dev/zero: is no regular file"),
        ("validate --device wse2", "--device: only for your own measurements"),
        ("validate own.csv --out page.md", "--out: only for the package's measurements"),
        ("validate --table 3 --fit", "--fit: only for all tables"),
        ("validate --table 9", 'Invalid value "9" for --table'),
        ("validate --fit --out page.md", "--out page.md: --fit writes a folder"),
        ("validate --out page", "--out page: --fit writes a folder"),
        ("validate --out config.json", "config.json: does not end in .md"),
        (
            "validate own.csv --fit --device wse2",
            "rows do not determine collective_cycles, stage_cycles; give more rows",
        ),
    ],
)
def test_options_that_do_not_go_together(tmp_path, monkeypatch, capsys, line, message) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text(f"{GEMV}8,4,4,2,500\n")
    assert message in refused(line, capsys)
