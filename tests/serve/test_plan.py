"""`plan` returns simulated organisations by goodput, and raises ConfigError if none keeps the SLO."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

import tiny
from wafer_triton.cli.main import main
from wafer_triton.device import device
from wafer_triton.errors import ConfigError
from wafer_triton.place.regions import FullError
from wafer_triton.serve.load import Load
from wafer_triton.serve.plan import BATCHES, plan
from wafer_triton.serve.policies import Policy, Replacing
from wafer_triton.serve.report import Slo, report
from wafer_triton.serve.simulate import simulate
from wafer_triton.serve.sizes import priced, ranked
from wafer_triton.serve.workload import both, fixed, poisson
from wafer_triton.shape.read import shape_of

SMALL = replace(device("wse2"), name="small", rows=60, cols=120)
SIZES = {"input": 150, "output": 40, "rate": 20.0, "count": 20}


@pytest.fixture(scope="module")
def shape():
    return replace(shape_of("smollm2-135m"), num_hidden_layers=2, vocab_size=1024)


def test_the_best_way_has_the_most_goodput_and_every_organisation_is_tried(shape):
    reports = []
    ways = plan(shape, SMALL, slo=Slo(0.1, 0.01), best=10**6, progress=lambda *values: reports.append(values), **SIZES)
    assert {way.policy for way in ways} == {"replace", "shared", "split"}
    assert all(way.goodput >= other.goodput for way, other in pairwise(ways))
    assert reports[-1] == ("placements", 7, 7) and ways[0].good > 0
    assert plan(shape, SMALL, slo=Slo(0.1, 0.01), best=2, **SIZES) == ways[:2]


def test_a_shared_mesh_is_chosen_by_simulation_among_several(shape):
    ways = [way for way in plan(shape, SMALL, slo=Slo(), best=10**6, **SIZES) if way.policy == "shared"]
    first, *others = [times.block.mesh for times in ranked("shared", shape, SMALL, Load(64, 190, 150, 150, 40))][:3]
    assert {way.decode_mesh for way in ways} == {str(mesh) for mesh in (first, *others)} and others
    best = min((way for way in ways if way.decode_mesh == str(first)), key=lambda way: (-way.goodput, way.ttft_p99))
    assert {(way.quantum, way.turns) for way in ways if way.decode_mesh != str(first)} == {(best.quantum, best.turns)}


def test_each_way_is_listed_once_with_its_least_batch(shape):
    ways = plan(shape, SMALL, slo=Slo(), best=10**6, **SIZES)
    alike = [replace(way, batch=0, quantum=None, turns=None) for way in ways if way.policy != "shared"]
    assert len(set(alike)) == len(alike)
    times = priced("replace", shape, SMALL, Load(64, 190, 150, 150, 40))
    requests = poisson(20.0, 20, both(fixed(150), fixed(40)))
    found = {}
    for times.batch in BATCHES:
        run = simulate(requests, times, Policy(Replacing()))
        found.setdefault(report(run, times.pool, SMALL, "fp16").goodput, times.batch)
    assert {(way.goodput, way.batch) for way in ways if way.policy == "replace"} == set(found.items())


def test_an_slo_that_no_organisation_keeps_is_refused_with_the_least_latencies(shape):
    with pytest.raises(
        ConfigError, match=r"no way keeps the SLO at rate 20: the least 99th percentiles are .* s of TTFT"
    ):
        plan(shape, SMALL, slo=Slo(1e-9, 1e-9), **SIZES)


def test_a_device_too_small_for_every_organisation_is_refused(shape):
    with pytest.raises(FullError, match="hold 3,145,728 B; take a smaller model, or a device of more cores"):
        plan(shape, replace(SMALL, rows=8, cols=8), slo=Slo(), **SIZES)


def test_a_device_that_holds_the_weights_but_no_organisation_is_refused(shape):
    few, reports = replace(SMALL, rows=20, cols=20), []
    with pytest.raises(
        FullError, match="smollm2-135m, decode and prefill of 150 tokens does not fit small: .* 800 cores"
    ):
        plan(shape, few, slo=Slo(), progress=lambda *values: reports.append(values), **SIZES)
    assert reports[-1] == ("placements", 7, 7)


def test_the_command_reports_its_placements_and_prints_every_way(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(tiny.CONFIG))
    asked = ["plan", "--model", str(tmp_path), "--device", "wse2,rows=6,cols=12", "--input", "4", "--output", "1"]
    assert main([*asked, "--slo", "ttft=1s", "--rate", "5", "--best", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out.splitlines()[-1])
    assert len(found["plans"]) == 2 and found["best"] == found["plans"][0] and found["best"]["good"] == 1
    assert "placements: 7 of 7" in err and "5 requests a second, ttft=1s" in err
