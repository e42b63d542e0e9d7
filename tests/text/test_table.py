"""Tables: aligned and with units in a pipe, whole words at any width, CSV, and HTML with everything escaped."""

import io
import re

import pytest

from wafer_triton import estimate
from wafer_triton.compare.algorithms import AlgorithmRow, compare_gemv
from wafer_triton.cost.results import Kernel, Layered
from wafer_triton.text.quantity import Legend, unit
from wafer_triton.text.table import Table, filled, fitted

LEGEND = Legend(AlgorithmRow, Layered, Kernel)


def test_columns_are_aligned():
    assert str(Table.rows(("name", "B"), [("a", "1"), ("long name", "1,000")], title="sizes")).splitlines() == [
        "sizes",
        "name           B",
        "----------------",
        "a              1",
        "long name  1,000",
    ]


def test_a_record_shows_a_field_a_line():
    record = {"cycles": 2.0, "assumed": None, "steps": {"qkv": 12341.0}, "fits": True}
    assert str(Table([record], LEGEND, title="decode", upright=True)).splitlines() == [
        "decode",
        "cycles                     2",
        "cycles of a layer by step",
        "  qkv                      12,340 cycles",
        "fits                       yes",
    ]


def test_a_unit_stands_in_the_head_or_in_every_cell():
    records = [{"rounds": 1, "sram_peak_bytes": 2048, "algorithm": "ring", "verdict": {"P": True, "L": False}}]
    head, _, row = str(Table(records, Legend(AlgorithmRow))).splitlines()
    assert head.split() == ["algorithm", "rounds", "SRAM", "peak", "PLMR"]
    assert row.split() == ["ring", "1", "2", "KiB", "P", "-"]


def test_cycles_of_counted_rows_are_called_predicted():
    row = {"algorithm": "ring", "hops": 12345, "cycles": 2345.75}
    without = {name: value for name, value in row.items() if name != "cycles"}
    head, _, cells = str(Table([row], Legend(AlgorithmRow))).splitlines()
    assert (re.split("  +", head)[-1], re.split("  +", cells)[-1]) == ("predicted cycles", "2,346")
    assert "cycles" not in str(Table([without], Legend(AlgorithmRow)))


def words(text):
    return sorted(text.replace("-" * 8, " ").replace("---", " ").split())


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_table_on_a_terminal_breaks_between_words(width):
    rows = [("mesh", "four exchanges with the neighbours in each direction, at the same time", "12 cycles")] * 3
    rows += [("a", "short", "1,234,567 cycles")]
    table = Table.rows(("algorithm", "what it does", "time"), rows, title="algorithms of a product", left=2)
    shown = table.within(width)
    assert max(map(len, shown.splitlines())) <= width
    assert words(re.sub("-+", " ", shown)) == words(re.sub("-+", " ", str(table)))
    assert "1,234,567 cycles" in shown, "a number stays beside its unit"
    assert table.within(200) == str(table)


def test_the_longest_texts_break():
    upright = Table([{"communication cycles": "12 cycles", "beyond": "words " * 30}], upright=True)
    assert upright.within(60).splitlines()[0] == "communication cycles  12 cycles"


def test_a_table_of_many_columns_stands_upright():
    table = Table.of(compare_gemv(8, 64, 64, values=False), title="PLMR")
    shown = table.within(80)
    assert max(map(len, shown.splitlines())) <= 80 < max(map(len, str(table).splitlines()))
    first = [line.split("  ")[0] for line in shown.splitlines()]
    assert first[1] == "algorithm" and first[3:5] == ["rounds", "stages"] and first[-1] == "PLMR"
    assert sorted(re.findall("ktree|ring|star", shown)) == ["ktree", "ring", "star"]


def test_a_number_in_a_column_of_texts_stays_beside_its_unit():
    rows = [(f"{side} x {side} cores", "0.5 cycles", "word " * 20) for side in (240, 300)]
    shown = Table.rows(("mesh of a region", "hop", "note"), rows, left=3).within(30)
    assert max(map(len, shown.splitlines())) <= 30
    assert "240 x 240 cores" in shown and "300 x 300 cores" in shown and shown.count("0.5 cycles") == 2


def test_a_share_stays_beside_its_sign():
    shares = "bound by hops 26.62 %, links 1.962 %, waiting 0.8091 %"
    for width in range(20, len(shares)):
        lines = filled(shares, width)
        assert " ".join(lines) == shares and not any(line.startswith("%") for line in lines)


def test_columns_that_do_not_fit_go_on_below_beside_the_first():
    records = [{"k": str(row), **{f"figure{name}": 100 * name + row for name in range(8)}} for row in range(30)]
    shown = Table(records, Legend({f"figure{name}": unit("") for name in range(8)})).within(40)
    assert max(map(len, shown.splitlines())) <= 40
    parts = [[line.split() for line in part.splitlines()] for part in shown.split("\n\n")]
    figures = [name for (_, *names), *_ in parts for name in names]
    assert figures == [f"figure{name}" for name in range(8)] and len(parts) == 2
    for (first, *names), _, *rows in parts:
        assert first == "k"
        assert rows == [[str(row), *(str(100 * int(name[-1]) + row) for name in names)] for row in range(30)]


def test_columns_that_go_on_below_stand_beside_all_that_tell_rows_apart():
    names = [(phase, side, tokens) for phase in ("prefill", "decode") for side in "48" for tokens in "12"]
    rows = [(*name, *(f"{number} cycles" for number in range(6))) for name in names]
    shown = Table.rows(("phase", "mesh", "tokens", *(f"figure{number}" for number in range(6))), rows, left=3)
    for part in shown.within(60).split("\n\n"):
        assert [tuple(line.split()[:3]) for line in part.splitlines()[2:]] == names
    assert max(map(len, shown.within(30).splitlines())) <= 30


def test_a_stream_that_is_no_terminal_gets_120_columns(monkeypatch):
    table = Table.rows(("a", "b"), [("word " * 30, "1")], left=2)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "50")
    assert len(str(table).splitlines()[1]) > 120 == max(map(len, fitted(io.StringIO(), table).splitlines()))
    assert max(map(len, fitted(Terminal(), table).splitlines())) <= 50
    note = "P: half of the cores or more take part; L: the critical path takes at most twice the best algorithm's"
    assert fitted(io.StringIO(), f"{note}\n\nshort") == f"{note}\n\nshort", "it has 103 columns"
    lines = fitted(Terminal(), f"{note}\n\nshort").splitlines()
    assert max(map(len, lines)) <= 50 and " ".join(lines[:-2]) == note and lines[-2:] == ["", "short"]


def test_csv_has_full_numbers_under_the_names_of_fields(tmp_path):
    found = estimate.gemv(mesh=8, k=64, n=64)
    Table.of([found, found]).csv(tmp_path / "a.csv")
    head, *rows = (tmp_path / "a.csv").read_text().splitlines()
    assert head.split(",") == list(vars(found)) and len(rows) == 2
    assert float(rows[0].split(",")[0]) == found.cycles


def test_a_number_that_is_not_finite_is_a_dash():
    assert str(Table([{"cycles": float("inf")}], LEGEND)).splitlines()[-1].strip() == "-"
