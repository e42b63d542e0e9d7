"""Where `compare` and `estimate` price one product differently: the steps from the one price to the other.

`compare` prices the product that runs: both operands come as they are cut, the result is rounded to the operands'
dtype, and the K-tree has its default groups. `estimate` prices the program that was measured on silicon. Its weights
come skewed by the host, and its sums stay in the dtype of the tiles. Its K-tree has the best groups. It starts and
ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wafer_triton.compare.product import Compared
from wafer_triton.cost.constants import constants
from wafer_triton.cost.price import best_groups, price
from wafer_triton.device.dtype import tile_dtype
from wafer_triton.schedule.product import recipe

ALIGNED = "the host skews the weights, so that they are not aligned on the mesh"
GROUPED = "the K-tree has {0} groups in place of its default"
SUMS = "sums stay in {0}, so that the result is not rounded"
STARTS = "a program starts and ends"


@dataclass(frozen=True)
class Agreement:
    """Cycles of one algorithm by `compare` and by `estimate`, and the steps between them: a reason with its cycles."""

    algorithm: str
    compared: float
    estimated: float
    steps: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        said = "; ".join(f"{cycles:+,.0f}, as {reason}" for reason, cycles in self.steps)
        head = f"{self.algorithm}: {self.compared:,.0f} cycles by compare, {self.estimated:,.0f} by estimate"
        return f"{head}: {said}" if said else head


def agreement(product: Compared, algorithm: str, groups: int | None = None) -> Agreement:
    """Return how `compare` and `estimate` price a product of a matrix by an algorithm; `groups` as in `estimate.gemv`.

    Raises as `Compared.by`.
    """
    c, tile = constants(product.mesh.device), tile_dtype(product.dtype)
    changes: list[tuple[str, dict[str, Any]]] = []
    if product.name == "gemm":
        changes.append((ALIGNED, {"skew": "host"}))
    elif algorithm == "ktree":
        own = best_groups(product.mesh.length("y"), c) if groups is None else (groups,)
        changes.append((GROUPED.format(own[0] if own else 1), {"groups": own}))
    changes.append((SUMS.format(tile), {"sums": tile}))
    mesh = product.by(algorithm).schedule.mesh
    options: dict[str, Any] = {"algorithm": algorithm, **dict(product.options)}
    at = first = price(product.by(algorithm).schedule, c).cycles
    steps = []
    for reason, change in changes:
        options |= change
        made = recipe(product.name, mesh, product.dtype, product.shapes, tuple(options.items()))
        cycles = price(made.schedule, c).cycles
        steps.append((reason, cycles - at))
        at = cycles
    steps.append((STARTS, c.kernel_cycles))
    held = tuple((reason, cycles) for reason, cycles in steps if cycles)
    return Agreement(algorithm, first, at + c.kernel_cycles, held)
