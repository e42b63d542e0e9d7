"""bench/README.md and the table of other tools: they are the measured ones, and its files and targets exist."""

import json
import re
import runpy
from pathlib import Path

import report

BENCH = Path(__file__).parents[2] / "bench"
TEXT = (BENCH / "README.md").read_text(encoding="utf-8")
README = (BENCH.parent / "README.md").read_text(encoding="utf-8")


def tables(text):
    """Return the rows of each table of a page, heads and rulers included."""
    return [table.splitlines() for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]


def results(name):
    return json.loads((BENCH / "results" / f"{name}.json").read_text())


def test_the_table_is_measured():
    (source,) = set(re.findall(r"`make bench BENCH=(\w+)`", TEXT))
    measured = report.table(results(source)).splitlines()
    (shown,) = [table for table in tables(TEXT) if table[0] == measured[0]]
    assert len(shown) > 4
    assert [row for row in shown[2:] if row not in measured] == []
    assert report.machine(results(source)) in TEXT.replace("\n", " ")


def test_the_tables_of_whole_models_are_measured():
    for measured in tables(report.model_table(results("models")) + "\n"):
        assert measured in tables(TEXT), "run python bench/harness/report.py bench/results/models.json"
    assert results("models")["machine_info"]["cpu"] in TEXT


def test_the_table_of_other_tools_is_measured():
    kept, page = results("peers"), (BENCH.parent / "docs/how-it-works.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(BENCH / "peers/run.py"))["table"](kept["rows"]) in page
    assert kept["machine"] in page and kept["date"] in page
    versions = {f"{name} {version}" for row in kept["rows"] for name, version in row["versions"].items()}
    assert all(version in page for version in versions if not version.startswith(("wafer", "jaxlib")))
    times = {row["peer"]: row["cpu_seconds"] for row in kept["rows"] if (row["side"], row["tile"]) == (8, 32)}
    said = README.partition("**Beside other tools**")[2].partition("\n\n")[0]
    ours = times["elided"]
    multiples = {peer: f"{float(f'{times[peer] / ours:.2g}'):,g}" for peer in times.keys() - {"elided", "explicit"}}
    assert f"{ours * 1e3:.2f} ms" in said and {*multiples.values()} <= {*re.findall(r"[\d.,]*\d", said)}, multiples


def test_files_and_targets_on_the_page_exist():
    targets = re.findall(r"^([a-z-]+):", (BENCH.parent / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)", TEXT)) <= set(targets)
    paths = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert paths and [path for path in paths if not (BENCH / path).exists()] == []
    assert set(re.findall(r"`(bench_\w+\.py)`", TEXT)) == {path.name for path in (BENCH / "suites").glob("*.py")}
