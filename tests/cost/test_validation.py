"""The validation table: the promised errors hold, and the committed page is current."""

import json
import re
from pathlib import Path
from statistics import fmean

import pytest

from wafer_triton.cli import main as cli
from wafer_triton.cost.calibrate import paper, validation

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "validation.md"
# (mean, worst) relative error of each family; fitted without a group, the group's errors are at most twice that
BOUNDS = {
    "MeshGEMM": (0.02, 0.06),
    "MeshGEMV": (0.015, 0.04),
    "WSE-3 decode layer": (0.06, 0.06),
    "WSE-2 decode": (0.03, 0.06),
    "WSE-2 prefill": (0.05, 0.10),
}


@pytest.fixture(scope="module")
def families() -> dict[str, validation.Family]:
    return {one.name: one for one in validation.families()}


@pytest.mark.parametrize("name", BOUNDS)
def test_errors(families: dict[str, validation.Family], name: str) -> None:
    mean, worst = BOUNDS[name]
    errors = [abs(error) for error in families[name].errors]
    assert fmean(errors) <= mean
    assert max(errors) <= worst


@pytest.mark.parametrize("name", BOUNDS)
def test_errors_on_groups_left_out(families: dict[str, validation.Family], name: str) -> None:
    mean, worst = BOUNDS[name]
    for key, errors in families[name].left_out.items():
        assert errors, key
        assert fmean(map(abs, errors)) <= 2 * mean, key
        assert max(map(abs, errors)) <= 2 * worst, key


def test_there_are_fewer_constants_than_rows(families: dict[str, validation.Family]) -> None:
    assert all(one.fitted < len(one.rows) for one in families.values())


def test_the_page_is_current(families: dict[str, validation.Family]) -> None:
    made = validation.markdown(list(families.values()), paper.cells(), paper.parts())

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


@pytest.mark.slow
def test_the_command_prints_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.md"
    assert cli.main(["validate", "--write", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    begin, _, page = err.partition(validation.TITLE)
    assert begin.splitlines()[:5] == [f"families: {done} of 5" for done in range(1, 6)]
    assert begin.splitlines()[-1].startswith("cells: ")
    assert f"{validation.TITLE}{page}" == f"{path.read_text()}written: {path}\n"
    found = json.loads(out.splitlines()[-1])["families"]
    assert set(found) == set(BOUNDS)
    assert found["MeshGEMM"]["rows"] == 66 and found["MeshGEMM"]["mean_error"] <= 0.02
