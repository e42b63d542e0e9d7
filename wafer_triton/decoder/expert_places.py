"""Which region of cores holds which experts, and how many rows of tokens a region can expect.

A row of a token is its copy for one of the experts that it chose.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, lgamma, log, log1p

from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import MeshError, check_counts
from wafer_triton.shape.moe import Experts

MOST_EXPERTS = 256  # experts of a region, whose numbers travel in the dtype of tiles


@dataclass(frozen=True)
class ExpertRegions:
    """Experts in `side` x `side` regions; in a pass a mesh row sends up to `capacity` rows of tokens to each region.

    Raises ShapeError for sizes that are not positive whole numbers.
    """

    side: int
    capacity: int

    def __post_init__(self) -> None:
        check_counts(side=self.side, capacity=self.capacity)

    @property
    def count(self) -> int:
        """Regions of the mesh."""
        return self.side * self.side

    def living(self, experts: Experts) -> tuple[tuple[int, ...], ...]:
        """Return the experts of every region: expert e is in region e % count."""
        return tuple(tuple(range(region, experts.count, self.count)) for region in range(self.count))

    def held(self, experts: Experts) -> int:
        """Return the most experts of a region."""
        return -(-experts.count // self.count)

    def expected_passes(self, top_k: int, tokens: int, rows: int) -> int:
        """Return the passes for `tokens` tokens on each of `rows` mesh rows, if a token takes `top_k` experts."""
        return -(-expected_demand(top_k, self.count, tokens, rows) // self.capacity)

    def check(self, e: Experts, mesh: Mesh) -> None:
        """Raise MeshError unless a mesh can be cut so, for these experts."""
        side = mesh.shape[0]
        if side % self.side:
            raise MeshError(
                f"{e.name}: {self.side} x {self.side} regions of experts on mesh {mesh}: give a divisor of its "
                f"side {side}"
            )
        if self.held(e) > MOST_EXPERTS:
            raise MeshError(
                f"{e.name}: {self.held(e)} experts in each of {self.side} x {self.side} regions; {MOST_EXPERTS} are "
                f"the most, give more regions"
            )


def expected_demand(top_k: int, regions: int, tokens: int, rows: int) -> int:
    """Return the most rows of tokens to expect for any region from any of `rows` mesh rows, of `tokens` tokens each.

    Every token takes `top_k` experts, and all regions are equally likely. Union bound, as if the experts of a token
    were independent: the expected number of (mesh row, region) pairs above this demand is below 1.
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
