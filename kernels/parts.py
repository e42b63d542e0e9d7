"""Parts: what one core computes in a launch, one local operation after another.

A local operation is a device function `body(args, core, P)`: `args` are its operands, outputs first, `P` its constexpr
sizes by name. Several of them run in one launch, with a barrier between, because a core reads what it wrote itself.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Operand, this_core


class Part(NamedTuple):
    """A body with its operands, sizes and launch options.

    `sums`: it adds in an order that depends on its warps, as products of 64 rows do. `rounds`: it rounds every
    product, so none may be fused with an addition. `elements`: the size of a core's block, if the body takes P.CORES
    cores at once, [1, CORES, 1, 1]; else 0. `rows`: that many rows, P.BLOCK_M at once, need nothing of one another. A
    body that goes over rows or columns in slices takes the number of its first block, and does every P.SLICES-th from
    there.
    """

    body: Any
    args: tuple[Operand, ...]
    sizes: Any
    num_warps: int
    sums: bool = False
    rounds: bool = False
    num_stages: int = 3
    elements: int = 0
    rows: int = 0


def part(
    body: Any,
    args: Sequence[Operand],
    sizes: Mapping[str, Any],
    num_warps: int,
    *,
    sums: bool = False,
    rounds: bool = False,
    num_stages: int = 3,
    elements: int = 0,
    rows: int = 0,
) -> Part:
    """A part; `sizes` are what the body finds in P, functions among them."""
    named = constants({**sizes, "CORES": 1, "SLICES": 1})
    return Part(body, tuple(args), named, num_warps, sums, rounds, num_stages, elements, rows)


def constants(values: Mapping[str, Any]) -> Any:
    """Values that a kernel knows when it is compiled, by name."""
    return _named(tuple(values))(*map(tl.constexpr, values.values()))


@cache
def _named(names: tuple[str, ...]) -> Any:
    return namedtuple("Sizes", names)  # the names are each kernel's own


@triton.jit
def run_parts(args, sizes, core, BODIES: tl.constexpr):
    """Everything that a core computes by itself in this launch."""
    for number in tl.static_range(len(BODIES)):
        if number > 0:
            tl.debug_barrier()
        BODIES[number](args[number], core, sizes[number])


@triton.jit
def _parts_kernel(cores_ptr, args, sizes, BODIES: tl.constexpr, SOURCE: tl.constexpr):
    run_parts(args, sizes, this_core(cores_ptr), BODIES)


def options(parts: Sequence[Part], num_warps: int = 1, among: Sequence[Part] = ()) -> dict[str, Any]:
    """The launch options of a kernel that runs `parts`, and something that suits `num_warps`.

    The bits of some products depend on their warps, and those of a part that rounds every product on whether products
    are fused. So launches take these two from all parts `among` which they are: the bits do not depend on what goes
    together.
    """
    every = (*parts, *among)
    fixed = {part.num_warps for part in every if part.sums}
    return {
        "num_warps": max(fixed or {num_warps, *(part.num_warps for part in parts)}),
        "num_stages": min((part.num_stages for part in parts), default=3),
        "enable_fp_fusion": not any(part.rounds for part in every),
    }


def source(parts: Sequence[Part]) -> str:
    """A key of what the device functions do: of those in a tuple, Triton's caches look at the name alone."""
    functions = [fn for part in parts for fn in (part.body, *(size.value for size in part.sizes))]
    return " ".join(fn.cache_key for fn in functions if isinstance(fn, triton.JITFunction))


def launch(parts: Sequence[Part], cores: Tensor, among: Sequence[Part] = ()) -> None:
    """Run the parts, in their order, on every core that the int32 tensor `cores` lists; `among` as of `options`."""
    _parts_kernel[(cores.numel(),)](
        cores, tuple(part.args for part in parts), tuple(part.sizes for part in parts),
        BODIES=tuple(part.body for part in parts), SOURCE=source(parts), **options(parts, among=among),
    )  # fmt: skip


class LocalKernel:
    """The kernel of a local operation: a launcher, whose `part` is what it adds to a launch."""

    def __init__(self, make: Callable[..., Part]) -> None:
        self.part = make
        self.__doc__ = make.__doc__

    def __call__(self, outs: tuple[Operand, ...], ins: tuple[Operand, ...], cores: Tensor, **params: Any) -> None:
        launch((self.part(outs, ins, **params),), cores)
