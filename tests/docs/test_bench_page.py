"""The table of other tools is the measured one; files and targets of bench/README.md exist."""

import json
import re
import runpy
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
TEXT = (BENCH / "README.md").read_text(encoding="utf-8")
README = (BENCH.parent / "README.md").read_text(encoding="utf-8")


def results(name):
    return json.loads((BENCH / "results" / f"{name}.json").read_text())


def test_the_table_of_other_tools_is_measured():
    kept, page = results("peers"), (BENCH.parent / "docs/how-it-works.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(BENCH / "peers/run.py"))["table"](kept["rows"]) in page
    assert kept["machine"] in page and kept["date"] in page
    versions = {f"{name} {version}" for row in kept["rows"] for name, version in row["versions"].items()}
    assert all(version in page for version in versions if not version.startswith(("wafer", "jaxlib")))
    times = {row["peer"]: row["cpu_seconds"] for row in kept["rows"] if (row["side"], row["tile"]) == (8, 32)}
    said = README.partition("**Beside other tools**")[2].partition("\n## ")[0]
    ours = times["elided"]
    others = times.keys() - {"elided", "explicit", "recorded", "interpreted"}
    multiples = {peer: f"{float(f'{times[peer] / ours:.2g}'):,g}" for peer in others}
    assert f"{ours * 1e3:.2f} ms" in said and {*multiples.values()} <= {*re.findall(r"[\d.,]*\d", said)}, multiples


def test_files_and_targets_on_the_page_exist():
    targets = re.findall(r"^([a-z-]+):", (BENCH.parent / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)", TEXT)) <= set(targets)
    paths = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert paths and [path for path in paths if not (BENCH / path).exists()] == []
    assert set(re.findall(r"`(bench_\w+\.py)`", TEXT)) == {path.name for path in (BENCH / "suites").glob("*.py")}
