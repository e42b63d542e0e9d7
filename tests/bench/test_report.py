"""bench/report: ratios, figures with their bounds, plots, and a case in the suites for every figure."""

import bench_decode
import bench_exchange
import bench_gemm
import bench_gemv
import bench_generate
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
        measured("explicit", 0.001, "two", what="decode layer, llama3-8b", mesh="660x660", tile=""),
        measured("public call, explicit", 0.0022, what="mesh_gemm"),
    ],
}


def test_the_table_has_ratios_within_a_group():
    lines = report.table(RESULTS).splitlines()
    assert lines[2] == "| MeshGEMM | 16x16 | 64x64 | bf16 | explicit |  | 2 | 500.0 | 4x | 0.5x | 55% |"
    assert lines[3].endswith("| 8 | 125.0 |  | 0.125x |  |") and lines[5].endswith("| 1 | 1,000.0 |  |  |  |")
    assert lines[-1] == "Emulation time on Some GPU, driver 1.2, CUDA 13.0, torch 2.11, triton 3.6."


def test_figures_are_met_not_met_or_not_measured():
    verdicts = {(one["case"], one["number"]): (one["value"], one["verdict"]) for one in report.figures(RESULTS)}
    gemm = "explicit MeshGEMM, 16 x 16 cores, 64 x 64 tiles, bf16"
    assert verdicts[gemm, "times the PyTorch emulation"] == (4, "met")
    assert verdicts[gemm, "of the exchange limit"] == (0.5, "not met")
    layer = "one Llama-3-8B decode layer, explicit, 660 x 660 cores"
    assert verdicts[layer, "ms"] == (1, "met")
    value, verdict = verdicts[
        "a public call of mesh_gemm, explicit, 16 x 16 cores, 64 x 64 tiles", "ms more than its kernels"
    ]
    assert round(value, 6) == 0.2 and verdict == "met", "2.2 ms, of which the kernels take 2"
    assert (
        len(verdicts) == len(report.GOALS)
        and [one for _, one in verdicts.values()].count("not measured") == len(report.GOALS) - 4
    )
    slow = {"machine_info": GPU, "benchmarks": [{**RESULTS["benchmarks"][3], "stats": {"median": 0.0015}}]}
    assert next(one for one in report.figures(slow) if one["case"] == layer)["verdict"] == "not met"
    assert f"| {layer} | ms | 1.5 | under 1.5 | not met |" in report.figure_table(report.figures(slow))


def test_every_figure_is_among_the_cases_of_a_gpu():
    """Check that each goal finds its row: the suites have a shape with the facts that the goal asks for."""
    facts = []
    for module in (bench_gemm, bench_gemv):
        for shape in module.SHAPES["cuda"]:
            known = {
                "mesh": f"{shape.side}x{shape.side}", "dtype": shape.dtype,
                "tile": "x".join(map(str, shape.tile)), "shape": [shape.m, shape.k, shape.n],
            }  # fmt: skip
            what = {row: f"mesh_{shape.op}" if row in cases.CALLS else cases.PAPER[shape.op] for row in shape.rows}
            facts += [known | {"exchange": row, "what": what[row]} for row in shape.rows]
    for run in (*bench_generate.SHAPES["cuda"], *bench_exchange.SHAPES["cuda"]):
        what = run.name if isinstance(run, bench_generate.Run) else "8 ring shifts"
        facts += [{"what": what, "mesh": f"{run.side}x{run.side}", "exchange": row} for row in run.rows]
    for step in bench_decode.SHAPES["cuda"]:
        known = {"what": step.name, "mesh": f"{step.side}x{step.side}"}
        facts += [known | {"exchange": row} for row in step.rows]
    for goal in report.GOALS:
        assert any(all(one.get(name) == value for name, value in goal.match.items()) for one in facts), goal.case


def test_every_row_of_the_suites_has_its_own_colour():
    shapes = [
        shape
        for module in (bench_gemm, bench_gemv, bench_exchange)
        for many in module.SHAPES.values()
        for shape in many
    ]
    assert {row for shape in shapes for row in shape.rows} <= report.LOOKS.keys()
    assert len({colour for colour, _ in report.LOOKS.values()}) == len(report.LOOKS)


def test_a_row_without_ratios_keeps_its_colour_and_two_points_are_not_joined():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    points = [
        {"row": row, "side": side, "ratio": None if row == "copy" else 2.0 * side}
        for side in (8, 16)
        for row in ("copy", "blas")
    ]
    report._draw(axes, points, "side", "ratio")
    (line,) = axes.get_lines()
    assert (line.get_label(), line.get_color(), line.get_linestyle()) == ("blas", report.LOOKS["blas"][0], "None")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "16"]


def test_plots_are_drawn(tmp_path):
    some = [
        measured(row, seconds * side, f"on {side} with {tile}", mesh=f"{side}x{side}", tile=f"{tile}x{tile}")
        for side, tile in ((8, 32), (16, 32), (16, 64))
        for row, seconds in (("explicit", 0.001), ("emulation", 0.004))
    ]
    written = report.plots({"machine_info": GPU, "benchmarks": some}, tmp_path, "gpu")
    assert [path.name for path in written] == ["gpu-meshgemm.png", "gpu-meshgemm.svg"]
    assert all(path.stat().st_size > 5000 for path in written)
