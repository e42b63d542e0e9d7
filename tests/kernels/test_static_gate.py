"""The benchmarked kernels, compiled for sm_90 without a GPU, stay within the committed table."""

import csv
import io
from pathlib import Path

import pytest
import triton

from sass import loads_in_flight

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.slow
def test_benchmarked_kernels_stay_within_the_committed_bounds(compiling):
    script = BENCH / "harness" / "static_gate.py"
    printed = compiling(script)
    table = BENCH / "results" / f"sm_90-triton-{triton.__version__}.csv"
    assert table.exists(), f"no bounds for this Triton: python {script} --write"
    bounds = {row["case"]: row for row in csv.DictReader(table.open())}
    found = {row["case"]: row for row in csv.DictReader(io.StringIO(printed))}
    assert found.keys() == bounds.keys(), "run python bench/harness/static_gate.py --write"
    assert [fault for case in found for fault in faults(found[case], bounds[case])] == []
    assert {row["spills"] for row in bounds.values()} == {"0"}
    groups = [row for case, row in found.items() if "by warp groups" in case]
    assert len(groups) == 3 and all(row["wgmma"] == row["tma"] == row["specialised"] == "1" for row in groups)
    assert {row["warps"] for row in groups} == {"12"}, "two groups of 4, and one that fetches, which takes 4 as well"
    assert all(int(row["shared_bytes"]) <= 227 * 1024 for row in groups), "the limit of a program on sm_90"
    vectors = [row for case, row in found.items() if case.startswith("mesh_gemv [1,") and "660" not in case]
    assert len(vectors) == 2 and all(int(row["warps"]) <= 2 for row in vectors), "small programs"
    assert all(int(row["registers"]) * int(row["warps"]) * 32 * 10 <= 2**16 for row in vectors), (
        "ten on a multiprocessor"
    )
    assert all(int(row["loads_in_flight"]) >= 3 for row in vectors), "16 bytes each, in each of many programs"


def faults(found: dict[str, str], bound: dict[str, str]) -> list[str]:
    """Return the lines of cases that are worse than the bound."""
    worse = [
        name
        for name in ("registers", "spills", "shared_bytes", "warps", "wgmma_columns")
        if int(found[name]) > int(bound[name])
    ]
    least = ("wgmma", "tma", "specialised", "widest_access_bytes", "loads_in_flight")
    worse += [name for name in least if int(found[name]) < int(bound[name])]
    return [f"{found['case']}: {name} {found[name]}, bound {bound[name]}" for name in worse]


def test_loads_in_flight_are_those_before_the_first_use():
    load = "        /*{:04x}*/    @P0 LDG.E.128.STRONG.GPU R{}, desc[UR4][R2.64] ;    /* 0x00 */".format
    use = "        /*{:04x}*/                   FADD R{}, R{}, R40 ;    /* 0x00 */".format
    lines = [load(0, 4), load(16, 8), use(32, 20, 9), load(48, 12), load(64, 16), load(80, 24), use(96, 28, 30)]
    assert loads_in_flight("\n".join(lines)) == 3, "the first two are waited for together"
    assert loads_in_flight("\n".join(lines[:3])) == 2 and loads_in_flight(lines[2]) == 0
    overwritten = [load(0, 4), "        /*0010*/    MOV R5, R60 ;", load(32, 8)]
    assert loads_in_flight("\n".join(overwritten)) == 1
