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

from collections.abc import Callable, Mapping, Sequence
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
    _Product(b, team, (m, k, n), (dtype, sums), taken or {}).add(moving, which)
    return b.build()


class _Product:
    def __init__(
        self, b: Builder, team: Team, sizes: tuple[int, int, int], dtypes: tuple[str, str], taken: Mapping[str, str]
    ) -> None:
        self.b, self.team, self.sizes, self.taken = b, team, sizes, taken
        self.dtype, self.sums = dtypes

    def add(self, moving: str, which: str) -> None:
        getattr(self, f"{moving}_{which}")()

    def tile(self, name: str, role: str, slots: int = 1) -> str:
        m, k, n = self.sizes
        shape = {"x": (m, k), "w": (k, n), "y": (m, n)}[name[-1]]
        dtype = self.dtype if role == "input" else self.sums
        return self.b.buffer(name, shape, dtype, self.taken.get(name, role), slots)

    def gather(self, own: str, compute: object) -> None:
        gather(self.b, self.team.moves, self.team.groups, own, compute)  # type: ignore[arg-type]

    def reduce(self, name: str, compute: Callable[[int, str, Cores | None], Sequence[Local]]) -> None:
        """Add a reduce stream of a result; its sums are added to those of earlier slices."""
        total = self.tile(name, "output")
        own = self.b.like(f"{name}.own", total) if name in self.taken else total
        reduce(self.b, self.team.moves, self.team.groups, own, compute)
        if own != total:
            self.b.round(self.b.local("add", total, [total, own], size=self.b.buffers[total].numel))

    def adds(self, name: str, t: int) -> bool:
        """Return whether step t adds to a result that the die keeps."""
        return t > 0 or name in self.taken

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
        self.gather(w, lambda t, block, where: [self.times(Slot(y, t), x, block, where, "y" in self.taken)])

    def w_dx(self) -> None:
        dy, w, dx = self.tile("dy", "input", self.team.size), self.tile("w", "input"), self.tile("dx", "output")
        self.gather(w, lambda t, block, where: [self.times_w(dx, Slot(dy, t), block, where, self.adds("dx", t))])

    def w_dw(self) -> None:
        x, dy = self.tile("x", "input"), self.tile("dy", "input", self.team.size)
        xt, swap = self.transposed(x)
        self.b.round(swap, label="transpose")
        self.reduce("dw", lambda t, part, where: [self.times_x(part, xt, Slot(dy, t), where, False)])

    # --- X moves ---

    def x_forward(self) -> None:
        x, w, y = self.tile("x", "input"), self.tile("w", "input"), self.tile("y", "output", self.team.size)
        self.gather(x, lambda t, block, where: [self.times(Slot(y, t), block, w, where, "y" in self.taken)])

    def x_dx(self) -> None:
        dy, w = self.tile("dy", "input", self.team.size), self.tile("w", "input")
        self.reduce("dx", lambda t, part, where: [self.times_w(part, Slot(dy, t), w, where, False)])

    def x_dw(self) -> None:
        x, dy, dw = self.tile("x", "input"), self.tile("dy", "input", self.team.size), self.tile("dw", "output")
        xt, swap = self.transposed(x)
        self.b.round(swap, label="transpose")
        self.gather(xt, lambda t, block, where: [self.times_x(dw, block, Slot(dy, t), where, self.adds("dw", t))])

    # --- Y moves ---

    def y_forward(self) -> None:
        x, w = self.tile("x", "input", self.team.size), self.tile("w", "input")
        self.reduce("y", lambda t, part, where: [self.times(part, Slot(x, t), w, where, False)])

    def y_backward(self) -> None:
        x, w = self.tile("x", "input", self.team.size), self.tile("w", "input")
        dy, dx, dw = self.tile("dy", "input"), self.tile("dx", "output", self.team.size), self.tile("dw", "output")

        def step(t: int, block: str, where: Cores | None) -> Sequence[Local]:
            xt, swap = self.transposed(Slot(x, t), where)
            return [
                self.times_w(Slot(dx, t), block, w, where, "dx" in self.taken),
                swap,
                self.times_x(dw, xt, block, where, self.adds("dw", t)),
            ]

        self.gather(dy, step)
