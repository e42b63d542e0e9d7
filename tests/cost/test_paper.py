"""The paper's tables: every cell is there, its prediction is `estimate`'s, and nothing is fitted on it."""

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest

from commands import answer
from wafer_triton import draw, estimate
from wafer_triton.cli import main as cli
from wafer_triton.cost.calibrate import FAMILIES, fit, paper, records, validation
from wafer_triton.cost.calibrate.cells import Cell, summaries
from wafer_triton.draw.figure import numbers_of
from wafer_triton.errors import MeshError

PAGE = Path(__file__).parents[2] / "docs" / "validation.md"


@pytest.fixture(scope="module")
def cells() -> tuple[Cell, ...]:
    """Compute all cells once, which reports each."""
    said: list[tuple[object, ...]] = []
    found = paper.cells(progress=lambda *report: said.append(report))
    assert said == [("cells", number, len(found)) for number in range(1, len(found) + 1)]
    return found


def test_every_number_of_tables_2_to_8_is_a_cell_or_derived_or_of_another_machine(cells: tuple[Cell, ...]) -> None:
    published = records(paper.FILE)
    assert len(published) == 166 and {record["table"] for record in published} == {"2", "3", "4", "5", "6", "7, 8"}
    shown = [(cell.table, cell.what, cell.model, cell.mesh, cell.published) for cell in cells if cell.table != "text"]
    names = ("table", "what", "model", "mesh", "value")
    assert shown == [tuple(record[name] for name in names) for record in published if record["system"] in paper.OWN]
    derived = [one for one in paper.derived() if one.table != "text"]
    assert len(shown) == 36 and len(derived) == 18
    assert len(shown) + len(derived) == sum(record["role"] != "context" for record in published)


def test_derived_numbers_follow_from_published_ones() -> None:
    """Energies within 1.3 %, or as published to their last digit: the paper divides before it rounds."""
    for one in paper.derived():
        assert abs(one.value - one.published) <= max(0.013 * one.published, 0.005), one
    assert [one.value for one in paper.derived(("5",))] == [382, 16]
    (first, *_) = paper.derived(("6",))
    assert first.value == pytest.approx(0.336 / 0.0012 / 37.5)  # 37.5 is 15 kW of a WSE-2 over 400 W of an A100


def test_verdicts_follow_from_bands(cells: tuple[Cell, ...]) -> None:
    for cell in cells:
        if not cell.fitted:
            share = cell.band or 0.01
            inside = cell.predicted * (1 - share) <= cell.high and cell.low <= cell.predicted * (1 + share)
            assert (cell.verdict == "within") == inside
    assert {cell.verdict for cell in cells} == {"fitted", "within", "miss"}


def test_a_statement_of_the_text_counts_once(cells: tuple[Cell, ...]) -> None:
    kinds = {kind.name: kind for kind in summaries(cells)}
    text = kinds.pop("text: how much faster")
    assert (text.cells, text.within, text.misses, text.mean_error) == (3, 1, 2, None)
    assert sum(kind.cells for kind in kinds.values()) == sum(cell.table != "text" for cell in cells)
    for kind in (*kinds.values(), text):
        assert kind.cells == kind.fitted + kind.held_out and kind.held_out == kind.within + kind.misses


def test_the_best_evidence_and_the_misses(cells: tuple[Cell, ...]) -> None:
    """Check that held-out prefill and decode are within 5 %, and that what is missed is what the page explains."""
    own = [cell for cell in cells if cell.table in "34"]
    assert sum(cell.verdict == "fitted" for cell in own) == 8
    unfitted = [cell for cell in own if cell.verdict == "within"]
    assert len(unfitted) == 16 and max(abs(cell.error) for cell in unfitted) < 0.05
    missed = [cell for cell in cells if cell.verdict == "miss"]
    assert not [cell for cell in missed if cell.table in "34"]
    assert all(abs(cell.error) < 0.3 for cell in missed if cell.table == "2")
    assert {cell.model for cell in missed if cell.table == "5"} == {"llama2-13b"}
    assert {cell.what for cell in missed if cell.table == "text"} == {
        "MeshGEMM faster than Cannon", "MeshGEMM faster than SUMMA",
    }  # fmt: skip


@pytest.mark.parametrize(
    "table, name, tokens, fitting",
    [
        ("3", "prefill", "tokens", {"llama3-8b": ["480", "600", "720"], "llama2-13b": ["480", "600"]}),
        ("4", "decode", "context", {"llama3-8b": ["420", "540"], "llama2-13b": ["420"]}),
    ],
)
def test_a_cell_of_a_model_that_fits_equals_its_estimate(
    cells: tuple[Cell, ...], table: str, name: str, tokens: str, fitting: dict[str, list[str]]
) -> None:
    found = dict[str, list[str]]()
    for cell in (cell for cell in cells if cell.table == table):
        given = {"model": cell.model, "mesh": int(cell.mesh), "program": "paper-benchmark", tokens: 4096}
        with suppress(MeshError):
            assert cell.predicted == getattr(estimate, name)(**given).tokens_per_second
            found.setdefault(cell.model, []).append(cell.mesh)
    assert found == fitting


