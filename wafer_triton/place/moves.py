"""Moves between prefill and decode: the schedules that re-place weights and cache, and hand an activation on.

A matrix moves from one mesh to another along x, then along y (WaferLLM, OSDI'25, section 4). If the phases hold the
heads in different groups, it moves along x to prefill's columns of these heads. A matrix that the phases cut along
different axes is then transposed, and a matrix that prefill needs skewed is skewed. Both meshes are taken to share a
corner. A large matrix, of which a core cannot hold a second copy, moves in slices: this adds rounds, but no byte. The
moves follow from the partition specs of the buffers of both phases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from math import prod

import numpy as np

from wafer_triton.algorithms.kv_cache import KvCache
from wafer_triton.decoder.block import Block
from wafer_triton.device.mesh import Mesh
from wafer_triton.place.hand_over import from_corner, hand_over
from wafer_triton.place.need import ENDS, cut_along, needs_transpose, tile_shape, weights_of
from wafer_triton.place.regions import Placement
from wafer_triton.place.transfers import Relayout, ScheduleRuns, Shift, grid, owners
from wafer_triton.schedule.rounds import Buffer, Index, Parameter
from wafer_triton.schedule.schedule import Schedule

Schedules = Iterator[ScheduleRuns]  # each is built when it is asked for, so that none is kept to the end
Move = Shift | Relayout
Offset = tuple[int, int]  # rows and columns


def weights_between_phases(placement: Placement) -> Schedules:
    """Return the schedules that move all weights between decode's cores and prefill's; both ways cost the same."""
    return chain(_layer_relayouts(placement), schedules_of(_weight_shifts(placement)))


def _weight_shifts(placement: Placement) -> Iterator[Shift]:
    """Yield the moves of all weights from region to region; blocks that share both regions move together."""
    blocks = _for_weights_only(placement.decode), _for_weights_only(placement.prefill)
    ends = _for_weights_only(placement.head), _for_weights_only(placement.prefill_head)
    prefill_meshes = {name: region.mesh for region in placement.prefill_regions for name in region.blocks}
    counts: Counter[tuple[Mesh, Mesh, str]] = Counter()
    for region in placement.regions:
        counts.update((region.mesh, prefill_meshes[name], name.split()[-1]) for name in region.blocks)
    for (source, target, kind), count in counts.items():
        offset = source.origin[0] - target.origin[0], source.origin[1] - target.origin[1]
        pair, phase = (ends, "decode") if kind in ENDS else (blocks, "prefill")
        for moves in weight_moves(*pair, kind, phase, count, offset).values():
            yield from (move for move in moves if isinstance(move, Shift))


def _layer_relayouts(placement: Placement) -> Schedules:
    """Yield the schedules that transpose and skew the weights of all layers on prefill's cores, region by region."""
    blocks = _for_weights_only(placement.decode), _for_weights_only(placement.prefill)
    mixes = Counter(
        tuple(sorted((kind, count) for kind, count in region.kinds.items() if kind not in ENDS))
        for region in placement.prefill_regions
    )
    for mix, times in mixes.items():
        for kind, count in mix:
            for moves in weight_moves(*blocks, kind, together=count).values():
                relayouts = schedules_of(move for move in moves if isinstance(move, Relayout))
                yield from ((schedule, number * times) for schedule, number in relayouts)


def _for_weights_only(block: Block) -> Block:
    """Return the block with defaults for the fields that do not affect weights, so that moves are planned once."""
    return replace(block, entries=1, policy="shift", groups=None, batch=1, overlap=True, head_tree=None)


def weight_moves(
    decode: Block, prefill: Block, kind: str, phase: str = "prefill", together: int = 1, offset: Offset = (0, 0)
) -> dict[str, tuple[Move, ...]]:
    """Return the moves of `together` blocks' weights from decode's cores to other cores, by buffer.

    The other cores are prefill's, or decode's on another mesh. Decode's region lies `offset` rows and columns from the
    other. A weight is moved first, then transposed and skewed. The reverse moves take the same cycles.
    """
    in_decode = {cut.name: (held, cut) for held in weights_of(decode, kind, "decode").values() for cut in held.holds}
    moves: dict[str, tuple[Move, ...]] = {}
    for buffer in weights_of(prefill, kind, phase).values():
        decode_buffer, _ = in_decode[buffer.holds[0].name]
        pairs = [(in_decode[cut.name][1], cut) for cut in buffer.holds]
        in_regions = prefill.expert_regions is not None and buffer.holds[0].experts is not None
        move = _region_moves if in_regions else _matrix_moves
        moves[buffer.name] = tuple(move(decode, prefill, decode_buffer, buffer, pairs, together, offset))
    return moves


