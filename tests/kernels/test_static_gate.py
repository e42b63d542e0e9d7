"""The benchmarked kernels, compiled for sm_90 without a GPU, stay within the committed table."""

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.slow
def test_benchmarked_kernels_stay_within_the_committed_bounds():
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = [sys.executable, "-P", str(BENCH / "harness" / "static_gate.py")]
    child = subprocess.run(script, env=env, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    bounds = {row["case"]: row for row in csv.DictReader((BENCH / "results" / "sm_90.csv").open())}
    found = {row["case"]: row for row in csv.DictReader(io.StringIO(child.stdout))}
    assert found.keys() == bounds.keys(), "run python bench/harness/static_gate.py --write"
    assert [fault for case in found for fault in faults(found[case], bounds[case])] == []


def faults(found: dict[str, str], bound: dict[str, str]) -> list[str]:
    """What is worse than the bound."""
    worse = [
        name
        for name in ("registers", "spills", "shared_bytes", "warps")
        if int(found[name]) > int(bound[name]) or (name == "spills" and int(found[name]))
    ]
    worse += [name for name in ("wgmma", "widest_access_bytes") if int(found[name]) < int(bound[name])]
    return [f"{found['case']}: {name} {found[name]}, bound {bound[name]}" for name in worse]


def test_each_figure_of_the_gate_can_fail():
    bound = dict.fromkeys(("registers", "spills", "shared_bytes", "warps", "wgmma", "widest_access_bytes"), "4")
    sound = bound | {"case": "k", "spills": "0"}
    assert faults(sound, bound) == []
    for name, worse in (("registers", "5"), ("spills", "8"), ("shared_bytes", "9"), ("wgmma", "0"), ("warps", "8")):
        assert faults(sound | {name: worse}, bound) == [f"k: {name} {worse}, bound 4"]
    assert faults(sound | {"widest_access_bytes": "2"}, bound) == ["k: widest_access_bytes 2, bound 4"]
