"""bench/report: ratios, figures with their bounds, plots; and that the suites have a case for every figure."""

import bench_decode
import bench_gemm
import bench_gemv
import cases
import report


def measured(row, median, group="one", **facts):
    known = {"what": "MeshGEMM", "mesh": "16x16", "tile": "64x64", "dtype": "bf16", "exchange": row, **facts}
    return {"group": group, "stats": {"median": median}, "extra_info": known}


GPU = {"gpu": "Some GPU", "driver": "1.2", "cuda": "13.0", "torch": "2.11", "triton": "3.6"}
RESULTS = {
    "machine_info": GPU,
    "benchmarks": [
        measured("explicit", 0.002, fraction_of_exchange_limit=0.5, fraction_of_bandwidth=0.55),
        measured("emulation", 0.008),
        measured("blas", 0.001, what="plain product"),
        measured("explicit", 0.05, "two", what="decode layer, llama3-8b", mesh="660x660", tile=""),
    ],
}


def test_the_table_has_ratios_within_a_group():
    lines = report.table(RESULTS).splitlines()
    assert lines[2] == "| MeshGEMM | 16x16 | 64x64 | bf16 | explicit |  | 2 | 500.0 | 4x | 0.5x | 55% |"
    assert lines[3].endswith("| 8 | 125.0 |  | 0.125x |  |") and lines[5].endswith("| 50 | 20.0 |  |  |  |")
    assert lines[-1] == "Emulation time on Some GPU, driver 1.2, CUDA 13.0, torch 2.11, triton 3.6."


def test_figures_are_met_not_met_or_not_measured():
    verdicts = {(one["case"], one["number"]): (one["value"], one["verdict"]) for one in report.figures(RESULTS)}
    gemm = "explicit MeshGEMM, 16 x 16 cores, 64 x 64 tiles, bf16"
    assert verdicts[gemm, "times the PyTorch emulation"] == (4, "met")
    assert verdicts[gemm, "of the exchange limit"] == (0.5, "not met")
    layer = "one Llama-3-8B decode layer, explicit, 660 x 660 cores"
    assert verdicts[layer, "ms"] == (50, "met")
    assert len(verdicts) == 19 and [one for _, one in verdicts.values()].count("not measured") == 16
    slow = {"machine_info": GPU, "benchmarks": [{**RESULTS["benchmarks"][3], "stats": {"median": 0.1}}]}
    assert next(one for one in report.figures(slow) if one["case"] == layer)["verdict"] == "not met"
    assert f"| {layer} | ms | 100 | under 100 | not met |" in report.figure_table(report.figures(slow))


def test_every_figure_is_among_the_cases_of_a_gpu():
    """Each goal would find its row: the facts that it asks for are those of a shape that the suites have."""
    facts = []
    for module in (bench_gemm, bench_gemv):
        for shape in module.SHAPES["cuda"]:
            known = {
                "what": cases.PAPER[shape.op], "mesh": f"{shape.side}x{shape.side}", "dtype": shape.dtype,
                "tile": "x".join(map(str, shape.tile)), "shape": [shape.m, shape.k, shape.n],
            }  # fmt: skip
            facts += [known | {"exchange": row} for row in shape.rows]
    for step in bench_decode.SHAPES["cuda"]:
        known = {"what": step.name, "mesh": f"{step.side}x{step.side}"}
        facts += [known | {"exchange": row} for row in step.rows]
    for goal in report.GOALS:
        assert any(all(one.get(name) == value for name, value in goal.match.items()) for one in facts), goal.case


def test_plots_are_drawn(tmp_path):
    some = [
        measured(row, seconds * side, f"on {side} with {tile}", mesh=f"{side}x{side}", tile=f"{tile}x{tile}")
        for side, tile in ((8, 32), (16, 32), (16, 64))
        for row, seconds in (("explicit", 0.001), ("emulation", 0.004))
    ]
    written = report.plots({"machine_info": GPU, "benchmarks": some}, tmp_path, "gpu")
    assert [path.name for path in written] == ["gpu-meshgemm.png", "gpu-meshgemm.svg"]
    assert all(path.stat().st_size > 5000 for path in written)
