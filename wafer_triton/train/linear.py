"""A linear layer over groups of dies: whole operands in HBM, streamed product by product in slices that fit SRAM.

With N dies in a group, dimensions m, k, n belong to one die (rows of X, its columns, columns of Y):

| moving | X in HBM | W in HBM | Y in HBM |
| --- | --- | --- | --- |
| "w" | [m, k], own rows | [k, n], own columns | [N, m, n], own rows, all columns by block |
| "x" | [m, k], own rows | [k, n], own columns | [N, m, n], all rows by block, own columns |
| "y" | [N, m, k], all rows by block, own columns | [k, n], own rows | [m, n], own rows |

A dimension that is cut more often than needed is padded with zeros. Cutting rows of X moves W again for every cut, as
columns of Y do with X moving and columns of X with Y moving; other cuts move nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as every

import torch
from torch import Tensor

from wafer_triton.errors import ScheduleError, ShapeError, SramError, check_counts, shown
from wafer_triton.train.machine import Machine
from wafer_triton.train.product import PASSES, Team, product

MOVES_AGAIN = {"w": 0, "x": 2, "y": 1}  # which of the cuts of m, k, n moves the moving operand again
MOST_CUTS = 4096


@dataclass(frozen=True)
class Cuts:
    """The number of slices of the dimensions m, k and n of one die."""

    m: int = 1
    k: int = 1
    n: int = 1

    def __post_init__(self) -> None:
        check_counts(m=self.m, k=self.k, n=self.n)


def fit(team: Team, moving: str, m: int, k: int, n: int, dtype: str = "fp32") -> Cuts:
    """Return cuts with which every pass fits a die's SRAM: the fewest that move an operand again, then the fewest.

    Raises SramError if no cuts do, ScheduleError for another operand than "w", "x" or "y".
    """
    m, k, n = _demand(moving, m, k, n)
    last: SramError | None = None
    powers = [2**power for power in range(13)]
    for again in powers:
        for pieces in powers:
            for first in (2**power for power in range(pieces.bit_length())):
                rest = [pieces // first, first]
                cuts = [rest.pop() if axis != MOVES_AGAIN[moving] else again for axis in range(3)]
                sizes = [-(-size // cut) for size, cut in zip((m, k, n), cuts, strict=True)]
                if any(cut > size for size, cut in zip((m, k, n), cuts, strict=True)):
                    continue
                try:
                    for which in PASSES[moving]:
                        product(team, moving, which, *sizes, dtype)
                    return Cuts(*cuts)
                except SramError as overflow:
                    last = overflow
        if again * 2 > (m, k, n)[MOVES_AGAIN[moving]]:
            break
    raise last or SramError(f"stream {moving} [{m}, {k}] x [{k}, {n}]: no cut fits")


def _demand(moving: str, m: int, k: int, n: int) -> tuple[int, ...]:
    if moving not in PASSES:
        raise ScheduleError(f"moving = {shown(moving)}: choose one of {', '.join(PASSES)}")
    return check_counts(m=m, k=k, n=n)


class Linear:
    """A product Y = X W on a machine; `fit` chooses `cuts` unless they are given. Tensors are as in the module's table.

    Raises MeshError for a team on another mesh than the machine's, ShapeError for tensors of other shapes.
    """

    def __init__(
        self, machine: Machine, team: Team, moving: str, m: int, k: int, n: int, cuts: Cuts | None = None
    ) -> None:
        machine.demand(team.mesh)
        self.sizes = _demand(moving, m, k, n)
        self.machine, self.team, self.moving = machine, team, moving
        self.cuts = cuts or fit(team, moving, m, k, n)
        self.order, self.place = orders(team)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        """Return Y of X and W."""
        self._demand(x=x, w=w)
        y = self._sum("y", {"x": x, "w": w}, "forward")
        return self._by_block(y) if self.moving != "y" else y

    def backward(self, x: Tensor, w: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        """Return dX and dW of X, W and dY."""
        self._demand(x=x, w=w, dy=dy)
        if self.moving == "y":
            return self._both(x, w, dy)
        return self._sum("dx", {"dy": dy, "w": w}, "dx"), self._sum("dw", {"x": x, "dy": dy}, "dw")

    def _demand(self, **tensors: Tensor) -> None:
        """Raise ShapeError for a tensor of another shape than in the module's table."""
        for name, given in tensors.items():
            rows, cols = (self.sizes[axis] for axis in _AXES[name[-1]])
            slots = (self.team.size,) * ((self.moving == "y") == (name == "x") and name != "w")
            wanted = [*self.machine.mesh.shape, *slots, rows, cols]
            if not isinstance(given, Tensor) or list(given.shape) != wanted:
                has = list(given.shape) if isinstance(given, Tensor) else shown(given)
                raise ShapeError(f"Linear: {name} is {has}; with {self.moving!r} moving give a tensor {wanted}")

    def _sum(self, out: str, ins: dict[str, Tensor], which: str) -> Tensor:
        pieces: dict[tuple[int, ...], Tensor] = {}
        for at in every(*(range(cut) for cut in (self.cuts.m, self.cuts.k, self.cuts.n))):
            part = self._run(which, {name: self._slice(name, given, at) for name, given in ins.items()})[out]
            self._put(pieces, out, at, part)
        return self._whole(out, pieces)

    def _both(self, x: Tensor, w: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        pieces: dict[str, dict[tuple[int, ...], Tensor]] = {"dx": {}, "dw": {}}
        for at in every(*(range(cut) for cut in (self.cuts.m, self.cuts.k, self.cuts.n))):
            given = {"x": x, "w": w, "dy": dy}
            outs = self._run("backward", {name: self._slice(name, held, at) for name, held in given.items()})
            for name, part in outs.items():
                self._put(pieces[name], name, at, part)
        return self._by_block(self._whole("dx", pieces["dx"])), self._whole("dw", pieces["dw"])

    def _run(self, which: str, ins: dict[str, Tensor]) -> dict[str, Tensor]:
        m, k, n = (-(-size // cut) for size, cut in zip(self.sizes, self._cuts, strict=True))
        return self.machine.run(product(self.team, self.moving, which, m, k, n), **ins)

    @property
    def _cuts(self) -> tuple[int, int, int]:
        return self.cuts.m, self.cuts.k, self.cuts.n

    def _put(self, pieces: dict[tuple[int, ...], Tensor], out: str, at: tuple[int, ...], part: Tensor) -> None:
        kept = tuple(at[axis] for axis in _AXES[out[-1]])
        pieces[kept] = part if kept not in pieces else self.machine.add(pieces[kept], part)

    def _slice(self, name: str, whole: Tensor, at: tuple[int, ...]) -> Tensor:
        """Return the slice `at` of an operand; the slots of an operand with several come in the order of computing."""
        if whole.dim() == 5:
            whole = take(whole, self.order)
        for dim, axis in zip((-2, -1), _AXES[name[-1]], strict=True):
            size, cut = self.sizes[axis], self._cuts[axis]
            if cut == 1:
                continue
            width = -(-size // cut)
            part = whole.narrow(dim, min(at[axis] * width, size), max(0, min(width, size - at[axis] * width)))
            missing = width - part.shape[dim]
            whole = torch.nn.functional.pad(part, (0, missing) if dim == -1 else (0, 0, 0, missing))
        return whole

    def _whole(self, name: str, pieces: dict[tuple[int, ...], Tensor]) -> Tensor:
        """Return the operand of its slices, slots still in the order of computing."""
        rows, cols = _AXES[name[-1]]
        joined = [
            torch.cat([pieces[row, col] for col in range(self._cuts[cols])], -1) for row in range(self._cuts[rows])
        ]
        whole = torch.cat(joined, -2)[..., : self.sizes[rows], : self.sizes[cols]]
        slotted = (self.moving == "y") == (name[-1] == "x") and name[-1] != "w"
        return whole.unsqueeze(2) if slotted and whole.dim() == 4 else whole  # a group of one die has one slot

    def _by_block(self, slots: Tensor) -> Tensor:
        return take(slots, self.place)


_AXES = {"x": (0, 1), "w": (1, 2), "y": (0, 2)}  # of m, k, n


def orders(team: Team) -> tuple[Tensor, Tensor]:
    """Return two tables [rows, cols, N] for the dies of a team: the block of each step, and the step of each block."""
    order = torch.zeros(*team.mesh.shape, team.size, dtype=torch.long)
    for group in team.groups:
        for position, die in enumerate(group):
            order[die] = torch.tensor(team.moves.order[position])
    return order, order.argsort(-1)


def take(slots: Tensor, numbers: Tensor) -> Tensor:
    """Return slots [rows, cols, N, ...] in the order `numbers` [rows, cols, N]."""
    return slots.gather(2, numbers.view(*numbers.shape, *(1,) * (slots.dim() - 3)).expand_as(slots))
