"""Schedules of random steps: loops in loops whose lines turn, rings, and trees of several buffers along both axes."""

import numpy as np
from numpy.random import Generator

from wafer_triton import price
from wafer_triton.cost.constants import constants
from wafer_triton.count.account import account, link_loads
from wafer_triton.count.routes import routes
from wafer_triton.count.verdict import verdict
from wafer_triton.device import PRESETS
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Exchange, Moves, Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Part, Ring, Stages, Tree

MESHES = ("1x4", "2x3", "3x2", "3", "4x2", "3x4", "lcm 2x3", "lcm 1x3")
BUFFERS = {"a": ((2,), "fp32", 1), "b": ((3,), "fp16", 1), "c": ((2,), "fp32", 3), "d": ((1,), "fp16", 2)}
SIDE = 2  # of a tile of products


def schedule(seed: int) -> Schedule:
    """Build a draft of up to four random steps; messages are right, though several may go to one slot."""
    rng = np.random.default_rng(seed)
    name = MESHES[seed % len(MESHES)]
    mesh = as_mesh(name.removeprefix("lcm "), PRESETS["wse2"])
    b = builder(mesh.square() if "lcm" in name else mesh, f"steps at random, {seed}")
    for _ in range(rng.integers(1, 5)):
        add_step(b, rng, depth=0, fixed="")
    return b.build(draft=True)


def exchanges(seed: int, mesh: Mesh) -> Schedule:
    """Build four rounds of random exchanges, on all lines, on some, or different from line to line."""
    rng = np.random.default_rng(seed)
    b = builder(mesh, f"exchanges at random, {seed}")
    for _ in range(4):
        b.round(*(exchange(b, rng, "") for _ in range(rng.integers(1, 5))), *local(b, rng))
    return b.build(draft=True)


def builder(mesh: Mesh, name: str) -> Builder:
    """Declare tiles of several sizes and dtypes, each with two mailboxes, and matrices."""
    b = Builder(mesh, name)
    for buffer, (tile, dtype, slots) in BUFFERS.items():
        b.buffer(buffer, tile, dtype, "state", slots)
        for way in ("up", "down"):
            b.like(f"{buffer}.{way}", buffer)
    for matrix in ("p", "q", "sums"):
        b.buffer(matrix, (SIDE, SIDE), "fp32", "state")
        b.like(f"{matrix}.next", matrix)
    return b


def add_step(b: Builder, rng: Generator, depth: int, fixed: str) -> None:
    """Add a random step; in loops that turn lines exchanges along the other axis, one of `fixed`, stay the same."""
    kind = rng.choice(["round", "round", "ring", "tree", "loop", "loop"][: 6 if depth < 2 else 4])
    if kind == "round":
        moves = [exchange(b, rng, fixed) for _ in range(rng.integers(0, 3))]
        b.round(*moves, *local(b, rng), label=str(rng.choice(["", "label"])))
    elif kind == "ring":
        hands = tuple((Slot(name), Slot(f"{name}.next")) for name in "pq")
        shifts = tuple(turn(b.mesh, axis, rng) for axis in rng.permutation(["x", "y"]).tolist())
        product = b.local("gemm", "sums", ("p", "q"), m=SIDE, k=SIDE, n=SIDE, add=bool(rng.random() < 0.3))
        b.steps.append(Ring(product, hands, shifts, int(rng.integers(1, 7)), "ring"))
    elif kind == "tree":
        names = rng.permutation(list(BUFFERS))[: rng.integers(1, 3)].tolist()
        parts = tuple(part(b, rng, name) for name in names)
        axes = [axis for axis in "xy" if axis not in fixed]
        if axes and (made := stages(b.mesh, rng, axes)).each:
            b.steps.append(Tree(str(rng.choice(["add", "maximum"])), parts, made, "tree"))
    else:
        kind, other, count = (("rows", "y", b.mesh.shape[0]), ("cols", "x", b.mesh.shape[1]))[rng.integers(2)]
        turns = other not in fixed and rng.random() < 0.6
        times = int(rng.integers(1, 6))
        with b.loop(times, **({kind: np.roll(np.arange(count), rng.integers(count))} if turns else {})):
            for _ in range(rng.integers(1, 4)):
                add_step(b, rng, depth + 1, fixed + other * turns)


