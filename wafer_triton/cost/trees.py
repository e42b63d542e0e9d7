"""The K-trees that are fastest by the constants of a device."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wafer_triton.cost.constants import Constants
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.reduce import default_groups, two_level

Groups = tuple[int, ...] | None


def tree_for(mesh: Mesh, c: Constants) -> Groups:
    """The groups of the K-tree that is fastest on both axes of a mesh; None, a default tree on each, if that is."""
    if mesh.shape[0] == mesh.shape[1]:
        return best_groups(mesh.shape[0], c)
    lines = [_tree_cycles(length, c.stage_cycles, c.hop_cycles) for length in mesh.shape]
    shared = sum(line[: min(mesh.shape)] for line in lines)
    own = sum(line[(*default_groups(len(line)), 1)[0] - 1] for line in lines)
    return (int(np.argmin(shared)) + 1,) if np.min(shared) <= own else None


def best_groups(length: int, c: Constants) -> tuple[int, ...]:
    """The number of groups on the first of two levels that makes an all-reduce of one word fastest."""
    return (int(_tree_cycles(length, c.stage_cycles, c.hop_cycles).argmin()) + 1,) if length > 4 else ()


@lru_cache(maxsize=1024)
def _tree_cycles(length: int, stage: float, hop: float) -> NDArray[np.float64]:
    """[length]: the cycles of an all-reduce of one word by two levels with each number of groups on the first."""
    _, stages, hops = two_level(length)
    return stages * stage + hops * hop
