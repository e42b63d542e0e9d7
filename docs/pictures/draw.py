"""The pictures of README.md and docs, drawn beside this file: `make pictures`.

`python docs/pictures/draw.py FOLDER` draws them elsewhere. Nothing is run on a mesh: moves, hops and bytes are counted
from schedules, times are predicted by the cost model. Every picture carries the numbers that it shows, so that a test
can compare them with newly computed ones.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import product as product_of
from pathlib import Path
from typing import Any

import numpy as np

from wafer_triton import Builder, Mesh, Schedule, draw, estimate, price
from wafer_triton.algorithms.gather import gather
from wafer_triton.algorithms.product import recipe
from wafer_triton.count.runs import kind
from wafer_triton.draw.figure import COLOURS, picture, whole_ticks
from wafer_triton.errors import SramError

SIDE, SIZE = 16, 512  # cores a side, and rows of the matrices: a core holds tiles of 32 x 32
WIDE, SIDES = 1440, (60, 90, 120, 180, 240, 360, 480, 720)  # the product whose hops are drawn, over cores a side
ALGORITHMS = {"mesh": "MeshGEMM", "cannon": "Cannon", "summa": "SUMMA", "allgather": "all-gather"}
FEW, MANY = COLOURS[0], COLOURS[5]  # of at most two hops, and of more


def product(algorithm: str, side: int = SIDE) -> Schedule:
    """Return a whole product in fp16 by an algorithm."""
    shapes = ((SIZE, SIZE), (SIZE, SIZE))
    return recipe("gemm", Mesh(side, side), "fp16", shapes, (("algorithm", algorithm),)).schedule


def summed(algorithm: str) -> Schedule:
    """Return a product of a vector and a matrix in fp16, whose partial sums are added by an algorithm."""
    shapes = ((1, SIZE), (SIZE, SIZE))
    return recipe("gemv", Mesh(SIDE, SIDE), "fp16", shapes, (("algorithm", algorithm),)).schedule


@cache
def hops() -> dict[str, list[int]]:
    """Return the hops of one product by each algorithm on square meshes of `SIDES`; without room there are none."""
    counts: dict[str, list[int]] = {}
    for algorithm, name in ALGORITHMS.items():
        for side in SIDES:
            with suppress(SramError):
                counted = estimate.gemm(mesh=side, m=WIDE, k=WIDE, n=WIDE, algorithm=algorithm).hops
                counts.setdefault(name, []).append(counted)
    return counts


def meshgemm(path: Path, dark: bool = False) -> None:
    """Draw the moves of a round of MeshGEMM and of Cannon, and the hops of four algorithms over the mesh."""
    times = hops()["Cannon"][-1] // hops()["MeshGEMM"][-1]
    point = f"On {SIDES[-1]} x {SIDES[-1]} cores the critical path of Cannon is {times} times as long as MeshGEMM's"
    title = "Left: the moves of one round along a row of cores\nRight: hops of the critical path of "
    title += f"[{WIDE}, {WIDE}] x [{WIDE}, {WIDE}], counted"
    with picture(path, 2.7, title, point, dark) as (figure, numbers):
        left, right = figure.subfigures(1, 2, width_ratios=(4, 5))
        many: Any = left.subplots(2, 1, sharex=True, sharey=True)
        for axes, (algorithm, name) in zip(many, list(ALGORITHMS.items())[:2], strict=True):
            numbers[f"longest move of {name}"] = [_moves(axes, name, product(algorithm), dark)]
        many[1].set_xlabel("column of the core")
        whole_ticks(many[1])
        axes = right.subplots()
        axes.set(xscale="log", yscale="log", xlabel="cores a side", ylabel="hops")
        for number, (name, counts) in enumerate(hops().items()):
            sides = SIDES[-len(counts) :]
            numbers[f"hops of {name}"] = counts
            colour = COLOURS[(4 if dark else 0, 5, 2, 1)[number]]
            axes.plot(sides, counts, marker="o", ms=3, color=colour)
            above = {"Cannon": 2, "SUMMA": -6, "all-gather": 7}.get(name, 0)
            axes.annotate(
                name, (sides[-1], counts[-1]), (6, above), textcoords="offset points", color=colour, va="center"
            )
        axes.set_xlim(SIDES[0] * 0.93, SIDES[-1] * 2.1)
        axes.set_xticks(SIDES[::2] + SIDES[-1:], [str(side) for side in SIDES[::2] + SIDES[-1:]])
        axes.minorticks_off()


def _moves(axes: Any, name: str, schedule: Schedule, dark: bool) -> int:
    """Draw the moves along one row of cores in a round that multiplies, as arcs; return links of the longest."""
    round_ = next(round_ for round_ in schedule.rounds if kind(round_) == "product" and round_.exchanges)
    exchange = next(exchange for exchange in round_.exchanges if exchange.axis == "x")
    half_turn = np.linspace(0, np.pi, 60)
    for send, recv in zip(exchange.moves.send, exchange.moves.recv, strict=True):
        middle, radius = (send + recv) / 2, (recv - send) / 2
        colour = MANY if abs(recv - send) > 2 else COLOURS[4] if dark else FEW
        axes.plot(middle - radius * np.cos(half_turn), abs(recv - send) * np.sin(half_turn), colour, lw=1)
    axes.plot(range(SIDE), np.zeros(SIDE), f"{'w' if dark else 'k'}s", ms=3)
    longest = int(abs(exchange.moves.send - exchange.moves.recv).max())
    axes.set(title=f"{name}: {longest} links at most", ylabel="links", ylim=(-1.5, SIDE))
    return longest


def gathers(path: Path) -> None:
    """Draw the cycles of rows of four numbers a core, gathered for each line of 16 cores, by sum and by ring."""
    rows = []
    for words, algorithm in product_of((4, 8, 16, 32, 64, 128), ("sum", "ring")):
        b, size = Builder(SIDE, "gather"), words // 4 * (SIDE if algorithm == "sum" else 1)
        b.buffer("table", (4, 16), "fp32", "weight")
        b.buffer("ids", (size,), "fp32", "input")
        b.buffer("first", (1,), "fp32", "input")
        b.buffer("rows", (size, 4), "fp32", "output")
        gather(b, "table", "ids", "first", "rows", "x", algorithm=algorithm)
        rows.append({"words a core": words, "algorithm": algorithm, "cycles": price(b.build(draft=True)).cycles})
    draw.curves(rows, ["words a core", "algorithm"], "cycles", path, title=f"gather on {SIDE} x {SIDE} cores")


def example(name: str) -> dict[str, Any]:
    """Return the names that a script of docs/examples defines."""
    return runpy.run_path(str(Path(__file__).parents[1] / "examples" / f"{name}.py"))


def replay(path: Path) -> None:
    """Draw the timeline of a weighted selection of 32 of 2,048 trajectories."""
    draw.timeline(example("replay")["Replay"](64, 2048, {"numbers": 64}).selection("weighted", 32), path)


def graph(path: Path) -> None:
    """Draw the cycles of 64 requests over the rows of cores that share a copy of all features."""
    sage, rows = example("graph")["Sage"], []
    for group in (8, 16, 32, 64):
        made = sage(64, 12_800, 227_456, (602, 64, 41), (10, 5), group=group, graph_rows=2, dtype="fp16")
        cycles = price(made.sampling()).cycles + price(made.serving(1)).cycles
        rows.append({"rows that share a copy": group, "cycles": cycles})
    draw.curves(rows, ["rows that share a copy"], "cycles", path, title="64 requests on 64 x 64 cores")


PICTURES: dict[str, Callable[[Path], None]] = {
    "meshgemm.png": meshgemm,
    "meshgemm-dark.png": lambda path: meshgemm(path, dark=True),
    "validation.png": draw.validation,
    "links.png": lambda path: draw.links(summed("star"), path),
    "gather.png": gathers,
    "replay.png": replay,
    "graph.png": graph,
    "timeline.png": lambda path: draw.timeline(product("mesh", 8), path),
}


def draw_all(folder: Path) -> Iterator[Path]:
    """Draw all pictures into a folder."""
    for name, content in PICTURES.items():
        content(folder / name)
        yield folder / name


if __name__ == "__main__":
    for path in draw_all(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent):
        print(f"written: {path}")