def turn(mesh: Mesh, axis: str, rng: Generator) -> Moves:
    """Return whole circles along an axis."""
    length = mesh.length(axis)
    return Moves(axis, np.arange(length), np.roll(np.arange(length), -int(rng.integers(length))))


def exchange(b: Builder, rng: Generator, fixed: str) -> Exchange:
    src = rng.choice(list(BUFFERS))
    slots, axis = BUFFERS[src][2], str(rng.choice(["x", "y"]))
    index = int(rng.integers(slots)) if rng.random() < 0.8 else None
    ends = Slot(str(src), index), Slot(f"{src}.{rng.choice(['up', 'down'])}", index)
    if axis in fixed:
        return Exchange(turn(b.mesh, axis, rng), *ends)
    length, across = b.mesh.length(axis), b.mesh.length("y" if axis == "x" else "x")
    lines = None if rng.random() < 0.4 else np.sort(rng.permutation(across)[: rng.integers(1, across + 1)])
    recv = rng.permutation(length)[: rng.integers(1, length + 1)]
    send = rng.integers(0, length, recv.size)
    if rng.random() < 0.3:
        count = across if lines is None else len(lines)
        keep = rng.random((count, recv.size)) < 0.7
        send, recv = np.where(keep, send, -1), np.where(keep, recv, -1)
    return Exchange(b.exchange(axis, src, ends[1], send, recv, lines).moves, *ends)


def local(b: Builder, rng: Generator) -> list:
    name = str(rng.choice(list(BUFFERS)))
    axis = str(rng.choice(["x", "y"]))
    where = None if rng.random() < 0.5 else Cores(axis, [int(rng.integers(b.mesh.length(axis)))])
    size = b.buffers[name].numel
    ops = {
        "add": ("add", name, (name, f"{name}.up"), where, {"size": size}),
        "copy": ("copy", f"{name}.down", name, where, {"size": size}),
        "gemm": ("gemm", "sums", ("p", "q"), where, {"m": SIDE, "k": SIDE, "n": SIDE}),
    }
    op, outs, ins, where, params = ops[str(rng.choice(list(ops)))]
    return [b.local(op, outs, ins, where, **params)] if rng.random() < 0.6 else []


def part(b: Builder, rng: Generator, name: str) -> Part:
    buffer = b.buffers[name]
    index = int(rng.integers(buffer.slots)) if rng.random() < 0.8 else None
    size = buffer.numel * (buffer.slots if index is None else 1)
    return Part(Slot(name, index), (Slot(f"{name}.up", index), Slot(f"{name}.down", index)), size)


def stages(mesh: Mesh, rng: Generator, axes: list[str]) -> Stages:
    """Return random stages in which a core sends once, after all that it receives."""
    sent, each = np.zeros(mesh.shape, bool), []
    axis = str(rng.choice(axes))
    for _ in range(rng.integers(1, 5)):
        axis = str(rng.choice(axes)) if rng.random() < 0.2 else axis
        done = sent if axis == "x" else sent.T
        across = len(done)
        lines = None if rng.random() < 0.6 else np.sort(rng.permutation(across)[: rng.integers(1, across + 1)])
        free = rng.permutation(np.flatnonzero(~(done if lines is None else done[lines]).any(0)))
        pairs = [(low, high) for low, high in zip(free[::2], free[1::2], strict=False)][: rng.integers(1, 3)]
        stage = []
        for way in (0, 1):
            ends = np.array([sorted(pair)[:: -1 if way else 1] for pair in pairs[way::2]])
            if ends.size:
                stage.append((way, Moves(axis, ends[:, 0], ends[:, 1], lines)))
                done[np.ix_(np.arange(across) if lines is None else lines, ends[:, 0])] = True
        if stage:
            each.append(tuple(stage))
    return Stages(tuple(each))


def facts(made: Schedule) -> dict[str, object]:
    """Return all counts of a schedule, its price, its loads and routes, and its letters of PLMR."""
    cost, needed = price(made), routes(made)
    parts = {f"price: {name}": round(value, 6) for name, value in vars(cost).items()}
    loads = {way: load.tolist() for way, load in link_loads(made).items()}
    counts = account(made)
    letters = verdict(counts, made.mesh, constants(made.mesh.device).of(made.family), needed.colours, 1.0)
    return vars(counts) | parts | loads | letters | {"routers": needed.per_core.tolist(), "colours": needed.colours}
