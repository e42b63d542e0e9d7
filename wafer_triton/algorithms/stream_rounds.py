"""The rounds of streams: gather streams move copies of a buffer, reduce streams move sums (TEMP).

**A reduce stream** is a gather stream backwards in time: copies become sums. So a block of sums visits every position
and ends at its own. Both take the same transfers over the same links.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from wafer_triton.algorithms.stream import OWN, Die, Group, Stream
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import MeshError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Exchange, Local

Compute = Callable[[int, str, Cores | None], Sequence[Local]]  # (step, the block's buffer, dies) to local operations


def gather(
    b: Builder, stream: Stream, groups: Sequence[Group], buffer: str, compute: Compute, label: str = "stream"
) -> None:
    """Add the rounds of a gather stream: all groups at once move copies of `buffer`.

    In step t a die has block `stream.order[position][t]`, and runs the operations that `compute` gives for the buffer
    that holds the block. The next block arrives meanwhile.
    """
    lanes = _lanes(b, stream, buffer)
    for step in range(stream.size):
        ops = [
            op
            for lane, where in _lanes_in_use(b.mesh, stream, groups, step)
            for op in compute(step, lanes[lane], where)
        ]
        ops += [
            b.local("copy", lanes[dst], lanes[src], _cores(b.mesh, dies), size=b.buffers[buffer].numel)
            for (src, dst), dies in _copies(stream, groups, step)
        ]
        exchanges = []
        if step < stream.size - 1:
            pairs = [(send.src, send.dst, send.sender, send.receiver) for send in stream.sends[step]]
            exchanges = list(_exchanges(b, groups, lanes, pairs))
        b.round(*exchanges, *ops, label=label)


def reduce(
    b: Builder, stream: Stream, groups: Sequence[Group], buffer: str, compute: Compute, label: str = "stream"
) -> None:
    """Add the rounds of a reduce stream: `buffer` of every die ends with the sum of all dies' parts of its block.

    In step t, from N - 1 down to 0, `compute` writes a die's part of block `stream.order[position][t]` to the buffer
    that it is given: `buffer` itself, which is free until the last sum. One round moves sums while parts are computed,
    the next adds them.
    """
    stream = stream.without_unused_sends()
    lanes = _lanes(b, stream, buffer)
    size = b.buffers[buffer].numel
    for step in reversed(range(stream.size)):
        parity = step % 2
        arrivals: dict[tuple[int, str], list[str]] = defaultdict(list)  # lanes to be added to a lane of a position
        exchanges = []
        if step < stream.size - 1:
            backwards = []
            for send in stream.sends[step]:
                lands = f"{send.dst[:-1]}{parity}"
                backwards.append((send.dst, lands, send.receiver, send.sender))
                arrivals[send.sender, send.src].append(lands)
            exchanges = list(_exchanges(b, groups, lanes, backwards))
        for hold in stream.holds[step]:
            arrivals[hold.position, hold.src].append(hold.dst)
        b.round(*exchanges, *compute(step, buffer, None), label=label)
        sums: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        late: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for position, lane in enumerate(stream.compute_lanes[step]):
            arrived = arrivals.pop((position, lane), [])
            if lane == OWN:
                for number, other in enumerate(sorted(arrived)):
                    (late if number else sums)[OWN, OWN, other].append(position)
                continue
            if lane not in arrived:
                sums[lane, OWN, ""].append(position)  # the first part of a block
            else:
                sums[lane, lane, OWN].append(position)
            for other in arrived:
                if other != lane:
                    late[lane, lane, other].append(position)
        for (position, lane), arrived in arrivals.items():  # blocks that only pass
            if lane not in arrived:
                sums[lane, arrived.pop(0), ""].append(position)
            for other in arrived:
                if other != lane:
                    late[lane, lane, other].append(position)
        ops = []
        for (out, first, second), positions in (*sorted(sums.items()), *sorted(late.items())):
            where = _cores(b.mesh, [group[position] for group in groups for position in positions])
            ins = [lanes[first], lanes[second]] if second else lanes[first]
            ops.append(b.local("add" if second else "copy", lanes[out], ins, where, size=size))
        b.round(*ops, label=label)


def _lanes(b: Builder, stream: Stream, buffer: str) -> dict[str, str]:
    """Return the buffer of every lane, and declare them: left and right streams have two each, which take turns."""
    sides = sorted({lane[:-1] for lane in stream.lanes})
    return {OWN: buffer} | {
        f"{side}{parity}": b.like(f"{buffer}.{side}{parity}", buffer) for side in sides for parity in (0, 1)
    }


def _lanes_in_use(mesh: Mesh, stream: Stream, groups: Sequence[Group], step: int) -> Iterator[tuple[str, Cores | None]]:
    """Yield each lane that dies compute with in a step, and these dies."""
    positions: dict[str, list[int]] = defaultdict(list)
    for position, lane in enumerate(stream.compute_lanes[step]):
        positions[lane].append(position)
    for lane, places in sorted(positions.items()):
        yield lane, _cores(mesh, [group[place] for group in groups for place in places])


def _copies(stream: Stream, groups: Sequence[Group], step: int) -> Iterator[tuple[tuple[str, str], list[Die]]]:
    """Yield each (source lane, target lane) that is copied in a step, and the dies that copy."""
    table: dict[tuple[str, str], list[int]] = defaultdict(list)
    for hold in stream.holds[step]:
        table[hold.src, hold.dst].append(hold.position)
    for ends, places in sorted(table.items()):
        yield ends, [group[place] for group in groups for place in places]


def _cores(mesh: Mesh, dies: Sequence[Die]) -> Cores | None:
    """Return the dies as `Cores` along x; None for all."""
    if len(dies) == mesh.cores:
        return None
    by_row: dict[int, list[int]] = defaultdict(list)
    for row, col in dies:
        by_row[row].append(col)
    rows = sorted(by_row)
    lists = [sorted(by_row[row]) for row in rows]
    lines = np.array(rows)
    if all(cols == lists[0] for cols in lists):
        return Cores("x", np.array(lists[0]), None if len(rows) == mesh.rows else lines)
    return Cores("x", _padded(lists), lines)


def _exchanges(
    b: Builder, groups: Sequence[Group], lanes: dict[str, str], sends: Sequence[tuple[str, str, int, int]]
) -> Iterator[Exchange]:
    """Yield the exchanges of sends (source lane, target lane, sender, receiver) in all groups, by axis and lanes."""
    table: dict[tuple[str, str, str], dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for src, dst, here, there in sends:
        for group in groups:
            (row, col), (to_row, to_col) = group[here], group[there]
            if row == to_row:
                table["x", src, dst][row].append((to_col, col))
            elif col == to_col:
                table["y", src, dst][col].append((to_row, row))
            else:
                raise MeshError(f"{b.name}: dies {group[here]} and {group[there]} are in no common row or column")
    for (axis, src, dst), by_line in sorted(table.items()):
        lines = sorted(by_line)
        pairs = [sorted(by_line[line]) for line in lines]
        across = b.mesh.rows if axis == "x" else b.mesh.cols
        numbers = None if len(lines) == across else lines
        if all(line == pairs[0] for line in pairs):
            recv, send = np.array(pairs[0]).T
        else:
            recv = _padded([[to for to, _ in line] for line in pairs])
            send = _padded([[frm for _, frm in line] for line in pairs])
        yield b.exchange(axis, lanes[src], lanes[dst], send, recv, numbers)


def _padded(lists: Sequence[Sequence[int]]) -> np.ndarray:
    """Return rows of numbers, -1 after the shorter ones."""
    table = np.full((len(lists), max(map(len, lists))), -1, np.int64)
    for row, numbers in zip(table, lists, strict=True):
        row[: len(numbers)] = numbers
    return table
