"""What it takes to re-place weights and cache between prefill and decode (WaferLLM, OSDI'25, section 4).

A matrix goes from one mesh to another along x, then along y; one that the phases place the other way round is then
transposed, and what prefill multiplies by is skewed. Both meshes are taken to share a corner. A matrix too large to be
moved beside itself goes in slices, which changes rounds but no byte. Each step is a schedule, so it runs, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from itertools import count

import numpy as np

from wafer_triton.cost.constants import constants
from wafer_triton.cost.price import Cost, Tally, tally
from wafer_triton.count.account import Account
from wafer_triton.count.traffic import WORD_BYTES
from wafer_triton.errors import SramError
from wafer_triton.mesh import Mesh
from wafer_triton.models.place.cuts import MATRICES, TURNED
from wafer_triton.schedule.block import Block
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.collectives import transpose
from wafer_triton.schedule.gemm import align
from wafer_triton.schedule.rounds import Cores, Exchange, Index, Local, Schedule, Slot


def redistribute(mesh: Mesh, axis: str, source: Index, target: Index, numel: int, dtype: str) -> Schedule:
    """Unit u of `numel` elements moves on every line from core source[u] to core target[u] of an axis.

    The units of a core lie in the slots of `from` and `to` in the order of u. In a round a core sends one and receives
    one.
    """
    b = Builder(mesh, f"redistribute along {axis}")
    here, there = _ranks(source), _ranks(target)
    b.buffer("from", (numel,), dtype, "input", int(here.max()) + 1)
    b.buffer("to", (numel,), dtype, "output", int(there.max()) + 1)
    ends = (("from", source, here), ("to", target, there))
    sending: dict[int, set[int]] = defaultdict(set)
    getting: dict[int, set[int]] = defaultdict(set)
    rounds: dict[int, list[int]] = defaultdict(list)
    for unit, (one, two) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        number = next(number for number in count() if number not in sending[one] and number not in getting[two])
        sending[one].add(number)
        getting[two].add(number)
        rounds[number].append(unit)
    for number in sorted(rounds):
        units = np.array(rounds[number])
        steps: list[Exchange | Local] = []
        moving = source[units] != target[units]
        for some, moves in ((units[moving], True), (units[~moving], False)):
            if some.size:
                src, dst = (_slots(mesh, axis, name, cores[some], ranks[some]) for name, cores, ranks in ends)
                steps.append(
                    b.exchange(axis, src, dst, source[some], target[some])
                    if moves
                    else b.local("copy", dst, src, Cores(axis, np.sort(source[some])), size=numel)
                )
        b.round(*steps, label="redistribute")
    return b.build()


def _slots(mesh: Mesh, axis: str, name: str, cores: Index, ranks: Index) -> Slot:
    index = np.zeros(mesh.length(axis), np.int64)
    index[cores] = ranks
    return Slot(name, index, axis)


def _ranks(cores: Index) -> Index:
    """How many earlier units lie on the same core."""
    order = np.argsort(cores, kind="stable")
    placed = cores[order]
    first = np.searchsorted(placed, placed)
    ranks = np.empty_like(cores)
    ranks[order] = np.arange(len(cores)) - first
    return ranks


def blocks_of(size: int, cores: int) -> Index:
    """[size]: the core that holds each element of a dimension cut into whole tiles."""
    return np.arange(size) // -(-size // cores)


@lru_cache(maxsize=256)
def matrix(name: str, decode: Block, prefill: Block) -> tuple[Tally, ...]:
    """The tally of every step that takes a buffer of weights from decode's place to prefill's, or back."""
    one, two, c = decode.mesh, prefill.mesh, decode.shape
    pairs, heads = c.head_dim // 2, 2 * decode.all_heads
    across, each = {  # along x there are so many units, of so many elements for every one along y
        "norm": (1, 1),
        "wqkv": (pairs, heads),
        "wo": (pairs, 2 * c.num_attention_heads),
        "wgu": (c.intermediate_size, 2),
        "wdown": (c.intermediate_size, 1),
        "bqkv": (pairs, heads),
        "qk_norm": (pairs, heads - 2 * c.num_key_value_heads),
    }[name]
    down = 1 if name in ("bqkv", "qk_norm") else c.hidden_size
    steps = []
    if one.shape != two.shape:
        (rows, cols), (f_rows, f_cols) = _sides(one, two), two.fold
        grids = _grid(one, one.rows, cols, (1, f_cols)), _grid(one, rows, two.cols, two.fold)
        if across > 1:
            columns = blocks_of(across, one.cols) * f_cols, blocks_of(across, two.shape[1])
            steps.append(_moved(grids[0], "x", *columns, -(-down // one.rows) * each, decode.dtype))
        if down > 1:
            lines = blocks_of(down, one.rows) * f_rows, blocks_of(down, two.shape[0])
            steps.append(_moved(grids[1], "y", *lines, -(-across // two.shape[1]) * each, decode.dtype))
    numel = -(-down // two.shape[0]) * -(-across // two.shape[1]) * each
    if name in TURNED:
        steps.append(_sliced(numel, lambda part: turned_schedule(two, part, decode.dtype)))
    if name in MATRICES:
        steps.append(_sliced(numel, lambda part: skewed_schedule(two, part, decode.dtype)))
    return tuple(steps)


def weights(decode: Block, prefill: Block) -> Tally:
    """The tally of moving all layers' weights from one phase's place to the other's."""
    c = decode.shape
    names = ["norm", "norm", *MATRICES] + ["bqkv"] * c.qkv_bias + ["qk_norm"] * c.qk_norm
    layer = sum((step for name in names for step in matrix(name, decode, prefill)), Tally())
    return layer * c.num_hidden_layers


