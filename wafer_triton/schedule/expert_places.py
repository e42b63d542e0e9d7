"""Which region of cores holds which experts, copies among them, and how many rows of tokens are expected there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, lgamma, log, log1p

from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import MeshError, ShapeError, check_counts, shown
from wafer_triton.shape.moe import Experts

MOST_HELD = 256  # experts of a region, whose numbers travel in the dtype of tiles


@dataclass(frozen=True)
class ExpertRegions:
    """Experts in `side` x `side` regions, and the rows that a row of cores sends to each of them in a pass.

    `copies` are experts that live in one region more, once for each time that they stand there. Raises ShapeError for
    sizes that are not positive whole numbers.
    """

    side: int
    capacity: int
    copies: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_counts(side=self.side, capacity=self.capacity)
        if not isinstance(self.copies, tuple) or not all(type(expert) is int and expert >= 0 for expert in self.copies):
            raise ShapeError(f"copies = {shown(self.copies)} must be numbers of experts, as in (3, 5)")

    @property
    def count(self) -> int:
        """Regions of the mesh."""
        return self.side * self.side

    def living(self, experts: Experts) -> tuple[tuple[int, ...], ...]:
        """Return the experts of every region: one after the other in turn, then copies where the fewest live.

        Raises MeshError for a copy of an unknown expert, or of one that lives in every region.
        """
        living = [list(range(region, experts.count, self.count)) for region in range(self.count)]
        for expert in self.copies:
            free = [own for own in living if expert not in own]
            if not 0 <= expert < experts.count or not free:
                why = "lives in all of them" if 0 <= expert < experts.count else f"is none of {experts.count}"
                raise MeshError(
                    f"{experts.name}: no further copy of expert {expert} in {self.count} regions, it {why}; leave it "
                    f"out"
                )
            min(free, key=len).append(expert)
        return tuple(map(tuple, living))

    def held(self, experts: Experts) -> int:
        """Return the most experts of a region, copies among them."""
        return max(map(len, self.living(experts)))

    def homes(self, experts: Experts) -> tuple[tuple[int, int], ...]:
        """Return the slot of every copy, as (expert, slot): `held` slots of a region follow one another."""
        held = self.held(experts)
        return tuple(
            (expert, region * held + place)
            for region, own in enumerate(self.living(experts))
            for place, expert in enumerate(own)
            if expert % self.count != region
        )

    def expected_passes(self, top_k: int, tokens: int, rows: int) -> int:
        """Return the passes of `tokens` tokens on each of `rows` rows, each of which takes `top_k` experts."""
        return -(-expected_demand(top_k, self.count, tokens, rows) // self.capacity)

    def check(self, e: Experts, mesh: Mesh) -> None:
        """Raise MeshError unless a mesh can be cut so, for these experts."""
        side = mesh.shape[0]
        if side % self.side:
            raise MeshError(
                f"{e.name}: {self.side} x {self.side} regions of experts on mesh {mesh}: give a divisor of its "
                f"side {side}"
            )
        if self.held(e) > MOST_HELD:
            raise MeshError(
                f"{e.name}: {self.held(e)} experts in each of {self.side} x {self.side} regions; {MOST_HELD} are the "
                f"most, give more regions"
            )
        self.homes(e)


def fewest_regions(mesh: Mesh) -> ExpertRegions:
    """Return the fewest regions, of several, that a square mesh can be cut into, or one."""
    side = mesh.shape[0]
    return ExpertRegions(next((count for count in range(2, side + 1) if side % count == 0), 1), 1)


@lru_cache(maxsize=1024)
def expected_demand(top_k: int, regions: int, tokens: int, rows: int) -> int:
    """Return the most rows of tokens that one of `rows` mesh rows has for a region, if all regions are equally likely.

    Every token takes `top_k` experts. Fewer than one of all rows and regions exceeds the number, if the expert ids of
    a token were independent.
    """
    rows_of_all, above = tokens * top_k, 1.0
    if regions == 1:
        return rows_of_all
    yes, no = -log(regions), log1p(-1 / regions)
    for most in range(rows_of_all):  # by logarithms, as binomial coefficients leave the range of floats
        ways = lgamma(rows_of_all + 1) - lgamma(most + 1) - lgamma(rows_of_all - most + 1)
        above -= exp(ways + most * yes + (rows_of_all - most) * no)
        if rows * regions * above < 1:
            return max(1, most)
    return rows_of_all