def test_the_fit_reads_the_calibration_files_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read, open_ = set(), Path.open

    def opened(path: Path, *args: object, **more: object) -> object:
        read.add(path.name)
        return open_(path, *args, **more)

    monkeypatch.setattr(Path, "open", opened)
    fit.fit.__wrapped__()
    assert {name for name in read if name.endswith(".csv")} == {file for file, *_ in FAMILIES.values()}


def test_the_fitted_cells_equal_the_calibration_files() -> None:
    columns = ("phase", "model", "mesh", "tokens_per_second")
    fitted = {tuple(map(row.get, columns)) for row in records("wse2_llm.csv")}
    cells = [record for record in records(paper.FILE) if record["role"] == "calibration"]
    assert {(row["what"], row["model"], row["mesh"], row["value"]) for row in cells} == fitted


def test_a_missed_request_names_its_error_with_the_prefill_of_another_mesh(cells: tuple[Cell, ...]) -> None:
    found = {(cell.table, cell.model, cell.mesh, cell.tokens): cell.predicted for cell in cells}
    (cell,) = (cell for cell in cells if cell.verdict == "miss" and cell.tokens == "4096 in, 128 out")
    stated = paper._layered("prefill", cell.model, 660, 4096).seconds
    seconds = 128 / cell.predicted - stated + 4096 / found["3", cell.model, "720", "4096"]
    assert cell.note.endswith(f"off by {100 * (128 / seconds / 604.4 - 1):+.1f} %")


def test_prefill_on_660_has_the_tiles_of_600_and_is_slower() -> None:
    assert [-(-4096 // side) for side in (600, 660, 720)] == [7, 7, 6]
    seconds = [paper._layered("prefill", "llama3-8b", side, 4096).seconds for side in (600, 660, 720)]
    assert seconds[1] > seconds[0] > seconds[2]


def test_one_table_is_brief(capsys: pytest.CaptureFixture[str]) -> None:
    found, text = answer("validate --table 8", capsys)
    assert "cells: " not in text and "prediction" not in text  # table 8 has numbers alone that follow from others
    assert found["cells"] == [] and len(found["derived"]) == 10


def close(one: str, two: str) -> bool:
    """Return whether two texts have the same words, and numbers that differ as another machine may round them."""
    number = r"\d[\d,]*(?:\.\d+)?"
    pairs = zip(*(re.findall(number, text.replace(",", "")) for text in (one, two)), strict=True)
    return re.split(number, one) == re.split(number, two) and all(
        float(a) == pytest.approx(float(b), rel=1e-5, abs=0.011) for a, b in pairs
    )


def test_the_command_prints_a_summary_and_writes_the_page(
    cells: tuple[Cell, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paper, "cells", lambda **_: cells)
    path = tmp_path / "page.md"
    assert cli.main(["validate", "--out", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    *begun, printed = err.partition(validation.counted(cells))
    assert begun[0].splitlines() == [f"families: {done} of 5" for done in range(1, 6)]
    page, reference = (file.read_text(encoding="utf-8") for file in (PAGE, PAGE.with_name("reference.md")))
    assert close(path.read_text(), page), "the page is not current"
    shown = reference.partition("$ wafer-triton validate\n")[2].partition("\n--table all")[0]
    assert shown and close(f"{begun[1]}{printed}", f"{shown}\nwritten: {path}\n"), "nor is docs/reference.md"
    found = json.loads(out.splitlines()[-1])["families"]
    assert len(found) == 5
    assert found["MeshGEMM"]["rows"] == 66 and found["MeshGEMM"]["mean_error"] <= 0.02


def test_the_picture_of_the_validation_shows_the_cells(
    cells: tuple[Cell, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(paper, "cells", lambda tables: tuple(cell for cell in cells if cell.table in tables))
    draw.validation(tmp_path / "drawn.png")
    today, kept = (numbers_of(path) for path in (tmp_path / "drawn.png", PAGE.parent / "pictures" / "validation.png"))
    assert today.keys() == kept.keys() and sum(map(len, today.values())) > 100
    for kind, errors in today.items():
        assert errors == pytest.approx(kept[kind], rel=1e-3), "run make pictures"


def test_records_have_numbers_and_none_in_place_of_an_empty_text(cells: tuple[Cell, ...]) -> None:
    first, four = (next(cell.as_json() for cell in cells if cell.table == table) for table in "64")
    assert (first["published"], first["mesh"], first["tokens"]) == (0.0012, None, None)
    assert (four["mesh"], four["tokens"]) == (420, 4096)
