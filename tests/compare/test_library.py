"""`compare --time`: the rows of a product beside torch.matmul, and refusals. Times themselves have no bound here."""

import pytest

from commands import answer
from wafer_triton.compare.library import MATMUL, bench_gemm, bench_gemv
from wafer_triton.errors import DtypeError, MeshError, ShapeError

pytestmark = pytest.mark.slow

QUICK = {"seconds": 0.01, "emulate_on": "cpu"}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_row_computes_the_product(dtype: str) -> None:
    for rows in (
        bench_gemm(4, 20, 24, 28, dtype=dtype, **QUICK),
        bench_gemm("2x4", 20, 24, 28, algorithm="cannon", dtype=dtype, **QUICK),
        bench_gemv(4, 24, 28, dtype=dtype, **QUICK),
    ):
        assert [row.name for row in rows] == ["explicit", "elided", MATMUL]
        assert all(row.error < (1e-5 if dtype == "fp32" else 1e-2) for row in rows)
        assert all(0 < row.least <= row.seconds and row.rounds >= 3 for row in rows)
        assert [row.ratio for row in rows] == pytest.approx([row.seconds / rows[-1].seconds for row in rows])


def test_explicit_and_elided_have_the_same_bits_after_many_runs() -> None:
    """Check that a result is of operands placed anew, as explicit exchange has moved them."""
    explicit, elided, _ = bench_gemm(4, 64, 64, 64, **QUICK)
    assert explicit.error == elided.error


def test_wrong_options_and_products_that_are_too_large_are_refused() -> None:
    with pytest.raises(MeshError, match="gemm algorithm 'strassen': choose one of mesh"):
        bench_gemm(4, 16, 16, 16, **QUICK, algorithm="strassen")
    with pytest.raises(ShapeError, match="numbers are more than the 268,435,456 that are computed here"):
        bench_gemm(700, 100_000, 100_000, 100_000, **QUICK)
    with pytest.raises(DtypeError, match="dtype fp64 is not supported"):
        bench_gemm(4, 16, 16, 16, **QUICK, dtype="fp64")
    with pytest.raises(ShapeError, match="is timed for more than 0 s and at most 600 s, not for 0"):
        bench_gemm(4, 16, 16, 16, **QUICK | {"seconds": 0})


@pytest.mark.parametrize("line", ["gemm --m 16 --k 16 --n 16 --mesh 4", "gemv --k 16 --n 16 --mesh 4"])
def test_the_command_prints_times_of_this_machine_alone(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, err = answer(f"compare {line} --time 0.01 --emulate-on cpu", capsys)
    assert [row["name"] for row in found["rows"]] == ["explicit", "elided", MATMUL]
    table, notes = err.split("on the CPU by torch")
    assert "emulated on this machine" in table and "cycles" not in table and "predicted" not in table
    assert "no time of a wafer" in notes
