"""Fused ops: local operations that cores compute one after another in one launch.

A fused op is a device function `body(args, core, P)`: `args` are its operands, outputs first, `P` its constexpr sizes
by name. Several run in one launch, with a barrier between, because a core reads its own results. A program is one
core; where tiles are tiny it is several, [1, CORES, 1, 1], each of which still computes from its own tiles alone.
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

MAX_PROGRAMS = 60_000  # of a launch at most: each takes at least 0.6 ns of the GPU's time (measured on an H200)
MAX_ELEMENTS = 4096  # elements that several cores of a program hold at once


class FusedOp(NamedTuple):
    """A body with its operands, sizes and launch options.

    `sums`: it adds in an order that depends on its warps, as products of 64 rows do. `rounds`: it rounds every
    product, so none may be fused with an addition. `elements`: the size of a core's block, if the body takes P.CORES
    cores at once; else 0.
    """

    body: Any
    args: tuple[Any, ...]
    sizes: Any
    num_warps: int
    sums: bool = False
    rounds: bool = False
    num_stages: int = 3
    elements: int = 0

    def sized(self, **sizes: int) -> FusedOp:
        """Return the op with other sizes; `elements` follows the sizes of its block."""
        before = {name: value.value for name, value in self.sizes._asdict().items()}
        wider = {"BLOCK_N": 1, **before, **sizes}["BLOCK_N"], before.get("BLOCK_N", 1)
        return self._replace(sizes=constants(before | sizes), elements=self.elements * wider[0] // wider[1])

    @property
    def is_product(self) -> bool:
        """Whether its time goes into streaming weights."""
        return "BLOCK_K" in self.sizes._fields


class Grid(NamedTuple):
    """How a launch covers its cores: `together` in a program at once, `loops` such blocks one after another."""

    together: int = 1
    loops: int = 1

    def programs(self, count: int) -> int:
        """Return the number of programs for `count` cores."""
        return -(-count // self.together // self.loops)


def grid_of(ops: Sequence[FusedOp], count: int, whole: Sequence[int] = ()) -> Grid:
    """Return one core a program, unless a launch of `count` programs would take long by their number.

    A program's cores divide `count`, and each of `whole`.
    """
    together = 1
    while count // together > ONE_CORE_PROGRAMS and all(size % (2 * together) == 0 for size in (count, *whole)):
        if any(op.elements == 0 or 2 * together * op.elements > MAX_ELEMENTS for op in ops):
            break
        together *= 2
    return Grid(together, -(-(count // together) // MAX_PROGRAMS))


@triton.jit
def cores_at(cores_ptr, block, CORES: tl.constexpr):
    """Return the cores of a block: one, or [1, CORES, 1, 1]."""
    if CORES == 1:
        return tl.load(cores_ptr + block)
    else:
        return tl.expand_dims(tl.load(cores_ptr + block * CORES + tl.arange(0, CORES)), (0, 2, 3))


@triton.jit
def run_ops(args, sizes, core, BODIES: tl.constexpr):
    """Run all fused ops of a launch on the cores of a block."""
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
    operands = args  # Triton 3.6 loses a stride of 1 in a loop, unless the tuple is assigned
    for number in tl.range(first, first + 1 if LOOPS == 1 else min(first + LOOPS, blocks), num_stages=1):
        run_ops(operands, sizes, cores_at(cores_ptr, number, CORES), BODIES)


def options(ops: Sequence[FusedOp], num_warps: int = 1, all_ops: Sequence[FusedOp] = ()) -> dict[str, Any]:
    """Return the launch options of a kernel that runs `ops`, and something that suits `num_warps`.

    The bits of some products depend on their warps. The bits of an op that rounds every product depend on whether
    products are fused. So launches take both from all ops `all_ops` which they are, and no bit depends on fusing.
    """
    every = (*ops, *all_ops)
    fixed = {op.num_warps for op in every if op.sums}
    return {
        "num_warps": max(fixed or {num_warps, *(op.num_warps for op in ops)}),
        "num_stages": min((op.num_stages for op in ops), default=3),
        "enable_fp_fusion": not any(op.rounds for op in every),
    }


def source(ops: Sequence[FusedOp]) -> str:
    """Return a key of the source of the device functions: of a tuple's, Triton's caches compare the names alone."""
    functions = [fn for op in ops for fn in (op.body, *(size.value for size in op.sizes))]
    return " ".join(fn.cache_key for fn in functions if isinstance(fn, triton.JITFunction))


def given(ops: Sequence[FusedOp], grid: Grid) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the operands and the sizes of ops, as a kernel takes them."""
    return tuple(op.args for op in ops), tuple(op.sized(CORES=grid.together).sizes for op in ops)


