"""Fused ops: local operations that cores compute one after another in one launch.

A fused op is a device function `body(args, core, P)`: `args` are its operands, outputs first, and `P` has its constexpr
sizes by name. Between two of them is a barrier, because a core reads its own results. A program is one core. Where
tiles are tiny it is several, `core` is [1, CORES, 1, 1], and each still computes from its own tiles alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import ONE_CORE_PROGRAMS, Operand, block, constants, start, warps
from wafer_triton.local import find

MAX_PROGRAMS = 60_000  # of a launch: each takes at least 0.6 ns of the GPU's time (measured on an H200)
MAX_ELEMENTS = 4096  # of the blocks of all cores of a program, if it takes several


class FusedOp(NamedTuple):
    """A body with its operands, sizes and launch options.

    `warp_dependent`: the order of its sums depends on the number of warps, as in products of 64 rows. `no_fma`: it
    rounds every product, so none may be fused with an addition. `elements`: the size of one core's block, if the body
    can take P.CORES cores at once; else 0.
    """

    body: Any
    args: tuple[Any, ...]
    sizes: Any
    num_warps: int
    warp_dependent: bool = False
    no_fma: bool = False
    num_stages: int = 3
    elements: int = 0

    def with_sizes(self, **sizes: int) -> FusedOp:
        """Return the op with some sizes replaced."""
        changed = {name: tl.constexpr(value) for name, value in sizes.items()}
        return self._replace(sizes=self.sizes._replace(**changed))

    def with_memory(self, tensor: Tensor, other: Tensor) -> FusedOp:
        """Return the op with its operands in `other` memory in place of `tensor`."""
        args = tuple(arg._replace(tensor=other) if arg.tensor is tensor else arg for arg in self.args)
        return self._replace(args=args)

    @property
    def is_product(self) -> bool:
        """Whether it multiplies matrices, so that loading weights takes most of its time."""
        return "BLOCK_K" in self.sizes._fields


class Grid(NamedTuple):
    """How a launch covers its cores: a program loops over `loops` blocks, each of `cores_per_block` cores at once."""

    cores_per_block: int = 1
    loops: int = 1

    def programs(self, count: int) -> int:
        """Return the number of programs for `count` cores."""
        return -(-count // self.cores_per_block // self.loops)


def grid_of(ops: Sequence[FusedOp], count: int, parts: Sequence[int] | None = None) -> Grid:
    """Return the grid for `count` cores: one core a program, or more if so many programs would take long to start.

    A block is full: its cores divide each of `parts`, by default the count.
    """
    together, parts = 1, (count,) if parts is None else parts
    while (
        count // together > ONE_CORE_PROGRAMS
        and all(size % (2 * together) == 0 for size in parts)
        and all(0 < 2 * together * op.elements <= MAX_ELEMENTS for op in ops)
    ):
        together *= 2
    return Grid(together, max(1, -(-(count // together) // MAX_PROGRAMS)))  # of no cores one loop, and no program


@triton.jit
def cores_at(cores_ptr, block, CORES: tl.constexpr):
    """Return the cores of a block: a scalar, or [1, CORES, 1, 1]."""
    if CORES == 1:
        return tl.load(cores_ptr + block)
    else:
        return tl.expand_dims(tl.load(cores_ptr + block * CORES + tl.arange(0, CORES)), (0, 2, 3))


@triton.jit
def run_ops(args, sizes, core, BODIES: tl.constexpr):
    """Run all fused ops of a launch on the cores `core` of a block, with a barrier between two."""
    for number in tl.static_range(len(BODIES)):
        if number > 0:
            tl.debug_barrier()
        BODIES[number](args[number], core, sizes[number])


@triton.jit
def _ops_kernel(
    cores_ptr, blocks, args, sizes, BODIES: tl.constexpr, SOURCE: tl.constexpr, CORES: tl.constexpr,
    LOOPS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * LOOPS
    operands = args  # without this assignment Triton 3.6 loses a stride of 1 in the loop
    for number in tl.range(first, first + 1 if LOOPS == 1 else min(first + LOOPS, blocks), num_stages=1):
        run_ops(operands, sizes, cores_at(cores_ptr, number, CORES), BODIES)


def options(ops: Sequence[FusedOp], num_warps: int = 1, all_ops: Sequence[FusedOp] = ()) -> dict[str, Any]:
    """Return the launch options of a kernel that runs `ops`, by default with at least `num_warps` warps.

    `all_ops` are the ops of all launches of a program. Some sums depend on the number of warps, and ops that round
    every product on whether products are fused with additions. If one of `all_ops` is such, all launches take its
    option, so that bits do not depend on which ops share a launch.
    """
    every = (*ops, *all_ops)
    fixed = {op.num_warps for op in every if op.warp_dependent}
    return {
        "num_warps": max(fixed or {num_warps, *(op.num_warps for op in ops)}),
        "num_stages": min((op.num_stages for op in ops), default=3),
        "enable_fp_fusion": not any(op.no_fma for op in every),
    }


def source_key(ops: Sequence[FusedOp]) -> str:
    """Return a key of the device functions' source; in a tuple Triton's caches would compare their names alone."""
    functions = [fn for op in ops for fn in (op.body, *(size.value for size in op.sizes))]
    return " ".join(fn.cache_key for fn in functions if isinstance(fn, triton.JITFunction))


def arguments(ops: Sequence[FusedOp], grid: Grid) -> dict[str, Any]:
    """Return what a kernel that runs `ops` takes by name: their operands, sizes and bodies, and its loops."""
    return {
        "args": tuple(op.args for op in ops), "BODIES": tuple(op.body for op in ops), "SOURCE": source_key(ops),
        "sizes": tuple(op.with_sizes(CORES=grid.cores_per_block).sizes for op in ops), "LOOPS": grid.loops,
    }  # fmt: skip


def launch(ops: Sequence[FusedOp], cores: Tensor, all_ops: Sequence[FusedOp] = (), grid: Grid | None = None) -> None:
    """Run the ops in order on every core that the int32 tensor `cores` lists; `all_ops` as in `options`."""
    count = cores.numel()
    grid = grid_of(ops, count) if grid is None else grid
    held = max((op.elements for op in ops), default=0) * grid.cores_per_block if grid.cores_per_block > 1 else 0
    start(
        _ops_kernel, grid.programs(count), cores, count // grid.cores_per_block, CORES=grid.cores_per_block,
        **arguments(ops, grid), **options(ops, min(4, max(1, held // 1024)), all_ops),
    )  # fmt: skip


class LocalKernel:
    """The launcher of a local operation that can share a launch: `fused(outs, ins, **params)` is its `FusedOp`."""

    def __init__(self, fused: Callable[..., FusedOp]) -> None:
        self.fused = fused

    def __call__(self, outs: tuple[Operand, ...], ins: tuple[Operand, ...], cores: Tensor, **params: Any) -> None:
        launch((self.fused(outs, ins, **params),), cores)


# Launchers by the names of local operations. `launcher(outs, ins, cores, **params)` runs one on every core that the
# int32 tensor `cores` lists. Operands and parameters are in the order and by the names of its torch definition.
KERNELS: dict[str, Callable[..., None]] = {}


def local_kernel(choose: Callable[..., Mapping[str, Any]], *names: str, body: Any = None) -> Callable[[Any], Any]:
    """Register the decorated `body(args, core, P)` as the kernel of local operations `names`, by default of its own.

    P has the operation's parameters in capitals. `choose(ins, **params)` returns block sizes and more constants for P,
    in capitals; its names in small letters are fields of `FusedOp`, or "multi_core", if the body can take several
    cores at once. With `body` that function is the kernel, and the decorated one its P.BODY.
    """

    def register(function: Any) -> Any:
        def fused(name: str, outs: tuple[Operand, ...], ins: tuple[Operand, ...], **given: Any) -> FusedOp:
            params = find(name).filled(given)
            body_size = {"BODY": function} if body else {}
            return make_op(body or function, (*outs, *ins), params, {**body_size, **choose(ins, **params)})

        KERNELS.update({name: LocalKernel(partial(fused, name)) for name in names or (function.__name__,)})
        return function

    return register


def each(size: Callable[..., int], most: int = 1024) -> Callable[[Any], Any]:
    """Register `body(args, core, offs, mask, P)`, which computes elements `offs` [BLOCK] of a core's `size(**params)`.

    A block has at most `most` elements.
    """
    return local_kernel(lambda ins, **params: flat(size(**params), most), body=_each)


def flat(size: int, most: int) -> dict[str, Any]:
    """Return what `local_kernel` takes as `chosen` for `_each`: `size` elements in blocks of at most `most`."""
    return {"NUMEL": size, "BLOCK": block(size, most), "multi_core": True}


def rows_of(m: int, n: int) -> dict[str, Any]:
    """Return what `local_kernel` takes as `chosen` for rows [m, n]: blocks of whole rows, or of parts of one."""
    block_n = block(n, 1024)
    return {"BLOCK_N": block_n, "BLOCK_M": block(m, 1024 // block_n), "multi_core": True}


def make_op(body: Any, operands: Sequence[Operand], params: Mapping[str, Any], chosen: Mapping[str, Any]) -> FusedOp:
    """Return a fused op; see `local_kernel` for `params` and `chosen`. Its block has the product of its BLOCK sizes."""
    sizes = {name.upper(): value for name, value in params.items()} | {"CORES": 1}
    sizes |= {name: value for name, value in chosen.items() if name.isupper()}
    facts = {name: value for name, value in chosen.items() if name.islower()}
    held = prod(size for name, size in sizes.items() if name.startswith("BLOCK"))
    elements = held if facts.pop("multi_core", False) else 0
    return FusedOp(body, tuple(operands), constants(sizes), warps(held), elements=elements, **facts)


@triton.jit
def _each(args, core, P):
    for begin in range(0, P.NUMEL, P.BLOCK):
        # [BLOCK]
        offs = begin + tl.arange(0, P.BLOCK)
        P.BODY(args, core, offs, offs < P.NUMEL, P)