def schedules_of(moves: Iterable[Move]) -> Schedules:
    """Yield the schedule of each move and its number of runs."""
    return (move.schedule_runs for move in moves)


def _matrix_moves(
    decode: Block, prefill: Block, decode_buffer: Buffer, prefill_buffer: Buffer,
    pairs: Sequence[tuple[Parameter, Parameter]], together: int, offset: Offset,
) -> list[Move]:  # fmt: skip
    """Return the moves of a buffer's parameters to their tiles in prefill, over the whole mesh."""
    (f_rows, f_cols), mesh, square = prefill.mesh.fold, decode.mesh, replace(prefill.mesh, origin=(0, 0))
    down_by, right_by, rows, cols = _covering(mesh, square, offset)
    steps, axes = list[Move](), cut_along(pairs[0][0])
    tile = together * sum(prod(tile_shape(cut, prefill.mesh)) for _, cut in pairs)
    down = pairs[0][0].shape[axes["y"]] if "y" in axes else 1
    if "x" in axes:
        decode_cuts, prefill_cuts = zip(*pairs, strict=True)
        source, target = _buffer_ends(decode_cuts, prefill_cuts, axes["x"], mesh, prefill.mesh)
        source, target = (source + right_by[0]) * f_cols, target + right_by[1] * f_cols
        if (source != target).any():
            line = grid(mesh, mesh.rows, cols, (1, f_cols))
            steps.append(Shift(line, "x", source, target, together * -(-down // mesh.rows), prefill_buffer.dtype))
    if "y" in axes:
        lines = (
            (owners(down, mesh.rows) + down_by[0]) * f_rows,
            owners(down, prefill.mesh.shape[0]) + down_by[1] * f_rows,
        )
        if (lines[0] != lines[1]).any():
            numel = tile // -(-down // prefill.mesh.shape[0])
            whole = grid(mesh, rows, prefill.mesh.cols, prefill.mesh.fold)
            steps.append(Shift(whole, "y", *lines, numel, prefill_buffer.dtype))
    if needs_transpose(decode_buffer, prefill_buffer):
        steps.append(Relayout(square, tile, prefill_buffer.dtype))
    return [*steps, Relayout(square, tile, prefill_buffer.dtype, square.shape[0])] if prefill_buffer.skew else steps


def _covering(mesh: Mesh, other: Mesh, offset: Offset) -> tuple[tuple[int, int], tuple[int, int], int, int]:
    """Return the rows above each mesh and the columns left of it in the smallest grid with both, and its sides."""
    down_by, right_by = ((max(0, shift), max(0, -shift)) for shift in offset)
    rows = max(mesh.rows + down_by[0], other.rows + down_by[1])
    return down_by, right_by, rows, max(mesh.cols + right_by[0], other.cols + right_by[1])


def _buffer_ends(
    decode_cuts: tuple[Parameter, ...], prefill_cuts: tuple[Parameter, ...], dim: int, decode: Mesh, prefill: Mesh
) -> tuple[Index, Index]:
    """Return `_dimension_ends` for all parameters of a buffer, sorted by the cores in decode, then in prefill."""
    ends = [_dimension_ends(*pair, dim, decode, prefill) for pair in zip(decode_cuts, prefill_cuts, strict=True)]
    source, target = (np.concatenate(each) for each in zip(*ends, strict=True)) if len(ends) > 1 else ends[0]
    if (np.diff(source) < 0).any() or (np.diff(target) < 0).any():
        order = np.lexsort((target, source))
        source, target = source[order], target[order]
    return source, target


def _dimension_ends(
    decode_cut: Parameter, prefill_cut: Parameter, dim: int, decode: Mesh, prefill: Mesh
) -> tuple[Index, Index]:
    """Return, for each element of a dimension, its core along an axis in decode, and in prefill.

    An element with several copies is listed for each of them.
    """
    axis = next(axis for axis, number in cut_along(prefill_cut).items() if number == dim)
    if all(cut.rows is None and cut.sizes.get("s", 1) == 1 for cut in (decode_cut, prefill_cut)):
        return owners(decode_cut.shape[dim], decode.length("x")), owners(prefill_cut.shape[dim], prefill.length(axis))
    held = [
        _held_elements(decode_cut, dim, decode.length("x")), _held_elements(prefill_cut, dim, prefill.length(axis))
    ]  # fmt: skip
    copies = [np.bincount(elements, minlength=decode_cut.shape[dim]) for _, elements in held]
    most = np.maximum(*copies)
    element = np.repeat(np.arange(len(most)), most)
    copy = np.arange(len(element)) - np.repeat(np.cumsum(most) - most, most)
    ends = []
    for (cores, elements), count in zip(held, copies, strict=True):
        order = np.argsort(elements, kind="stable")
        first = np.cumsum(count) - count
        ends.append(cores[order][first[element] + copy * count[element] // most[element]])
    return ends[0], ends[1]


def _held_elements(cut: Parameter, dim: int, cores: int) -> tuple[Index, Index]:
    """Return [n] each: the core that holds an element of a parameter along `dim`, and its index; padding left out."""
    rows = cut.rows if cut.rows is not None and cut.dim == dim else None
    elements = np.arange(cut.shape[dim]) if rows is None else rows.reshape(-1)
    experts = cut.sizes.get("s", 1)  # several experts of a common width, one after the other
    width = len(elements) // experts
    core = np.arange(len(elements)) % width // -(-width // cores)
    return core[elements >= 0], elements[elements >= 0]


def _region_moves(
    decode: Block, prefill: Block, decode_buffer: Buffer, prefill_buffer: Buffer,
    pairs: Sequence[tuple[Parameter, Parameter]], together: int, offset: Offset,
) -> list[Move]:  # fmt: skip
    """Return the moves of all experts' weights of a buffer to their regions.

    In decode every expert lies over the whole mesh, its columns on columns of cores. It moves along x to the columns of
    its region, then along y to the rows. Experts of neighbouring regions move together. A buffer with rows and columns
    exchanged in decode moves to the region across the diagonal first, and is transposed there.
    """
    e, regions = decode.shape.experts, prefill.expert_regions
    assert e is not None and regions is not None, "a block whose experts have regions"
    mesh, square = decode.mesh, replace(prefill.mesh, origin=(0, 0))
    f_rows, f_cols = square.fold
    down_by, right_by, rows, cols = _covering(mesh, square, offset)
    size, held = square.shape[0] // regions.side, regions.held(e)
    f, share = -(-e.width // size), prefill.share(decode.shape.hidden_size, "x")
    parts = together * len([cut for cut in prefill_buffer.holds if cut.experts == prefill_buffer.holds[0].experts])

    def to_regions(source: Index, within: Index, by: tuple[int, int], fold: int) -> tuple[Index, Index]:
        """Return units on their cores in decode, and on the cores of all regions side by side."""
        starts = np.arange(regions.side)[:, None] * size
        return np.tile(source, regions.side) + by[0] * fold, (starts + within).reshape(-1) + by[1] * fold

    down, wide = np.arange(decode.shape.hidden_size), np.arange(e.width)
    along_x = to_regions(owners(e.width, mesh.cols) * f_cols, wide // f, right_by, f_cols)
    along_y = to_regions(owners(len(down), mesh.rows) * f_rows, down // (regions.side * share), down_by, f_rows)
    tile = -(-len(down) // mesh.rows) * parts
    # first one expert of each region on a line, then the next: regions on a line times experts of a region
    steps: list[Move] = [
        Shift(grid(mesh, mesh.rows, cols, (1, f_cols)), "x", *along_x, tile, prefill_buffer.dtype, regions.side * held),
        Shift(grid(mesh, rows, square.cols, square.fold), "y", *along_y, f * parts, prefill_buffer.dtype, held),
    ]
    numel = held * f * parts * regions.side * share
    if needs_transpose(decode_buffer, prefill_buffer):
        steps.append(Relayout(square, numel, prefill_buffer.dtype))
    return [*steps, Relayout(square, numel, prefill_buffer.dtype, size)]


def cache_schedules(placement: Placement, source: Index, target: Index, right: int = 0) -> Schedules:
    """Return the schedules that move keys and values from rows `source` of prefill to rows `target` of decode.

    Caches of the layers in one of prefill's regions move together. Decode's first column is `right` columns from
    prefill's.
    """
    counts = Counter(region.kinds["attention"] for region in placement.prefill_regions)
    phases = placement.decode, placement.prefill, source, target
    return schedules_of(
        shift for each, times in counts.items() if each for shift in _cache_shifts(*phases, 2 * each, right, times)
    )


def prompt_schedules(placement: Placement, tokens: int, right: int = 0) -> Schedules:
    """Return the `cache_schedules` of a prompt of `tokens` tokens."""
    decode, prefill = placement.decode, placement.prefill
    rows = decode.mesh.shape[0]
    cache = KvCache(rows, max(decode.entries, -(-tokens // rows)), "shift", tokens)
    source = prompt_rows(prefill.mesh.shape[0], tokens, placement.chunk_tokens)
    return cache_schedules(placement, source, cache.row_of(tokens), right)


def _cache_shifts(
    decode: Block, prefill: Block, source: Index, target: Index, together: int, right: int, times: int = 1
) -> tuple[Shift, ...]:
    """Return the moves of `together` caches from rows of prefill to rows of decode, `times` times."""
    mesh, decode_mesh = prefill.mesh, decode.mesh
    down, cols = max(mesh.rows, decode_mesh.rows), max(mesh.cols, decode_mesh.cols)
    f_rows, f_cols = mesh.fold
    steps = list[Shift]()
    if decode.layout != prefill.layout or right:
        c = decode.shape
        rows = [block.layout.rows("k") if c.rotary else None for block in (decode, prefill)]
        cuts = [Parameter("", (c.kv_width,), "(x n)", kept) for kept in rows]
        columns, prefill_columns = _dimension_ends(cuts[0], cuts[1], 0, decode_mesh, mesh)
        order = np.lexsort((columns, prefill_columns))
        line, tokens = grid(mesh, mesh.rows, right + cols, mesh.fold), int(np.bincount(source).max())
        target_columns = (right + columns[order]) * f_cols
        steps.append(Shift(line, "x", prefill_columns[order], target_columns, tokens * together, decode.dtype, times))
    if (source != target * f_rows).any():
        line, numel = grid(mesh, down, decode_mesh.cols, (f_rows, 1)), decode.kv_heads * decode.head_width * together
        steps.append(Shift(line, "y", source, target * f_rows, numel, decode.dtype, times))
    return tuple(steps)


def prompt_rows(side: int, count: int, tokens: int) -> Index:
    """Return [count]: the row of each token of a prompt, in chunks of `tokens` on each of `side` rows."""
    rows = []
    for start in range(0, count, side * tokens):
        chunk = min(count - start, side * tokens)
        rows.append(KvCache(side, chunk).row_of(chunk))
    return np.concatenate(rows)


def ways(meshes: Sequence[Mesh], block: Block) -> list[tuple[Mesh, Mesh]]:
    """Return from where to where the activation of one decode step moves through the meshes of all regions.

    In a tied model it starts at the embedding, which lies with the head in the last region. Pairs are as `from_corner`
    returns them.
    """
    tied = block.shape.tie_word_embeddings and len(meshes) > 1
    return [from_corner(*pair) for pair in pairwise([meshes[-1], *meshes] if tied else meshes)]


def hand_overs(meshes: Sequence[Mesh], block: Block) -> tuple[Schedule, ...]:
    """Return the schedules of all `ways`."""
    return tuple(hand_over(*way, block.shape.hidden_size, block.batch, block.dtype) for way in ways(meshes, block))
