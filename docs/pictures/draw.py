"""The pictures of README.md and docs/gallery.md, drawn beside this file: `make pictures`.

`python docs/pictures/draw.py FOLDER` draws them elsewhere. Nothing is run on a mesh: moves, hops and bytes are counted
from schedules, times are predicted by the cost model. Every picture carries the numbers that it shows, so that a test
can compare them with those of today.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from wafer_triton import Mesh, Schedule, draw
from wafer_triton.compare import compare_gemm
from wafer_triton.cost.calibrate.paper import cells
from wafer_triton.cost.constants import constants
from wafer_triton.cost.layers import decode_block
from wafer_triton.cost.search import sweep
from wafer_triton.count.runs import kind
from wafer_triton.draw import serving
from wafer_triton.draw.figure import AMOUNTS, COLOURS, picture, whole_ticks
from wafer_triton.draw.trace import Trace, trace
from wafer_triton.place.regions import decode_regions
from wafer_triton.schedule import decode
from wafer_triton.schedule.block import Block
from wafer_triton.schedule.block import schedule as built
from wafer_triton.schedule.product import recipe
from wafer_triton.serve.policies import Policy, Shared
from wafer_triton.serve.report import Slo, flat, report
from wafer_triton.serve.simulate import simulate
from wafer_triton.serve.sizes import Given, Load, priced
from wafer_triton.serve.workload import both, poisson, uniform
from wafer_triton.shapes import shape_of

SIDE, SIZE = 16, 512  # cores a side, and rows of the matrices: a core holds tiles of 32 x 32
ALGORITHMS = {"mesh": "MeshGEMM", "cannon": "Cannon"}
FEW, MANY = COLOURS[0], COLOURS[5]  # of at most two hops, and of more


def product(algorithm: str, side: int = SIDE) -> Schedule:
    """A whole product in fp16 by an algorithm."""
    shapes = ((SIZE, SIZE), (SIZE, SIZE))
    return recipe("gemm", Mesh(side, side), "fp16", shapes, (("algorithm", algorithm),)).schedule


def attention() -> Schedule:
    """The first part of a decode layer's attention block of SmolLM2-135M."""
    block = Block(shape_of("smollm2-135m"), Mesh(16, 16), "fp16", entries=32)
    part, args = decode.layer(block, SIZE)[0]
    return built(part, block, *args)


def meshgemm(path: Path) -> None:
    """MeshGEMM beside Cannon: the moves of a round, hops over the rounds, bytes over links."""
    schedules = {name: product(algorithm) for algorithm, name in ALGORITHMS.items()}
    traces = {name: trace(schedule) for name, schedule in schedules.items()}
    title = f"[{SIZE}, {SIZE}] x [{SIZE}, {SIZE}] in fp16 on {SIDE} x {SIDE} cores of a WSE-2, counted from its rounds"
    with picture(path, 3.6, title) as (figure, numbers):
        grid: Any = figure.subplots(2, 3, width_ratios=(4, 3, 2))
        top = max(int(traced.links["east"].max()) for traced in traces.values())
        for line, (name, traced) in zip(grid, traces.items(), strict=True):
            numbers[f"hops of {name}"] = traced.counts["hops"].tolist()
            _moves(line[0], name, schedules[name])
            _hops(line[1], traced)
            image = line[2].imshow(traced.links["east"], vmin=0, vmax=top, cmap=AMOUNTS, interpolation="nearest")
            line[2].set(title="bytes sent to the east", xlabel="column", ylabel="row")
        for axes in grid.flat:
            whole_ticks(axes)
        for axes in grid[0]:
            axes.set_xlabel("")
        figure.colorbar(image, ax=list(grid[:, 2]), label="bytes over the run")


