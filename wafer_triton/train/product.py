"""Streamed products: Y = X W and its two gradients over a group of N dies, with W, X or Y moving.

All tiles of a die lie in its SRAM; whole operands lie in HBM, and a product takes one slice of them.

| moving | before | after | forward | backward |
| --- | --- | --- | --- | --- |
| "w" | X by rows, W by columns | Y by rows | gather W | gather W for dX, reduce dW |
| "x" | X by rows, W by columns | Y by columns | gather X | gather X for dW, reduce dX |
| "y" | X by columns, W by rows | Y by rows | reduce Y | gather dY for dX and dW |

An operand with N slots has its slots in the order in which the die computes with blocks: slot t belongs to block
`Stream.order[position][t]`. Sums are fp32. Products of the transpose take a tile that the die transposed itself.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def product(team: Team, moving: str, which: str, m: int, k: int, n: int, dtype: str = "fp32") -> Schedule:
    """Return the schedule of one pass of a streamed product, with tiles [m, k] of X, [k, n] of W and [m, n] of Y.

    `moving` and `which` are as in `PASSES`. Inputs are the buffers x, w, dy and outputs y, dx, dw, as far as the pass
    has them. Raises SramError when a die's buffers do not fit, ScheduleError for another pass.
    """
    m, k, n = check_counts(m=m, k=k, n=n)
    if moving not in PASSES or which not in PASSES[moving]:
        known = "; ".join(f"{operand!r} with {', '.join(passes)}" for operand, passes in PASSES.items())
        raise ScheduleError(f"pass {which!r} with {moving!r} moving: choose {known}")
    b = Builder(team.mesh, f"stream {moving} {which} [{m}, {k}] x [{k}, {n}] on groups of {team.rows}x{team.cols}")
    _Product(b, team, (m, k, n), dtype).add(moving, which)
    return b.build()


class _Product:
    def __init__(self, b: Builder, team: Team, sizes: tuple[int, int, int], dtype: str) -> None:
        self.b, self.team, self.sizes, self.dtype = b, team, sizes, dtype

    def add(self, moving: str, which: str) -> None:
        getattr(self, f"{moving}_{which}")()

    def tile(self, name: str, role: str, slots: int = 1) -> str:
        m, k, n = self.sizes
        shape = {"x": (m, k), "w": (k, n), "y": (m, n)}[name[-1]]
        dtype = self.dtype if role == "input" else "fp32"
        return self.b.buffer(name, shape, dtype, role, slots)

    def gather(self, own: str, compute: object) -> None:
        gather(self.b, self.team.moves, self.team.groups, own, compute)  # type: ignore[arg-type]

    def reduce(self, own: str, compute: object) -> None:
        reduce(self.b, self.team.moves, self.team.groups, own, compute)  # type: ignore[arg-type]

    def times(self, c: str | Slot, a: str | Slot, w: str | Slot, where: Cores | None, add: bool) -> Local:
        """Return c [m, n] (+)= a [m, k] w [k, n]."""
        m, k, n = self.sizes
        return self.b.local("gemm", c, [a, w], where, m=m, k=k, n=n, add=add)

    def times_w(self, dx: str | Slot, dy: str | Slot, w: str | Slot, where: Cores | None, add: bool) -> Local:
        """Return dx [m, k] (+)= dy [m, n] w^T."""
        m, k, n = self.sizes
        return self.b.local("gemm_t", dx, [dy, w], where, m=m, k=n, n=k, add=add)

    def times_x(self, dw: str | Slot, xt: str | Slot, dy: str | Slot, where: Cores | None, add: bool) -> Local:
        """Return dw [k, n] (+)= xt [k, m] dy [m, n]."""
        m, k, n = self.sizes
        return self.b.local("gemm", dw, [xt, dy], where, m=k, k=m, n=n, add=add)

    def transposed(self, x: str | Slot, where: Cores | None = None) -> tuple[str, Local]:
        m, k, _ = self.sizes
        xt = self.b.buffer("xt", (k, m), self.dtype)
        return xt, self.b.local("swap", xt, x, where, rows=m, cols=k, size=1)

    # --- W moves ---

    def w_forward(self) -> None:
        x, w, y = self.tile("x", "input"), self.tile("w", "input"), self.tile("y", "output", self.team.size)
        self.gather(w, lambda t, block, where: [self.times(Slot(y, t), x, block, where, False)])

    def w_dx(self) -> None:
        dy, w, dx = self.tile("dy", "input", self.team.size), self.tile("w", "input"), self.tile("dx", "output")
        self.gather(w, lambda t, block, where: [self.times_w(dx, Slot(dy, t), block, where, t > 0)])

    def w_dw(self) -> None:
        x, dy, dw = self.tile("x", "input"), self.tile("dy", "input", self.team.size), self.tile("dw", "output")
        xt, swap = self.transposed(x)
        self.b.round(swap, label="transpose")
        self.reduce(dw, lambda t, part, where: [self.times_x(part, xt, Slot(dy, t), where, False)])

    # --- X moves ---

    def x_forward(self) -> None:
        x, w, y = self.tile("x", "input"), self.tile("w", "input"), self.tile("y", "output", self.team.size)
        self.gather(x, lambda t, block, where: [self.times(Slot(y, t), block, w, where, False)])

    def x_dx(self) -> None:
        dy, w, dx = self.tile("dy", "input", self.team.size), self.tile("w", "input"), self.tile("dx", "output")
        self.reduce(dx, lambda t, part, where: [self.times_w(part, Slot(dy, t), w, where, False)])

    def x_dw(self) -> None:
        x, dy, dw = self.tile("x", "input"), self.tile("dy", "input", self.team.size), self.tile("dw", "output")
        xt, swap = self.transposed(x)
        self.b.round(swap, label="transpose")
        self.gather(xt, lambda t, block, where: [self.times_x(dw, block, Slot(dy, t), where, t > 0)])

    # --- Y moves ---

    def y_forward(self) -> None:
        x, w, y = self.tile("x", "input", self.team.size), self.tile("w", "input"), self.tile("y", "output")
        self.reduce(y, lambda t, part, where: [self.times(part, Slot(x, t), w, where, False)])

    def y_backward(self) -> None:
        x, w = self.tile("x", "input", self.team.size), self.tile("w", "input")
        dy, dx, dw = self.tile("dy", "input"), self.tile("dx", "output", self.team.size), self.tile("dw", "output")

        def step(t: int, block: str, where: Cores | None) -> Sequence[Local]:
            xt, swap = self.transposed(Slot(x, t), where)
            return [
                self.times_w(Slot(dx, t), block, w, where, False),
                swap,
                self.times_x(dw, xt, block, where, t > 0),
            ]

        self.gather(dy, step)