def cache(decode: Block, prefill: Block, source: Index, target: Index) -> Tally:
    """The tally of moving a prompt's keys and values from rows `source` of prefill to rows `target` of decode."""
    one, two, c = prefill.mesh, decode.mesh, decode.shape
    (rows, cols), (f_rows, f_cols), half = _sides(one, two), one.fold, c.head_dim // 2
    each, steps = 2 * c.num_key_value_heads, []
    if one.shape[1] != two.cols:
        columns = blocks_of(half, one.shape[1]), blocks_of(half, two.cols) * f_cols
        held = each * int(np.bincount(source).max())
        steps.append(_moved(_grid(one, one.rows, cols, one.fold), "x", *columns, held, decode.dtype))
    if (source != target * f_rows).any():
        grid = _grid(one, rows, two.cols, (f_rows, 1))
        steps.append(_moved(grid, "y", source, target * f_rows, each * -(-half // two.cols), decode.dtype))
    return sum(steps, Tally()) * (2 * c.num_hidden_layers)


def _moved(grid: Mesh, axis: str, source: Index, target: Index, numel: int, dtype: str) -> Tally:
    """The tally of units moving along an axis; as many as always go together are one."""
    together = np.diff(np.flatnonzero(np.diff(source) | np.diff(target)) + 1, prepend=0, append=len(source))
    unit = int(np.gcd.reduce(together))
    return _sliced(numel * unit, lambda part: redistribute(grid, axis, source[::unit], target[::unit], part, dtype))


def _sides(one: Mesh, two: Mesh) -> tuple[int, int]:
    return max(one.rows, two.rows), max(one.cols, two.cols)


def _grid(like: Mesh, rows: int, cols: int, fold: tuple[int, int]) -> Mesh:
    return Mesh(rows, cols, like.device, fold=fold)


def turned_schedule(mesh: Mesh, numel: int, dtype: str) -> Schedule:
    """Every core's tile of `numel` elements to the core across the diagonal."""
    b = Builder(mesh, "transpose weights")
    b.buffer("w", (numel,), dtype, "input")
    b.buffer("t", (numel,), dtype, "output")
    transpose(b, "w", "t")
    return b.build()


def skewed_schedule(mesh: Mesh, numel: int, dtype: str) -> Schedule:
    """The alignment of weight tiles of `numel` elements."""
    b = Builder(mesh, "skew weights")
    align(b, b.buffer("w", (numel,), dtype, "resident"), "y")
    return b.build()


def _sliced(numel: int, build: Callable[[int], Schedule]) -> Tally:
    """The tally of moving `numel` elements a tile, in as many equal slices as fit the SRAM at once."""
    slices = 1
    while True:
        try:
            return tally(build(-(-numel // slices))) * slices
        except SramError:
            slices *= 2


def between(one: Mesh, two: Mesh, size: int) -> Tally:
    """The tally of `size` bytes a core going from a region to the place of another, every core to its counterpart."""
    hops = sum(abs(a - b) for a, b in zip(one.origin, two.origin, strict=True))
    cores = min(one.cores, two.cores)
    if not hops:
        return Tally()
    c, words = constants(one.device), -(-size // WORD_BYTES)
    cycles = c.stage_cycles + words * c.word_cycles + hops * c.hop_cycles  # as a multicast's circuit is priced
    cost = Cost(
        cycles, link_cycles=words * c.word_cycles, rounds=1, stages=1, hops=hops, link_bytes=cores * size * hops
    )
    return Tally(Account(1, 1, hops, cores, cores * size * hops, size), cost)
