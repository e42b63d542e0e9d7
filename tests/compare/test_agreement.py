"""`compare` and `estimate` on one product: the steps that the table names add up to the whole difference."""

import pytest

from wafer_triton import estimate
from wafer_triton.cli import main as cli
from wafer_triton.compare.agreement import agreement
from wafer_triton.compare.algorithms import compare_gemm, compare_gemv
from wafer_triton.compare.product import Compared
from wafer_triton.device.mesh import as_mesh

pytestmark = pytest.mark.slow

GEMM, GEMV = ((60, 50), (50, 70)), ((1, 50), (50, 70))


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "int8"])
@pytest.mark.parametrize("mesh", [6, "6x9", 20])
@pytest.mark.parametrize("device", ["wse2", "wse3"])
def test_the_steps_make_up_the_difference_of_every_gemm(device, mesh, dtype) -> None:
    product = Compared("gemm", as_mesh(mesh, device), dtype, GEMM)
    rows = compare_gemm(mesh, 60, 50, 70, device=device, dtype=dtype, values=False)
    for algorithm, cycles in ((row.algorithm, row.cycles) for row in rows):
        own = agreement(product, algorithm)
        there = estimate.gemm(device=device, mesh=mesh, m=60, k=50, n=70, algorithm=algorithm, dtype=dtype)
        assert (own.compared, own.estimated) == (cycles, there.cycles)
        assert sum(step for _, step in own.steps) == pytest.approx(there.cycles - cycles, abs=1e-6)


@pytest.mark.parametrize("groups", [None, 3])
@pytest.mark.parametrize("mesh", [6, "6x9", 48])
def test_the_steps_make_up_the_difference_of_every_gemv(mesh, groups) -> None:
    product = Compared("gemv", as_mesh(mesh), "fp16", GEMV)
    for row in compare_gemv(mesh, 50, 70, values=False):
        own = agreement(product, row.algorithm, groups)
        given = {"groups": groups} if row.algorithm == "ktree" else {}
        there = estimate.gemv(mesh=mesh, k=50, n=70, algorithm=row.algorithm, **given)
        assert (own.compared, own.estimated) == (row.cycles, there.cycles)
        assert sum(step for _, step in own.steps) == pytest.approx(there.cycles - row.cycles, abs=1e-6)


def test_both_commands_print_the_same_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    for line in ("compare gemm --no-values", "estimate gemm"):
        assert cli.main([*line.split(), *["--mesh", "20", "--m", "60", "--k", "60", "--n", "60"]]) == 0
        (said,) = (text for text in capsys.readouterr().out.splitlines() if text.startswith("mesh: "))
        lines.append(said)
    assert lines[0] == lines[1]
    for text in ("by compare", "by estimate", "as the host skews the weights", "as a program starts and ends"):
        assert text in lines[0]
