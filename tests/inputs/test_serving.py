"""Mistakes in serving, by command and in Python: one line with fault, place and remedy."""

import pytest

from serving import Given as Times
from wafer_triton.cli.main import main
from wafer_triton.device import device
from wafer_triton.errors import WaferError
from wafer_triton.serve.load import Given, Load
from wafer_triton.serve.policies import Policy, Shared, organisation
from wafer_triton.serve.report import report, write_csv
from wafer_triton.serve.simulate import simulate
from wafer_triton.serve.sizes import priced
from wafer_triton.serve.traces import read_trace
from wafer_triton.serve.workload import (
    Request,
)

ONE = [Request(0, 0.0, 8, 4)]
LOAD = Load(4, 128, 64, 16)


def run():
    return simulate(ONE, Times(), Policy())


CALLS = {
    "times of another policy": (
        lambda: simulate(ONE, priced("shared", "smollm2-135m", "wse2", LOAD, Given("125", "125")), Policy()),
        "times are priced for policy 'shared', not for 'replace'; give priced('replace', ...)",
    ),
    "pairs": (lambda: simulate([(6, 4)], Times(), Policy()), "list is no list of Request; read_trace and poisson make"),
    "an organisation by name": (lambda: Policy("shared"), "organisation 'shared': give Split(), Replacing(), Shared()"),
    "an unknown option": (lambda: organisation("shared", turn=3), "has no option 'turn'; it has quantum, turns"),
    "a report's pool": (lambda: report(run(), 0, device("wse2")), "pool = 0 must be a whole number of at least 1"),
    "a batch beyond sense": (lambda: Load(10**9, 128, 64, 16), "batch = 1,000,000,000 is more than the 65,536 s"),
    "caches beyond SRAM": (
        lambda: priced("shared", "smollm2-135m", "wse2", LOAD, Given(decode_mesh=125, caches=10**5)),
        "caches = 100,000 of 128 tokens take 294,912,000,000 B, and all cores of wse2 have 36,430,",
    ),
    "weights beyond SRAM": (
        lambda: priced("shared", "qwen2-72b", "wse2", LOAD),
        "qwen2-72b does not fit wse2: its layers have 140,429,557,760 B of weights, and all cores together hold 36,6",
    ),
    "experts of a dense model": (
        lambda: priced("shared", "smollm2-135m", "wse2", LOAD, Given(experts="regions")),
        "smollm2-135m has no experts to place; leave experts out",
    ),
}


@pytest.mark.parametrize("call, said", CALLS.values(), ids=CALLS)
def test_a_call_of_serving_is_refused_with_its_argument(call, said):
    with pytest.raises(WaferError) as refused:
        call()
    assert said in str(refused.value)


def test_names_and_paths_are_taken_as_texts(tmp_path):
    write_csv(run(), str(tmp_path / "run.csv"))
    assert (tmp_path / "run.csv").read_text().count("\n") == 2
    times = priced("shared", "smollm2-135m", "wse2", LOAD, Given("125", "125x125"))
    assert str(times.block.mesh) == "125x125" and simulate(ONE, times, Policy(Shared())).served[0].end


def test_a_json_array_is_no_trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('[\n{"arrival": 0}\n]')
    with pytest.raises(WaferError, match="is a JSON array; write its objects one a line, without brackets"):
        read_trace(str(path))


@pytest.mark.slow
def test_a_refusal_names_the_mesh_that_was_nearest_to_a_fit():
    with pytest.raises(WaferError) as refused:
        priced("shared", "smollm2-135m", "wse2,rows=76,cols=76", Load(1, 512, 64, 16))
    assert "on one mesh of wse2,rows=76,cols=76; of the nearest: smollm2-135m" in str(refused.value)
    assert "does not fit wse2,rows=76,cols=76: its " in str(refused.value) and "find room" in str(refused.value)


SERVE = ["serve", "--model", "smollm2-135m", "--decode-mesh", "125", "--rate", "5", "--input", "64", "--output", "16"]


def test_a_mesh_written_twice_in_two_ways_is_one_mesh(capsys):
    assert main([*SERVE, "--prefill-mesh", "125x125", "--count", "5"]) == 0
    assert "prefill on 3 x 125x125 cores, decode on 3 x 125x125" in capsys.readouterr().out
