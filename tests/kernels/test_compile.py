"""Every kernel compiled ahead of time for four GPUs, none of which need be present: no spills, bounded shared memory.

Run as a script, `python test_compile.py cuda 90 32`, it lets the launchers launch, compiles for that target every
kernel that they would launch, and prints the compiler's statistics. The tests read that: the compiler has a process
to itself, because a process that interprets kernels cannot compile them.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

TARGETS = {
    "sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "sm_100": ("cuda", 100, 32), "gfx942": ("hip", "gfx942", 64)
}  # fmt: skip
MATRIX = {"sm_80": "mma.sync", "sm_90": "wgmma.mma_async", "sm_100": "mma.cta_group", "gfx942": "v_mfma"}
# bytes that ptxas keeps on the stack, stored once and outside of the loop: with 56 registers nine programs share an SM
ON_STACK = {("sm_100", "gemm_t 36x96x36-bfloat16"): 8, ("sm_100", "gemm_tn 36x96x36-bfloat16"): 16}
BARRIERS = 16  # bytes of shared memory beside blocks, for products that run on their own


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", [pytest.param(name, marks=pytest.mark.large if name == "sm_100" else ()) for name in TARGETS]
)
def test_every_kernel_compiles_well(target, compiling):
    from wafer_triton.kernels import KERNELS

    built = json.loads(compiling(__file__, *TARGETS[target]))

    between_cores = {"exchange", "products", "elided", "tree", "mesh_gemv", "fold", "chains"}
    assert {re.match(r"\w+", case)[0] for case in built} >= {*KERNELS, *between_cores}
    assert [fault for case, seen in built.items() for fault in faults(target, case, seen)] == []


def faults(target: str, case: str, seen: dict) -> Iterator[str]:
    """Yield the faults of one compiled kernel."""
    if seen["spills"] > ON_STACK.get((target, case), 0):
        yield f"{case}: {seen['spills']} B of registers spill"
    if seen["shared"] > seen["shared_bound"] + BARRIERS * (target == "sm_100"):
        yield f"{case}: {seen['shared']} B of shared memory, bound {seen['shared_bound']} B"
    if seen["buffers"] is not None and seen["buffers"] <= max(seen["pendings"], seen["iterations_ahead"]):
        yield f"{case}: {seen['buffers']} buffers, of which {seen['pendings']} products still read: a race"
    # An SM has 64 Ki registers, a CU 128 Ki: with 16-bit operands at least three programs share them.
    file = 128 * 1024 if target == "gfx942" else 64 * 1024
    used = seen["registers"] * seen["num_warps"] * TARGETS[target][2]
    if "float32" not in case and 3 * used > file:
        yield f"{case}: {used} registers, three such programs do not fit in {file}"
    if case.endswith(" 64x64x64-bfloat16") and MATRIX[target] not in seen["matrix_instructions"]:
        yield f"{case}: no {MATRIX[target]}, only {seen['matrix_instructions']!r}"
    if "squares" in case and seen["free_products"]:
        yield f"{case}: {seen['free_products']} squares that a sum may take in or not: other warps, other bits"
    if case.startswith("exchange 4096") and target != "gfx942" and seen["widest_access_bytes"] != 16:
        yield f"{case}: at most {seen['widest_access_bytes']} B per access"


def compile_all(compiled, target: str) -> dict[str, dict]:
    """Compile the kernels of all launchers on typical tiles."""
    import torch

    from local_cases import EXACT, ROUNDED, Case, draw
    from wafer_triton.algorithms.reduce import all_reduce
    from wafer_triton.device.mesh import Mesh
    from wafer_triton.emulate.fuse import as_fold
    from wafer_triton.emulate.segments import segments
    from wafer_triton.kernels import Copies, Operand, find
    from wafer_triton.kernels import elided as elided_
    from wafer_triton.kernels.compute_shift import products
    from wafer_triton.kernels.elided import Labels, elided
    from wafer_triton.kernels.exchange import exchange
    from wafer_triton.kernels.fused import Grid, launch
    from wafer_triton.kernels.gemm import chains, in_turn
    from wafer_triton.kernels.tree import Receivers, TreeTables, fold, reduce_tree
    from wafer_triton.kernels.waiting import Alarm
    from wafer_triton.schedule.builder import Builder

    figures, largest = {}, {case.op: case for case in sorted([*EXACT, *ROUNDED], key=lambda case: max(case.ins))}
    sizes = {"m": 8, "k": 8, "n": 36, "per_token": 12, "regions": 16, "held": 5, "capacity": 4, "first": 4}
    largest["combine"] = Case("combine", (8 * 36,), (16 * 4 * 36, 64, 64, 96), sizes)  # 9 rows of 1030 numbers spill
    cores, alarm = torch.arange(4, dtype=torch.int32), Alarm(torch.zeros(1, dtype=torch.int64), 1)

    def tile(numel: int, dtype: torch.dtype) -> Operand:
        return Operand(torch.empty(4 * numel, dtype=dtype), 0, numel)

    def reduced(acc: Operand, size: int, *ops, op: str = "add", grid=None) -> tuple:
        mail = tile(2 * size, torch.int32 if acc.tensor.dtype.itemsize == 4 else torch.int16)
        tree = TreeTables(acc, mail, *[cores] * 4, 2, size, op)
        return tree, ops, alarm, Receivers(acc, cores, cores, 1), (), grid or Grid()

    def tree_of(side: int):
        b = Builder(Mesh(1, side), "sum")
        b.buffer("x", (1,), "fp32", "output")
        all_reduce(b, "x", "x")
        return as_fold(segments(b.build())[0], 1)

    def record(case: str, bound: int, call, *args, **params) -> None:
        figures[case] = compiled(call, *args, **params) | {"shared_bound": bound}

    blocks = 32 * 1024  # two stages of 64 x 64 blocks of A and B in 16 bits; fp32 blocks are less deep.
    scratch = 4 * 1024  # reductions across warps.
    # The compiler takes a quarter of a second for each, so that only sm_90 has every dtype, and bf16 every shape. fp16
    # compiles as bf16 does, but for conversions and for products that round every step.
    cube = {"m": 64, "k": 64, "n": 64}
    for name, given in (("float32", torch.float32), ("float16", torch.float16)):
        ins, acc = (tile(4096, given), tile(4096, given)), (tile(4096, torch.float32),)
        record(
            f"gemm 64x64x64-{name}-fp16acc", scratch, find("gemm"), acc, ins, cores, **cube, add=True, accumulate="fp16"
        )
    record(
        "gemm 64x64x64-float32-float16", blocks, find("gemm"), acc, (tile(4096, torch.float32), ins[1]), cores, **cube
    )

    for dtype in (torch.float32, torch.bfloat16, torch.float16) if target == "90" else (torch.bfloat16,):
        name = str(dtype).removeprefix("torch.")
        covered = dtype != torch.bfloat16
        for numel in (4096,) if covered else (4096, 35):
            ends = tile(numel, dtype), tile(numel, dtype)
            one, many = (Copies(ends, *[cores] * 3, steps, 64, 64, 64, 1) for steps in (1, 9))
            record(f"exchange {numel}-{name}", 0, exchange, (one,), (numel,))
            record(f"exchange {numel}-{name}, in steps", 0, exchange, (many, many), (numel, numel))

        typical = ((64, 64, 64), (36, 96, 36), (1, 36, 96))
        whole = dtype == torch.bfloat16 and target == "90"
        shapes = (*typical, (33, 70, 65)) if whole else typical[:1] if covered else typical[:2]
        for m, k, n in shapes:
            c, a, b = tile(m * n, torch.float32), tile(m * k, dtype), tile(k * n, dtype)
            shape = {"m": m, "k": k, "n": n}
            for call, add in (("gemm", False), ("gemm_t", True), ("gemm_tn", True)):
                record(f"{call} {m}x{k}x{n}-{name}", blocks, find(call), (c,), (a, b), cores, **shape, add=add)
            rounded = tile(m * n, dtype)
            for part, add in (("", False), (", added", True)):
                record(
                    f"products {m}x{k}x{n}-{name}{part}",
                    3 * blocks // 2, products, c, rounded, a, b, cores, rounds=8, **shape, add=add,
                )  # fmt: skip
            along = (each._replace(index=cores) for each in (rounded, a, b))
            sums = chains(find("gemm_t").fused((c,), (a, b), **shape), *along, cores, cores)
            record(f"chains {m}x{k}x{n}-{name}", blocks, launch, [sums], cores)
            turns = [find("gemm").fused((c,), (a, b), **shape, add=add) for add in (False, True)]
            record(f"gemm {m}x{k}x{n}-{name}, in turn", blocks, launch, in_turn(turns, 4), cores)
            labels = Labels(cores, cores, 0)
            with mock.patch.object(elided_, "on_hopper", lambda: False):  # by warp groups: test_static_gate.py
                record(
                    f"elided {m}x{k}x{n}-{name}",
                    3 * blocks // 2, elided, c, rounded, a, b, cores, cores, labels, labels, **shape,
                )  # fmt: skip

        for call in ("gemm", "gemm_t"):
            for m in (1,) if covered else (1, 8):
                shape = {"m": m, "k": 16, "n": 12, "heads": 9, "kv_heads": 3}
                outs, ins = (tile(9 * m * 12, dtype),), (tile(9 * m * 16, dtype), tile(3 * 16 * 12, dtype))
                record(f"{call} heads-{m}-{name}", blocks, find(call), outs, ins, cores, **shape)

        if dtype == torch.float16:
            continue
        for case in largest.values():
            ins, outs = draw(case, dtype, integers=False, cores=4)
            operands = (tuple(Operand(one.flatten(), 0, one.shape[1]) for one in each) for each in (outs, ins))
            bound = blocks if case.op.startswith("expert") else scratch
            record(f"{case}-{name}", bound, find(case.op), *operands, cores, **case.params)
        for m, n in ((36, 96), (1, 64)):
            squares, x = tile(m, torch.float32), tile(m * n, dtype)
            record(f"sum_squares {n}-{name}", scratch, find("sum_squares"), (squares,), (x,), cores, m=m, n=n)

        for op in ("add",) if covered else ("add", "maximum"):
            record(f"tree {op}-{name}", scratch, reduce_tree, *reduced(tile(288, dtype), 288, op=op))
        tree, small = tree_of(64), tile(448, dtype)
        tables = (small, small, cores, cores, cores, cores)
        for size, step in ((448, 32), (1, 1), (8, 8)):
            sums = fold(*tables, order=tree.order, pairs=tree.pairs, size=size, op="add", step=step)
            scores = find("row_max").fused((small,), (small, small), heads=1, m=1, n=8, scale=0.1)
            ops, grid = ([sums, scores], Grid(4)) if size == 8 else ([sums], Grid())
            if not covered or size == 448:
                record(f"fold {size}-{name}", scratch, launch, ops, cores, (), grid)
        for m, k, n in ((1, 36, 288),) if covered else ((1, 36, 288), (8, 64, 64)):
            y, x, w = (tile(numel, dtype) for numel in (m * n, m * k, k * n))
            product = find("gemm").fused((y,), (x, w), m=m, k=k, n=n)
            record(f"mesh_gemv {m}x{k}x{n}-{name}", blocks, reduce_tree, *reduced(y, m * n, product))
            squares = tile(m, torch.float32)
            norm = find("rms_scale").fused((x,), (x, squares, tile(k, dtype)), m=m, n=k, width=576, eps=1e-5)
            record(f"norm, mesh_gemv {m}x{k}x{n}-{name}", blocks, reduce_tree, *reduced(y, m * n, norm, product))
        y, x, w = (tile(numel, dtype) for numel in (22, 7, 7 * 22))
        tiny = find("gemm").fused((y,), (x, w), m=1, k=7, n=22)
        record(f"mesh_gemv tiny-{name}", blocks, reduce_tree, *reduced(y, 22, tiny, grid=Grid(4, 2)))
    return figures


if __name__ == "__main__":
    root = Path(__file__).parents[2]
    sys.path[:0] = [str(root / "bench" / "harness"), str(root / "tests" / "helpers")]
    from ahead import recorder

    json.dump(compile_all(recorder(*sys.argv[1:]), sys.argv[2]), sys.stdout)