def launch(ops: Sequence[FusedOp], cores: Tensor, all_ops: Sequence[FusedOp] = (), grid: Grid | None = None) -> None:
    """Run the ops, in their order, on every core that the int32 tensor `cores` lists; `all_ops` as in `options`."""
    count = cores.numel()
    grid = grid_of(ops, count) if grid is None else grid
    held = max((op.elements for op in ops), default=0) * grid.together if grid.together > 1 else 0
    start(
        _ops_kernel, grid.programs(count), cores, count // grid.together, *given(ops, grid),
        BODIES=tuple(op.body for op in ops), SOURCE=source(ops), CORES=grid.together, LOOPS=grid.loops,
        **options(ops, min(4, max(1, held // 1024)), all_ops),
    )  # fmt: skip


class LocalKernel:
    """The kernel of a local operation: a launcher, whose `fused(outs, ins, **params)` is its part of a launch."""

    def __init__(self, fused: Callable[..., FusedOp]) -> None:
        self.fused = fused

    def __call__(self, outs: tuple[Operand, ...], ins: tuple[Operand, ...], cores: Tensor, **params: Any) -> None:
        launch((self.fused(outs, ins, **params),), cores)


# Launchers by the names of local operations. `launcher(outs, ins, cores, **params)` runs one on every core that the
# int32 tensor `cores` lists. Operands and parameters are in the order and by the names of its torch definition.
KERNELS: dict[str, Callable[..., None]] = {}


def local_kernel(chosen: Callable[..., Mapping[str, Any]], *names: str, body: Any = None) -> Callable[[Any], Any]:
    """Register the decorated `body(args, core, P)` as the kernel of local operations, by default of its name.

    P has the operation's parameters in capitals, and the blocks and further sizes that are `chosen(ins, **params)`.
    Names in small letters there are fields of the op; a body that goes `together` takes several cores at once. With
    `body` the decorated function is its P.BODY.
    """

    def register(function: Any) -> Any:
        def fused(name: str, outs: tuple[Operand, ...], ins: tuple[Operand, ...], **given: Any) -> FusedOp:
            params = find(name).filled(given)
            own = {"BODY": function} if body else {}
            return planned(body or function, (*outs, *ins), params, {**own, **chosen(ins, **params)})

        KERNELS.update({name: LocalKernel(partial(fused, name)) for name in names or (function.__name__,)})
        return function

    return register


def each(size: Callable[..., int], most: int = 1024) -> Callable[[Any], Any]:
    """Register `body(args, core, offs, mask, P)`, which computes elements `offs` [BLOCK] of `size(**params)`."""
    return local_kernel(lambda ins, **params: flat(size(**params), most), body=_each)


def flat(size: int, most: int) -> dict[str, Any]:
    """Return the sizes of `_each`."""
    return {"NUMEL": size, "BLOCK": block(size, most), "together": True}


def planned(body: Any, operands: Sequence[Operand], params: Mapping[str, Any], chosen: Mapping[str, Any]) -> FusedOp:
    """Return a fused op whose block has as many elements as its sizes BLOCK* say together; see `local_kernel`."""
    sizes = {name.upper(): value for name, value in params.items()} | {"CORES": 1}
    sizes |= {name: value for name, value in chosen.items() if name.isupper()}
    facts = {name: value for name, value in chosen.items() if name.islower()}
    held = prod(size for name, size in sizes.items() if name.startswith("BLOCK"))
    elements = held if facts.pop("together", False) else 0
    return FusedOp(body, tuple(operands), constants(sizes), warps(held), elements=elements, **facts)


@triton.jit
def _each(args, core, P):
    for begun in range(0, P.NUMEL, P.BLOCK):
        # [BLOCK]
        offs = begun + tl.arange(0, P.BLOCK)
        P.BODY(args, core, offs, offs < P.NUMEL, P)
