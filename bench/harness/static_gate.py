"""What sm_90 makes of the benchmarked kernels, without a GPU: python bench/harness/static_gate.py [--write]

The table in results/ of this version of Triton is the bound: a kernel may not come to need more registers, stack,
shared memory or columns of matrix products (masked products are wider than sums of their own), nor lose its matrix
instructions, its copies by tensor (TMA), its warps with registers of their own, the width of its accesses or loads in
flight. What has values on the stack at all is named in tests/kernels/test_static_gate.py.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # Python leaves it out under PYTHONSAFEPATH

import torch
import triton

from ahead import recorder
from wafer_triton.emulate.lines import NARROW, narrowed
from wafer_triton.kernels import Moves, Operand, find, one_round, several_rounds
from wafer_triton.kernels.chain import Receivers, Stretch, Tree, chain, flags_of
from wafer_triton.kernels.elided import Labels, elided
from wafer_triton.kernels.exchange import exchange, relay
from wafer_triton.kernels.lines import Fold, Phase, Slices, lines
from wafer_triton.kernels.parts import Part
from wafer_triton.kernels.waiting import Alarm

TABLE = Path(__file__).parents[1] / "results" / f"sm_90-triton-{triton.__version__}.csv"
COLUMNS = (
    "case", "registers", "spills", "shared_bytes", "wgmma", "wgmma_columns", "tma", "specialised",
    "widest_access_bytes", "loads_in_flight", "cooperative", "warps",
)  # fmt: skip
BF16 = torch.bfloat16

# group: cores that share a program, see kernels/elided.py
ELIDED = (
    ("4096^3, P = 64", 64, (2, 4)), ("4096^3, P = 64", 64, (2, 2)), ("4096^3, P = 32", 128, (1, 2)),
    ("8192^3, P = 64", 128, (1, 2)), ("8192^3, P = 32", 256, (1, 1)),
)  # fmt: skip
GEMV = (
    ("[1, 4096] x [4096, 14336], P = 64", 1, 64, 224), ("[1, 4096] x [4096, 14336], P = 128", 1, 32, 112),
    ("[1, 16384] x [16384, 16384], P = 64", 1, 256, 256), ("[1, 16384] x [16384, 16384], P = 128", 1, 128, 128),
    ("[16, 4096] x [4096, 14336], P = 64", 16, 64, 224), ("[1, 4096] x [4096, 14336], P = 660", 1, 7, 22),
)  # fmt: skip


def tile(numel: int, dtype: torch.dtype = BF16) -> Operand:
    """An operand of four cores."""
    return Operand(torch.empty(4 * numel, dtype=dtype), 0, numel)


def rows() -> list[dict[str, object]]:
    """One row a case, of `COLUMNS`."""
    compiled = recorder("cuda", "90", "32", machine_code=True)
    alarm = Alarm(torch.zeros(1, dtype=torch.int64), 1)
    cores, side = torch.arange(4, dtype=torch.int32), torch.arange(64, dtype=torch.int32)
    table: list[dict[str, object]] = []

    def add(case: str, *call: object, **params: object) -> None:
        seen = compiled(*call, **params)
        facts = (
            case, seen["registers"], seen["spills"], seen["shared"],
            int("wgmma.mma_async" in seen["matrix_instructions"]), seen["wgmma_columns"], int(seen["tma"]),
            int(seen["specialised"]), seen["widest_access_bytes"], seen["loads_in_flight"], int(seen["cooperative"]),
            seen["num_warps"],
        )  # fmt: skip
        table.append(dict(zip(COLUMNS, facts, strict=True)))

    n = 64
    c, out, a, b, next_a, next_b = (tile(n * n, dtype) for dtype in (torch.float32, *[BF16] * 5))
    size = {"m": n, "k": n, "n": n}
    moves = [Moves(to, of, cores, cores) for to, of in ((next_a, a), (next_b, b))]
    add("exchange, 64 x 64 tiles", exchange, moves, [n * n] * 2)
    ends = [(next_a, a), (a, next_a), (next_b, b), (b, next_b)]
    add("relay, 64 x 64 tiles", relay, ends, [n * n] * 4, torch.zeros(9, 8, dtype=torch.int32), cores, alarm)
    add("one_round, 64 x 64 tiles", one_round, c, c, a, b, next_a, next_b, cores, cores, cores, **size, add=True)
    add(
        "several_rounds, 64 x 64 tiles",
        several_rounds, c, out, (a, next_a), (b, next_b), cores, cores[None], cores, alarm, rounds=3, here=0,
        whole=True, **size, add=True,
    )  # fmt: skip
    add(
        "several_rounds, 64 x 64 tiles, tight",
        several_rounds, c, out, (a, next_a), (b, next_b), cores, cores[None], cores, alarm, rounds=3, here=0,
        whole=True, tight=True, **size, add=False,
    )  # fmt: skip
    labels = Labels(side, side, 0)
    for shape, n, group in ELIDED:
        c, out, a, b = tile(n * n, torch.float32), tile(n * n), tile(n * n), tile(n * n)
        add(
            f"elided {shape}, {group[0]} x {group[1]} cores a program",
            elided, c, out, a, b, side, side, labels, labels, group=group, by="loads", m=n, k=n, n=n,
        )  # fmt: skip
        add(
            f"elided {shape}, {group[0]} x {group[1]} cores a program, by warp groups",
            elided, c, out, a, b, side, side, labels, labels, group=group, by="warps", m=n, k=n, n=n,
        )  # fmt: skip
        if group[1] == 1 or "8192" in shape:
            add(
                f"elided {shape}, blocks copied by tensor",
                elided, c, out, a, b, side, side, labels, labels, group=(1, 1), by="tensor", m=n, k=n, n=n,
            )  # fmt: skip
    for shape, m, k, n in GEMV:
        y, box = tile(m * n, torch.float32), tile(2 * m * n, torch.float32)
        product = find("gemm").part((y,), (tile(m * k), tile(k * n)), m=m, k=k, n=n)
        rounding = find("copy").part((tile(m * n),), (y,), size=m * n)
        tree, everyone = Tree(y, box, cores, cores, cores, 2, m * n), Receivers(cores, cores, 1)
        first = Stretch(cores, flags_of(4, 2, "cpu"), (product,), tree, everyone, ((y, m * n),))
        second = Stretch(cores, flags_of(4, 0, "cpu"), (rounding,))
        add(f"mesh_gemv {shape}", chain, (first, second), alarm)
        if m == 1 and "P = 660" not in shape:
            side = int(shape.rpartition(" ")[2])
            add(f"mesh_gemv {shape}, by lines", lines, *by_lines(side, product, y, n, rounding))
    for case, phases, cut in decode_layer():
        add(f"Llama-3-8B decode, P = 64, by lines: {case}", lines, phases, cut)
    # attention of Llama-3-8B on 64 x 64 cores, 4,096 entries
    for op, k, n in (("gemm_t", 2, 64), ("gemm", 64, 2)):
        ends = (tile(32 * n, torch.float32),), (tile(32 * k), tile(8 * k * n))
        add(f"{op}, 32 heads, [1, {k}] x [{k}, {n}]", find(op), *ends, cores, m=1, k=k, n=n, heads=32, kv_heads=8)
    # a Llama-3-8B layer on 660 x 660: heads of the wafer's decode step
    scores = {"heads": 32, "m": 1, "n": 7}
    add("row_max, 32 heads", find("row_max"), (tile(32),), (tile(32 * 7), tile(7)), cores, **scores, scale=0.1)
    add("silu_mul, 22 wide", find("silu_mul"), (tile(22),), (tile(44),), cores, m=1, n=22)
    return table


def tables(side: int) -> torch.Tensor:
    """As many lines as cores on a line."""
    return torch.arange(side, dtype=torch.int32).repeat(side, 1)


def by_lines(side: int, product: Part, sums: Operand, n: int, *behind: Part) -> tuple[list[Phase], Slices]:
    """A product whose columns are in slices, its sums, and what is behind."""
    table, cols = tables(side), narrowed(product.sizes.BLOCK_N.value, n, side, NARROW)
    phases = [Phase(product, table), Phase(fold=Fold(sums, sums, table, table, 3, n))]
    phases += [Phase(part, table) for part in behind]
    return phases, Slices(0, 2, -(-n // cols), 0, cols, table[0])


def decode_layer() -> Iterator[tuple[str, list[Phase], Slices]]:
    """The launches of lines of one layer of Llama-3-8B on 64 x 64 cores, 4,160 entries."""
    fp32, table = torch.float32, tables(64)
    x, norm, h = tile(64), tile(64), tile(64)
    squares, sum_ = tile(1, fp32), tile(1, fp32)
    normed = [
        Phase(find("sum_squares").part((squares,), (x,), m=1, n=64), table),
        Phase(fold=Fold(squares, sum_, table, table, 3, 1)),
        Phase(find("rms_scale").part((h,), (x, sum_, norm), m=1, n=64, width=4096, eps=1e-5), table),
    ]
    heads = {"heads": 32, "kv_heads": 8}
    q, k, v = tile(64), tile(16), tile(16)
    for case, behind, a, m, n in (
        ("qkv", lambda y: find("rope").part((q, k, v), (y, tile(1), tile(1)), m=1, n=2, **heads), h, 64, 96),
        ("output", lambda y: find("add").part((x,), (x, y), size=64), tile(64), 64, 64),
        ("gate and up", lambda y: find("silu_mul").part((tile(224),), (y,), m=1, n=224), h, 64, 448),
        ("down", lambda y: find("add").part((x,), (x, y), size=64), tile(224), 224, 64),
    ):
        y = tile(n, fp32)
        phases, cut = by_lines(64, find("gemm").part((y,), (a, tile(m * n)), m=1, k=m, n=n), y, n, behind(y))
        if a is h:
            phases, cut = normed + phases, cut._replace(first=3, end=5)
        yield case, phases, cut
    scores, top, p, z, o = (tile(size, fp32) for size in (32 * 65, 32, 32 * 65, 32, 64))
    bias, cache, rows = tile(65, fp32), tile(65 * 16), {"heads": 32, "m": 1, "n": 65, "scale": 0.1}
    in_rows = Slices(0, 3, 8, 4, 0, table[0])
    yield "scores", [
        Phase(find("gemm_t").part((scores,), (q, cache), m=1, k=2, n=65, **heads), table),
        Phase(fold=Fold(scores, scores, table, table, 3, 32 * 65, rows=32)),
        Phase(find("row_max").part((top,), (scores, bias), **rows), table),
    ], in_rows  # fmt: skip
    weights = p._replace(tensor=p.tensor.bfloat16())
    yield "attention", [
        Phase(fold=Fold(top, top, table, table, 3, 32, "maximum", rows=32)),
        Phase(find("exp_sum").part((weights, z), (scores, bias, top), **rows), table),
        Phase(find("gemm").part((o,), (weights, cache), m=1, k=65, n=2, **heads), table),
        Phase(fold=Fold(o, o, table, table, 3, 64, rows=32)),
        Phase(fold=Fold(z, z, table, table, 3, 32, rows=32)),
        Phase(find("normalize").part((tile(64),), (o, z), m=1, heads=32, n=2), table),
    ], in_rows._replace(end=6)  # fmt: skip


if __name__ == "__main__":
    cases = rows()
    with TABLE.open("w") if sys.argv[1:] == ["--write"] else open(sys.stdout.fileno(), "w", closefd=False) as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(cases)
