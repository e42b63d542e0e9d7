"""Lines in one launch: a program is a line of cores, for which it computes, and whose reduce trees it adds up.

Nobody waits for anybody. A phase is a local operation on cores of the line, several of them at once, or the sums of
its trees, folded in registers hop by hop. The work of a line is cut into slices, of rows or columns, with a program
each. What comes before the sliced phases every program computes by itself, and all write the same values; what comes
behind them is left to the program of a line that ends last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.kernels._common import Operand, block, registers, rounded, store, tile_ptr
from wafer_triton.kernels.chain import COMBINE
from wafer_triton.kernels.parts import Part, constants, options, source

TAKEN = 16  # so many tiles are on their way at once
PRODUCTS, OTHERS = 8192, 2048  # elements at once: of a product in slices of columns, 64 a thread, and of all else
KEPT = 7  # sums that wait for others, at the most: three in a K-tree of two levels, two more for each further one
# of a code: with this core's part begins a sum; so many that were kept take it; it is the root's, and this is the root
STARTS, TAKES, DONE, ROOT = tl.constexpr(1), tl.constexpr(2), tl.constexpr(16), tl.constexpr(32)


class Fold(NamedTuple):
    """The sums by `op` of the trees of every line: tiles [rows, size // rows] of `tiles` to those of `total`.

    `cores`, int32 [lines, number], is the order in which parts come, `codes` likewise what is done: a part begins a
    sum, for which the one so far is kept, or it is added. Then TAKES for each kept sum that is added as well, the last
    first, and DONE with ROOT for each core before the root. At most `kept` are kept at once.
    """

    tiles: Operand
    total: Operand
    cores: Tensor
    codes: Tensor
    kept: int
    size: int
    op: str = "add"
    rows: int = 1


class Phase(NamedTuple):
    """What a line does next: `part` on its `cores`, int32 [lines, number], or its sums."""

    part: Part | None = None
    cores: Tensor | None = None
    fold: Fold | None = None


class Slices(NamedTuple):
    """Phases `first` up to `end` are cut into `number` slices, of `rows` rows or of `cols` columns each.

    `arrived` int32 [lines] is zero before and after.
    """

    first: int
    end: int
    number: int
    rows: int
    cols: int
    arrived: Tensor


class _Given(NamedTuple):
    """A phase as the kernel is given it."""

    args: tuple[Any, ...]
    cores: Tensor
    P: Any


@triton.jit
def _fold(args, cores_ptr, line, first, P):
    """Add up the parts of every core in the order of the trees."""
    tiles, total, codes_ptr = args
    dtype: tl.constexpr = total.tensor.dtype.element_ty
    for start_m in range(first[0] * P.BLOCK_M, P.ROWS, P.STEP_M * P.BLOCK_M):
        for start_n in range(first[1] * P.BLOCK_N, P.COLS, P.STEP_N * P.BLOCK_N):
            # [BLOCK_M, BLOCK_N]
            offs_m, offs_n = start_m + tl.arange(0, P.BLOCK_M)[:, None], start_n + tl.arange(0, P.BLOCK_N)[None, :]
            offs, mask = offs_m * P.COLS + offs_n, (offs_m < P.ROWS) & (offs_n < P.COLS)
            sum_ = tl.zeros([P.BLOCK_M, P.BLOCK_N], tl.float32)
            kept = ()
            for _ in tl.static_range(P.KEPT):
                kept += (sum_,)
            for begun in range(0, P.NUMBER, P.TAKEN):
                # all on their way before the first is added; other warps wrote them
                values, codes = (), ()
                for item in tl.static_range(P.TAKEN):
                    there = begun + item < P.NUMBER
                    at = line * P.NUMBER + begun + item
                    core = tl.load(cores_ptr + at, mask=there, other=0)
                    codes += (tl.load(codes_ptr + at, mask=there, other=STARTS),)
                    tile = tl.load(tile_ptr(tiles, core) + offs, mask=mask & there, other=0.0, cache_modifier=".cg")
                    values += (tile.to(tl.float32),)
                for item in tl.static_range(P.TAKEN):
                    code, value = codes[item], values[item]
                    starts = code % TAKES == STARTS
                    kept = _pushed(kept, sum_, starts)
                    sum_ = tl.where(starts, value, rounded(P.COMBINE(value, sum_), dtype).to(tl.float32))
                    for number in tl.static_range(P.KEPT):
                        takes = code % DONE // TAKES > number
                        sum_ = tl.where(takes, rounded(P.COMBINE(kept[0], sum_), dtype).to(tl.float32), sum_)
                        kept = _popped(kept, takes)
                    if code % ROOT // DONE == 1:
                        store(tile_ptr(total, code // ROOT) + offs, sum_, mask)


@triton.jit
def _pushed(kept, value, really):
    """A stack with a value on top."""
    higher = ()
    for number in tl.static_range(len(kept)):
        higher += (tl.where(really, value, kept[number]),)
        value = kept[number]
    return higher


@triton.jit
def _popped(kept, really):
    """A stack without what is on top."""
    lower = ()
    for number in tl.static_range(len(kept)):
        lower += (tl.where(really, kept[min(number + 1, len(kept) - 1)], kept[number]),)
    return lower


@triton.jit
def _phase(phase, P, line, first, BODY: tl.constexpr):
    if P.FOLDS and P.SLICED:
        _fold(phase.args, phase.cores, line, first, P)
    elif P.FOLDS:
        _fold(phase.args, phase.cores, line, (0, 0), P)
    else:
        for begun in range(0, P.NUMBER, P.CORES):
            cores = tl.load(phase.cores + line * P.NUMBER + begun + tl.arange(0, P.CORES))
            cores = tl.expand_dims(cores, (0, 2, 3))
            if P.SLICED:
                BODY(phase.args, cores, P, first[0] + first[1])
            else:
                BODY(phase.args, cores, P)


@triton.jit
def _lines_kernel(
    phases, arrived_ptr, BODIES: tl.constexpr, SOURCE: tl.constexpr, END: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr,
):  # fmt: skip
    # slices are of rows or of columns: one of ROWS and COLS is 1
    pid = tl.program_id(0)
    line, piece = pid // (ROWS * COLS), pid % (ROWS * COLS)
    first = (piece * (ROWS > 1), piece * (COLS > 1))
    for number in tl.static_range(END):
        if number > 0:
            tl.debug_barrier()
        _phase(phases[number], phases[number].P, line, first, BODIES[number])
    if len(BODIES) > END:
        tl.debug_barrier()
        before = tl.atomic_add(arrived_ptr + line, 1, sem="acq_rel", scope="gpu")
        if before + 1 == ROWS * COLS:
            tl.store(arrived_ptr + line, 0)
            for number in tl.static_range(END, len(BODIES)):
                _phase(phases[number], phases[number].P, line, first, BODIES[number])
                tl.debug_barrier()


def lines(phases: Sequence[Phase], slices: Slices, among: Sequence[Part] = ()) -> None:
    """Run phases one after another, on every line, in one launch; `among` as of `options`."""
    parts = [phase.part for phase in phases if phase.part is not None]
    assert all(part.elements for part in parts), "such parts take one core at a time"
    count = slices.arrived.numel()
    chosen = options(parts, 4, among) | {"num_warps": 4}
    sliced = range(slices.first, slices.end if slices.number > 1 else 0)
    given = [_given(phase, slices if at in sliced else None) for at, phase in enumerate(phases)]
    cut = (slices.number, 1) if slices.rows else (1, slices.number)
    _lines_kernel[(count * slices.number,)](
        tuple(given), slices.arrived, tuple(None if phase.part is None else phase.part.body for phase in phases),
        source(parts), slices.end, *cut, **chosen, **registers(144),
    )  # fmt: skip


def _given(phase: Phase, cut: Slices | None) -> _Given:
    """A phase with the sizes of its blocks; `cut` if it is one of those in slices."""
    number, rows, cols = (1, 0, 0) if cut is None else (cut.number, cut.rows, cut.cols)
    if phase.fold is not None:
        fold = phase.fold
        width = fold.size // fold.rows
        block_m = rows or block(fold.rows, 16)
        sizes = {
            "FOLDS": True, "SLICED": cut is not None, "NUMBER": fold.cores.shape[1], "ROWS": fold.rows, "COLS": width,
            "BLOCK_M": block_m, "BLOCK_N": cols or block(width, max(1, 512 // block_m)),
            "STEP_M": number if rows else 1, "STEP_N": number if cols else 1, "COMBINE": COMBINE[fold.op],
            "TAKEN": min(TAKEN, triton.next_power_of_2(fold.cores.shape[1])), "KEPT": fold.kept,
        }  # fmt: skip
        return _Given((fold.tiles, fold.total, fold.codes), fold.cores, constants(sizes))
    assert phase.part is not None and phase.cores is not None
    sizes = {name: value.value for name, value in phase.part.sizes._asdict().items()}
    elements = phase.part.elements
    for name, size in (("BLOCK_M", rows), ("BLOCK_N", cols)):
        if size:
            elements = elements // sizes[name] * size
            sizes[name] = size
    length = phase.cores.shape[1]
    most = max(1, (PRODUCTS if cols else OTHERS) // elements)
    together = min(most, length & -length)  # a power of two that divides the line
    sizes |= {"FOLDS": False, "SLICED": cut is not None, "NUMBER": length, "CORES": together, "SLICES": number}
    return _Given(phase.part.args, phase.cores, constants(sizes))
