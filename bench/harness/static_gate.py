"""Compiled code of the benchmarked kernels for sm_90, without a GPU: bench/harness/static_gate.py [--write]

The table in results/ of this version of Triton is the bound. A kernel may not come to need more registers, stack,
shared memory or columns of matrix products; masked products are wider than separate sums. It may not lose its matrix
instructions, its copies by tensor (TMA) or its warps with registers of their own. Nor may it lose loads in flight, or
width of its accesses. Kernels with values on the stack are named in tests/kernels/test_static_gate.py.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))  # Python leaves it out under PYTHONSAFEPATH

import torch
import triton

from ahead import recorder
from planned import decode_layer, without_gpu
from wafer_triton.emulate.parts import Launch
from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.kernels import Copies, Operand, find
from wafer_triton.kernels import elided as elided_
from wafer_triton.kernels.compute_shift import products
from wafer_triton.kernels.elided import Labels, elided
from wafer_triton.kernels.exchange import exchange
from wafer_triton.kernels.fused import Grid
from wafer_triton.kernels.tree import TreeTables, reduce_tree
from wafer_triton.kernels.waiting import Alarm

TABLE = Path(__file__).parents[1] / "results" / f"sm_90-triton-{triton.__version__}.csv"
COLUMNS = (
    "case", "registers", "spills", "shared_bytes", "wgmma", "wgmma_columns", "tma", "specialised",
    "widest_access_bytes", "loads_in_flight", "warps",
)  # fmt: skip
BF16 = torch.bfloat16

ELIDED = ((4096, 64), (4096, 32), (8192, 32))  # size, P: tiles of 64, 128 and 256
GEMV = (
    ("[1, 4096] x [4096, 14336], P = 64", 1, 64, 224), ("[1, 16384] x [16384, 16384], P = 128", 1, 128, 128),
    ("[16, 4096] x [4096, 14336], P = 64", 16, 64, 224), ("[1, 4096] x [4096, 14336], P = 660", 1, 7, 22),
)  # fmt: skip


def tile(numel: int, dtype: torch.dtype = BF16) -> Operand:
    """Return an operand of four cores."""
    return Operand(torch.empty(4 * numel, dtype=dtype), 0, numel)


def rows() -> list[dict[str, object]]:
    """Return one row a case, of `COLUMNS`."""
    compiled = recorder("cuda", "90", "32", machine_code=True)
    alarm = Alarm(torch.zeros(1, dtype=torch.int64), 1)
    cores = torch.arange(4, dtype=torch.int32)
    table: list[dict[str, object]] = []

    def add(case: str, *call: object, **params: object) -> None:
        seen = compiled(*call, **params)
        facts = (
            case, seen["registers"], seen["spills"], seen["shared"],
            int("wgmma.mma_async" in seen["matrix_instructions"]), seen["wgmma_columns"], int(seen["tma"]),
            int(seen["specialised"]), seen["widest_access_bytes"], seen["loads_in_flight"], seen["num_warps"],
        )  # fmt: skip
        table.append(dict(zip(COLUMNS, facts, strict=True)))

    n = 64
    c, out = tile(n * n, torch.float32), tile(n * n)
    for title, steps in (("", 1), (", in steps", 9)):
        moves = [Copies((tile(n * n), tile(n * n)), *[cores] * 3, steps, n, n, n, 1) for _ in "ab"]
        add(f"exchange, 64 x 64 tiles{title}", exchange, moves, [n * n] * 2)
    slots = tile(9 * n * n), tile(9 * n * n)
    add("products of 8 rounds, 64 x 64 tiles", products, c, out, *slots, cores, rounds=8, m=n, k=n, n=n, add=True)
    for size, p in ELIDED:
        n, side = size // p, torch.arange(p, dtype=torch.int32)
        c, out, a, b = tile(n * n, torch.float32), tile(n * n), tile(n * n), tile(n * n)
        product = c, out, a, b, side, side, *[Labels(side, side, 0)] * 2
        add(f"elided {size}^3, P = {p}, by warp groups", elided, *product, m=n, k=n, n=n)
        with mock.patch.object(elided_, "on_hopper", lambda: False):
            add(f"elided {size}^3, P = {p}", elided, *product, m=n, k=n, n=n)
    for shape, m, k, n in GEMV:
        y, box = tile(m * n, torch.float32), tile(2 * m * n, torch.int32)
        product = find("gemm").fused((y,), (tile(m * k), tile(k * n)), m=m, k=k, n=n)
        tree = TreeTables(y, box, *[cores] * 4, 2, m * n)
        add(f"mesh_gemv {shape}, explicit", reduce_tree, tree, [product], alarm, grid=Grid(4, 2) if k == 7 else Grid())
    without_gpu()
    for way in EXCHANGES:
        for title, program in decode_layer(way).items():
            for step in program.calls:
                assert isinstance(step, Launch)
                if "gemm" in step.what:  # the others take little of a step's time
                    add(f"Llama-3-8B, P = 64, {way}: {title}: {step.what}", step)
    return table


if __name__ == "__main__":
    cases = rows()
    with TABLE.open("w") if sys.argv[1:] == ["--write"] else open(sys.stdout.fileno(), "w", closefd=False) as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(cases)
