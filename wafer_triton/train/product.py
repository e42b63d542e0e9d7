"""Streamed products: Y = X W and its two gradients over a group of N dies, with W, X or Y moving.

All tiles of a die lie in its SRAM; whole operands lie in HBM, and a product takes one slice of them.

| moving | before | after | forward | backward |
| --- | --- | --- | --- | --- |
| "w" | X by rows, W by columns | Y by rows | gather W | gather W for dX, reduce dW |
| "x" | X by rows, W by columns | Y by columns | gather X | gather X for dW, reduce dX |
| "y" | X by columns, W by rows | Y by rows | reduce Y | gather dY for dX and dW |

An operand with N slots has its slots in the order in which the die computes with blocks: slot t belongs to block
`Stream.order[position][t]`. Products of the transpose take a tile that the die transposed itself.

A product that does not fit SRAM runs in slices. Those whose results add up take each other's sums over in SRAM: the
role of such an output is "cache", and "state" in the last of them, which writes it to HBM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from wafer_triton.algorithms.stream import Stream, groups, stream
from wafer_triton.algorithms.stream_rounds import gather, reduce
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ScheduleError, check_counts
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Local, Slot
from wafer_triton.schedule.schedule import Schedule

PASSES = {"w": ("forward", "dx", "dw"), "x": ("forward", "dx", "dw"), "y": ("forward", "backward")}
RESULTS = {"forward": ("y",), "dx": ("dx",), "dw": ("dw",), "backward": ("dx", "dw")}
# Of a result: both operands, and the size over which products are added.
PRODUCTS = {"y": ("x", "w", "k"), "dx": ("dy", "w", "n"), "dw": ("x", "dy", "m")}
SIZES = {"x": "mk", "w": "kn", "y": "mn"}
CUTS = {"w": "mn", "x": "nm", "y": "km"}  # sizes cut over the dies: by their positions, and into the blocks that move


@dataclass(frozen=True)
class Team:
    """Groups of `rows` x `cols` dies that tile a mesh, each with a stream of a kind.

    Raises MeshError if the groups do not tile the mesh, ScheduleError for another kind of stream.
    """

    mesh: Mesh
    kind: str
    rows: int
    cols: int

    def __post_init__(self) -> None:
        groups(self.mesh, self.kind, self.rows, self.cols)

    @property
    def size(self) -> int:
        """Return the number of dies of a group."""
        return self.rows * self.cols

    @cached_property
    def moves(self) -> Stream:
        """Return the stream on a group's positions, without sends of blocks that no position needs any more."""
        return stream(self.kind, self.size).without_unused_sends()

    @cached_property
    def groups(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Return the die of every position, group by group."""
        return groups(self.mesh, self.kind, self.rows, self.cols)


def product(
    team: Team, moving: str, which: str, m: int, k: int, n: int, dtype: str = "fp32", sums: str = "fp32",
    taken: Mapping[str, str] | None = None,
) -> Schedule:  # fmt: skip
    """Return the schedule of one pass of a streamed product, with tiles [m, k] of X, [k, n] of W and [m, n] of Y.

    `moving` and `which` are as in `PASSES`. Inputs are the buffers x, w, dy and outputs y, dx, dw, as far as the pass
    has them, in `dtype` and `sums`. `taken` has the roles of outputs that add to an earlier slice's sums. Raises
    SramError when a die's buffers do not fit, ScheduleError for another pass.
    """
    m, k, n = check_counts(m=m, k=k, n=n)
    if moving not in PASSES or which not in PASSES[moving]:
        known = "; ".join(f"{operand!r} with {', '.join(passes)}" for operand, passes in PASSES.items())
        raise ScheduleError(f"pass {which!r} with {moving!r} moving: choose {known}")
    b = Builder(team.mesh, f"stream {moving} {which} [{m}, {k}] x [{k}, {n}] on groups of {team.rows}x{team.cols}")
    sizes, results, taken = {"m": m, "k": k, "n": n}, RESULTS[which], taken or {}
    operands = dict.fromkeys(name for result in results for name in PRODUCTS[result][:2])
    several = slotted(moving)
    for name in (*operands, *results):
        role, kind = ("input", dtype) if name in operands else (taken.get(name, "output"), sums)
        shape = tuple(sizes[size] for size in SIZES[name[-1]])
        b.buffer(name, shape, kind, role, team.size if name[-1] == several else 1)

    def swap(x: str | Slot, where: Cores | None = None) -> Local:
        return b.local("swap", "xt", x, where, rows=m, cols=k, size=1)

    def steps(t: int, block: str, where: Cores | None) -> list[Local]:
        """Return the products of step t, with a block of what moves."""
        ops = []
        for result in results:
            first, second, inner = PRODUCTS[result]
            tiles: dict[str, str | Slot] = {
                name: block if name[-1] == moving else Slot(name, t) if name[-1] == several else name
                for name in (result, first, second)
            }
            if result == "dw" and moving != "x":
                if several == "x":
                    ops.append(swap(tiles["x"], where))
                tiles["x"] = "xt"
            adds = result[-1] != moving and (result in taken or (t > 0 and result[-1] != several))
            rows, cols = (sizes[size] for size in SIZES[result[-1]])
            kernel, ins = "gemm_t" if result == "dx" else "gemm", [tiles[first], tiles[second]]
            ops.append(b.local(kernel, tiles[result], ins, where, m=rows, k=sizes[inner], n=cols, add=adds))
        return ops

    moves = next(name for name in (*operands, *results) if name[-1] == moving)
    if "dw" in results:
        b.buffer("xt", (k, m), dtype)
        if several != "x":
            b.round(swap("x"), label="transpose")
    if moves in operands:
        gather(b, team.moves, team.groups, "xt" if which == "dw" and moves == "x" else moves, steps)
    else:
        part = b.like(f"{moves}.own", moves) if moves in taken else moves
        reduce(b, team.moves, team.groups, part, steps)
        if part != moves:  # the sums of earlier slices
            b.round(b.local("add", moves, [moves, part], size=b.buffers[moves].numel))
    return b.build()


def slotted(moving: str) -> str:
    """Return the operand of which a die has a tile for each block of the `moving` one."""
    return next(name for name, sizes in SIZES.items() if {*CUTS[moving]} == {*sizes})
