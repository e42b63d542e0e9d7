"""docs/how-it-works.md: figures of a GPU equal the committed results, and the kernel shown is the one file's."""

import re
from pathlib import Path

import report

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
FILE = "nvidia-h100-80gb-hbm3-32301bd3.jsonl"
RESULTS = report.load(Path(report.__file__).parents[1] / "results" / FILE)
ROWS = ("explicit", "elided", "blas", "emulation")


def microseconds(case: str, row: str) -> str:
    """Return a measured row as the page writes it, "" if there is none."""
    group = [one for one in RESULTS["benchmarks"] if one["group"] == f"{case}, bf16"]
    found = report._first(group, row) or (row == "blas" and report._first(group, "plain PyTorch"))
    return report._us(found or None)


def test_the_machine_and_the_commit_are_named():
    facts = RESULTS["machine_info"]
    assert (facts["sms"], facts["l2_bytes"]) == (132, 50 * 2**20)
    assert report.machine(RESULTS).split(", ", 1)[1] in TEXT and f"at commit {facts['commit']}" in TEXT and FILE in TEXT


def test_the_figures_of_a_gpu_are_measured():
    rows = re.findall(r"^\| (gem[mv] \[.*|decode .* cores) \| (.*) \| (.*) \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 7
    for case, *figures in rows:
        assert [one.strip() for one in figures] == [microseconds(case, row) for row in ROWS]
    assert f"all {len(RESULTS['benchmarks'])} rows" in TEXT and not RESULTS["failed"]


def test_the_kernel_shown_is_the_one_file_s():
    one_file = (DOCS / "examples" / "one_file.py").read_text(encoding="utf-8")
    (kernel,) = re.findall(r"^```py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert kernel.startswith("@triton.jit\ndef one_round(") and kernel in one_file
    assert f"one Triton file of {len(one_file.splitlines())} lines" in TEXT
