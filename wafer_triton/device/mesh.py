"""A mesh: a rectangular region of a device's cores.

`fold` serves algorithms that need a square grid on a rectangular mesh (MeshGEMM's lcm grid, WaferLLM section 5): the
schedule is written for `shape = rows * fold[0], cols * fold[1]` logical cores, and each physical core does the work of
a `fold` block of them. Moves inside a block cost no hop; SRAM counts the whole block.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, SupportsIndex

from wafer_triton.device import Device, DeviceLike, device
from wafer_triton.errors import MeshError, plain, shown

MOST_SIDE = 2048  # of an lcm grid, which a schedule names core by core
MOST_FOLD = 256  # logical cores of an lcm grid on one core, which does their work one after another


@dataclass(frozen=True)
class Mesh:
    """`rows` x `cols` cores of `device`, a Device or a value for `device`, the first at `origin` (row, column).

    `shape` is the logical (rows, cols), the grid that schedules and tiles are written for: (rows, cols) times `fold`,
    as each core does the work of so many logical rows and columns. Raises MeshError when empty or when the region
    leaves the device.
    """

    rows: int
    cols: int
    device: Device = field(default_factory=lambda: device("wse2"))
    origin: tuple[int, int] = (0, 0)
    fold: tuple[int, int] = (1, 1)
    shape: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, side in (("rows", self.rows), ("cols", self.cols)):
            object.__setattr__(self, name, plain(side))
            if type(plain(side)) is not int or side < 1:
                sides = f"{shown(self.rows)} x {shown(self.cols)}"
                raise MeshError(f"mesh {sides}: {name} must be a whole number of at least 1")
        object.__setattr__(self, "device", device(self.device))
        for name, given, least in (("fold", self.fold, 1), ("origin", self.origin, 0)):
            pair = tuple(map(plain, given))
            object.__setattr__(self, name, pair)
            if [type(number) for number in pair] != [int, int] or (name == "fold" and min(pair) < least):
                raise MeshError(
                    f"mesh {self.rows} x {self.cols}: {name} {shown(pair)} must be whole numbers of at least {least}, "
                    f"a pair"
                )
        row, col = self.origin
        if row < 0 or col < 0 or row + self.rows > self.device.rows or col + self.cols > self.device.cols:
            raise MeshError(
                f"mesh {self.rows} x {self.cols} at {self.origin} leaves device {self.device.name}, which has "
                f"{self.device.rows} x {self.device.cols} cores; give a smaller mesh"
            )
        object.__setattr__(self, "shape", (self.rows * self.fold[0], self.cols * self.fold[1]))

    @property
    def cores(self) -> int:
        """Logical cores."""
        return self.shape[0] * self.shape[1]

    @property
    def per_core(self) -> int:
        """Logical cores of a physical one."""
        return self.fold[0] * self.fold[1]

    def square(self) -> Mesh:
        """Return the mesh folded to the square lcm grid (itself if square already); MeshError for a grid too large."""
        if self.fold != (1, 1) or self.rows == self.cols:
            return self
        side = math.lcm(self.rows, self.cols)
        folded = side * side // (self.rows * self.cols)
        if side > MOST_SIDE or folded > MOST_FOLD:
            near = min(self.rows, self.cols)
            raise MeshError(
                f"mesh {self}: products of matrices fold it to the grid of the least common multiple, {side:,} x "
                f"{side:,} with {folded:,} logical cores on each core; at most {MOST_SIDE:,} a side and {MOST_FOLD} on "
                f"a core are taken: give sides with a larger common divisor, or a square mesh such as {near}x{near}"
            )
        return replace(self, fold=(side // self.rows, side // self.cols))

    def length(self, axis: str) -> int:
        """Return cores along an axis: "x" runs across the columns, "y" down the rows; MeshError for another."""
        if axis not in ("x", "y"):
            raise MeshError(f"mesh {self}: axis {shown(axis)} is neither 'x' nor 'y'; give one of them")
        return self.shape[1] if axis == "x" else self.shape[0]

    def __str__(self) -> str:
        return f"{self.rows}x{self.cols}"

    @property
    def text(self) -> str:
        """The mesh and its device, for `from_text` in this process or another; torch.compile can trace it."""
        sides = map(index, (self.rows, self.cols, *self.origin, *self.fold))  # where sizes are symbolic, their values
        return repr((*sides, self.device.text))

    @classmethod
    def from_text(cls, text: str) -> Mesh:
        """Return the mesh of a `text`."""
        rows, cols, row, col, down, across, numbers = ast.literal_eval(text)
        return cls(rows, cols, Device(*ast.literal_eval(numbers)), (row, col), (down, across))


MeshLike = Mesh | SupportsIndex | str | tuple[SupportsIndex, SupportsIndex] | list[int]


def as_mesh(spec: MeshLike | None, on: DeviceLike | None = None) -> Mesh:
    """Return a Mesh from a Mesh, a side `P`, a pair `(rows, cols)` or a text "P" or "RxC"; MeshError otherwise.

    A Mesh without a device of its own takes `on`; MeshError for a Mesh of another device.
    """
    if isinstance(spec, Mesh):
        if on is None:
            return spec
        chosen = device(on)
        if spec.device not in (chosen, device("wse2")):
            raise MeshError(
                f"mesh {spec} is on {spec.device.name}, and device is {chosen.name}; give device the same, or the "
                f"sides alone, as '{spec.rows}x{spec.cols}'"
            )
        return replace(spec, device=chosen)
    sides: Any = spec
    if isinstance(spec, str):
        written = re.fullmatch(r"\s*(-?[0-9]{1,9})\s*(?:x\s*(-?[0-9]{1,9})\s*)?", spec.lower())
        sides = (int(written[1]), int(written[2] or written[1])) if written else ()
    elif type(plain(spec)) is int:
        sides = (plain(spec), plain(spec))
    if not isinstance(sides, tuple | list) or len(sides) != 2:
        raise MeshError(f"mesh {shown(spec)}: give a side such as 16, or rows x columns such as '16x24' or (16, 24)")
    return Mesh(sides[0], sides[1], device("wse2" if on is None else on))