def _moves(axes: Any, name: str, schedule: Schedule) -> None:
    """The moves along one row of cores in the first round that multiplies, as arcs from sender to receiver."""
    round_ = next(round_ for round_ in schedule.rounds if kind(round_) == "product" and round_.exchanges)
    exchange = next(exchange for exchange in round_.exchanges if exchange.axis == "x")
    half_turn = np.linspace(0, np.pi, 60)
    for send, recv in zip(np.atleast_2d(exchange.send)[0], np.atleast_2d(exchange.recv)[0], strict=True):
        middle, radius = (send + recv) / 2, (recv - send) / 2
        colour = MANY if abs(recv - send) > 2 else FEW
        axes.plot(middle - radius * np.cos(half_turn), abs(recv - send) * np.sin(half_turn), colour, lw=1)
    axes.plot(range(SIDE), np.zeros(SIDE), "ks", ms=3)
    longest = int(abs(exchange.send - exchange.recv).max())
    axes.set(title=f"{name}: tiles cross at most {longest} links a round", ylabel="links crossed")
    axes.set(xlabel="column of the core", ylim=(-1, SIDE))


def _hops(axes: Any, traced: Trace) -> None:
    """Hops of the longest move of each round."""
    hops = traced.counts["hops"]
    axes.bar(np.arange(len(hops)) + 0.5, hops, 0.8, color=np.where(hops > 2, MANY, FEW))
    axes.set(title="longest move of each round", xlabel="round", ylabel="hops", ylim=(0, SIDE))


def wafer(path: Path) -> None:
    """Llama 3 8B for decode on a WSE-2."""
    mesh = Mesh(180, 180)
    block = decode_block(shape_of("llama3-8b"), mesh, SIZE, constants(mesh.device))
    draw.wafer(decode_regions(block), path, f"Llama 3 8B on meshes of {mesh} of a WSE-2, {SIZE} tokens of cache")


def tree_groups(path: Path) -> None:
    """Groups of a K-tree."""
    rows = sweep("gemv", "groups", range(4, 41, 6), mesh=360, k=4096, n=4096)
    draw.sweep(rows, path, show="cycles", title="MeshGEMV [4096] x [4096, 4096] on 360 x 360 cores of a WSE-2")


def served(path: Path) -> None:
    """Latency of Llama 3 8B on a WSE-2 against the rate of requests, and its knee."""
    load, given = Load(64, 2048, 1024, 1024, 211), Given("187", "187")
    times = priced("shared", shape_of("llama3-8b"), Mesh(1, 1).device, load, given)
    lengths, policy = both(uniform(256, 1024), uniform(50, 370)), Policy(Shared(16384, 64), chunk=748)
    rows = []
    for rate in (1, 2, 4, 8, 12, 16, 20):
        run = simulate(poisson(rate, 1000, lengths), times, policy)
        rows.append({"rate": rate} | flat(report(run, times.pool, times.device, slo=Slo(2.0, 0.025))))
    title = "Llama 3 8B on a WSE-2, prompts of 256 to 1,024 tokens, answers of 50 to 370, goodput: TTFT 2 s, TPOT 25 ms"
    serving.latency(rows, "rate", path, title)


PICTURES: dict[str, Callable[[Path], None]] = {
    "meshgemm.png": meshgemm,
    "reproduction.png": lambda path: draw.reproduction(cells(), path),
    "validation.png": draw.validation,
    "wafer.png": wafer,
    "schedule.png": lambda path: draw.schedule(attention(), path),
    "mesh.png": lambda path: draw.mesh(product("mesh", 8), path, round=5),
    "links.png": lambda path: draw.links(product("cannon"), path),
    "sram.png": lambda path: draw.sram(product("allgather", 24), path),
    "timeline.png": lambda path: draw.timeline(product("mesh", 8), path),
    "compare.png": lambda path: draw.compare(compare_gemm(120, 1440, 1440, 1440, values=False), path),
    "sweep.png": tree_groups,
    "serving.png": served,
}


def draw_all(folder: Path) -> Iterator[Path]:
    """Draw all pictures into a folder."""
    for name, content in PICTURES.items():
        content(folder / name)
        yield folder / name


if __name__ == "__main__":
    for path in draw_all(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent):
        print(f"written: {path}")
