"""The pictures of README.md and docs/gallery.md, drawn beside this file: `make pictures`.

`python docs/pictures/draw.py FOLDER` draws them elsewhere. Nothing is run on a mesh: moves, hops and bytes are counted
from schedules, times are predicted by the cost model. Every picture carries the numbers that it shows, so that a test
can compare them with newly computed ones.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from wafer_triton import Mesh, Schedule, draw, estimate
from wafer_triton.compare.algorithms import compare_gemm
from wafer_triton.compare.sweep import sweep
from wafer_triton.cost.calibrate.paper import cells
from wafer_triton.cost.constants import constants
from wafer_triton.cost.layers import decode_block
from wafer_triton.count.runs import kind
from wafer_triton.draw import serving
from wafer_triton.draw.figure import COLOURS, MARKERS, REST, picture, whole_ticks
from wafer_triton.draw.times import of_token
from wafer_triton.errors import SramError
from wafer_triton.place.regions import decode_regions
from wafer_triton.schedule.product import recipe
from wafer_triton.serve.load import Given, Load
from wafer_triton.serve.policies import Policy, Shared
from wafer_triton.serve.report import Slo, flat, report
from wafer_triton.serve.simulate import simulate
from wafer_triton.serve.sizes import priced
from wafer_triton.serve.workload import both, poisson, uniform
from wafer_triton.shape.read import shape_of

SIDE, SIZE = 16, 512  # cores a side, and rows of the matrices: a core holds tiles of 32 x 32
WIDE, SIDES = 1440, (60, 90, 120, 180, 240, 360, 480, 720)  # the product whose cycles are drawn, over cores a side
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
def cycles() -> dict[str, list[estimate.Kernel]]:
    """Return the prices of one product by each algorithm on square meshes of `SIDES`; without room there is none."""
    prices: dict[str, list[estimate.Kernel]] = {}
    for algorithm, name in ALGORITHMS.items():
        for side in SIDES:
            with suppress(SramError):
                price = estimate.gemm(mesh=side, m=WIDE, k=WIDE, n=WIDE, algorithm=algorithm)
                prices.setdefault(name, []).append(price)
    return prices


def meshgemm(path: Path, dark: bool = False) -> None:
    """Draw the moves of a round of MeshGEMM and of Cannon, and the cycles of four algorithms over the mesh."""
    ends = {name: prices[-1].cycles for name, prices in cycles().items()}
    cannon, summa, gather = (f"{ends[name] / ends['MeshGEMM']:.2g}" for name in list(ends)[1:])
    point = f"On {SIDES[-1]} x {SIDES[-1]} cores Cannon takes {cannon} times the cycles of MeshGEMM, "
    point += f"SUMMA {summa}, all-gather {gather}"
    title = "Left: the moves of one round along a row of cores\nRight: "
    title += f"[{WIDE}, {WIDE}] x [{WIDE}, {WIDE}] in fp16 on a WSE-2, with error bands"
    with picture(path, 2.7, title, point, dark) as (figure, numbers):
        left, right = figure.subfigures(1, 2, width_ratios=(4, 5))
        many: Any = left.subplots(2, 1, sharex=True, sharey=True)
        for axes, (algorithm, name) in zip(many, list(ALGORITHMS.items())[:2], strict=True):
            numbers[f"longest move of {name}"] = [_moves(axes, name, product(algorithm), dark)]
        many[1].set_xlabel("column of the core")
        whole_ticks(many[1])
        axes = right.subplots()
        axes.set(xscale="log", yscale="log", xlabel="cores a side", ylabel="cycles, predicted")
        best = cycles()["MeshGEMM"][-1].cycles
        for number, (name, prices) in enumerate(cycles().items()):
            sides, values = SIDES[-len(prices) :], [price.cycles for price in prices]
            numbers[f"cycles of {name}"] = values
            colour = COLOURS[(4 if dark else 0, 5, 2, 1)[number]]
            bands = [price.error_band or 0.0 for price in prices]
            low, high = ([v * (1 + sign * band) for v, band in zip(values, bands, strict=True)] for sign in (-1, 1))
            axes.fill_between(sides, low, high, color=colour, alpha=0.15, lw=0)
            axes.plot(sides, values, marker="o", ms=3, color=colour)
            times = f"\n{values[-1] / best:.2g} times" if number else ""
            axes.annotate(
                f"{name}{times}", (sides[-1], values[-1]), (6, 0), textcoords="offset points", color=colour, va="center"
            )
        axes.set_xlim(SIDES[0] * 0.93, SIDES[-1] * 2.1)
        axes.set_xticks(SIDES[::2] + SIDES[-1:], [str(side) for side in SIDES[::2] + SIDES[-1:]])
        axes.minorticks_off()


def _moves(axes: Any, name: str, schedule: Schedule, dark: bool) -> int:
    """Draw the moves along one row of cores in a round that multiplies, as arcs; return links of the longest."""
    round_ = next(round_ for round_ in schedule.rounds if kind(round_) == "product" and round_.exchanges)
    exchange = next(exchange for exchange in round_.exchanges if exchange.axis == "x")
    half_turn = np.linspace(0, np.pi, 60)
    for send, recv in zip(np.atleast_2d(exchange.send)[0], np.atleast_2d(exchange.recv)[0], strict=True):
        middle, radius = (send + recv) / 2, (recv - send) / 2
        colour = MANY if abs(recv - send) > 2 else COLOURS[4] if dark else FEW
        axes.plot(middle - radius * np.cos(half_turn), abs(recv - send) * np.sin(half_turn), colour, lw=1)
    axes.plot(range(SIDE), np.zeros(SIDE), f"{'w' if dark else 'k'}s", ms=3)
    longest = int(abs(exchange.send - exchange.recv).max())
    axes.set(title=f"{name}: {longest} links at most", ylabel="links", ylim=(-1.5, SIDE))
    return longest


def wafer(path: Path) -> None:
    """Llama 3 8B for decode on a WSE-2."""
    mesh = Mesh(180, 180)
    block = decode_block(shape_of("llama3-8b"), mesh, SIZE, constants(mesh.device))
    draw.wafer(decode_regions(block), path, f"Llama 3 8B on meshes of {mesh} of a WSE-2, {SIZE} tokens of cache")


def compared(path: Path) -> None:
    """Compare the algorithms of a product."""
    rows = compare_gemm(360, WIDE, WIDE, WIDE, values=False)
    title = f"[{WIDE:,}, {WIDE:,}] x [{WIDE:,}, {WIDE:,}] in fp16 on 360 x 360 cores of a WSE-2"
    draw.compare(rows, path, title, Mesh(1, 1).device)


def token(path: Path) -> None:
    """Draw one token of Llama 3 8B through the regions of a WSE-2."""
    mesh = Mesh(180, 180)
    block = decode_block(shape_of("llama3-8b"), mesh, SIZE, constants(mesh.device))
    title = f"One token of Llama 3 8B on meshes of {mesh} of a WSE-2, {SIZE} tokens of cache"
    draw.token(of_token(decode_regions(block), block, SIZE), path, title)


def tree_groups(path: Path) -> None:
    """Sweep the groups of a K-tree."""
    rows = sweep("gemv", {"groups": range(4, 41, 6)}, mesh=360, k=4096, n=4096)
    title = "MeshGEMV [4096] x [4096, 4096] on 360 x 360 cores of a WSE-2"
    draw.curves(rows, ["groups"], "cycles", path, title=title)


def served(path: Path) -> None:
    """Latency of Llama 3 8B on a WSE-2 against the rate of requests, and its knee."""
    load, given = Load(64, 2048, 1024, 1024, 211), Given("187", "187")
    times = priced("shared", shape_of("llama3-8b"), Mesh(1, 1).device, load, given)
    lengths, policy = both(uniform(256, 1024), uniform(50, 370)), Policy(Shared(16384, 64), chunk=748)
    rows = []
    for rate in (1, 2, 4, 8, 12, 16, 20):
        run = simulate(poisson(rate, 1000, lengths), times, policy)
        rows.append({"rate": rate} | flat(report(run, times.pool, times.device, slo=Slo(2.0, 0.025))))
    title = "Llama 3 8B on a WSE-2: prompts of 256 to 1,024 tokens, answers of 50 to 370"
    title += "; in time: first token within 2 s (TTFT), then 25 ms a token (TPOT)"
    serving.latency(rows, "rate", path, title)


def head_groups(path: Path) -> None:
    """Draw the rows of docs/head-groups.csv: cycles over the paper-benchmark program's, with one group and the best."""
    rows = list(csv.DictReader((Path(__file__).parents[1] / "head-groups.csv").open(encoding="utf-8")))
    best, one = (
        [float(row[name]) / float(row["paper-benchmark program"]) for row in rows] for name in ("best", "one group")
    )
    point = f"The best number of head groups takes {min(best):.2f} to {max(best):.2f} of the cycles"
    point += f", one group {min(one):.1f} to {max(one):.1f}"
    title = (
        "Cycles of a layer over the paper-benchmark program's, predicted on a WSE-2;\nsolid: the best number of groups"
    )
    with picture(path, 2.2, f"{title}, dashed: one group", point) as (figure, numbers):
        for axes, phase in zip(figure.subplots(1, 2), ("decode", "prefill"), strict=True):
            models = dict.fromkeys(row["model"] for row in rows)
            for model, colour, marker in zip(models, COLOURS, MARKERS, strict=False):
                own = [row for row in rows if (row["phase"], row["model"]) == (phase, model)]
                sides = [int(row["mesh"].split("x")[0]) for row in own]
                for name, style in (("one group", "--"), ("best", "-")):
                    values = [float(row[name]) / float(row["paper-benchmark program"]) for row in own]
                    numbers[f"{phase} of {model}, {name}"] = values
                    label = model if name == "best" and phase == "decode" else None
                    axes.plot(sides, values, style, color=colour, marker=marker, ms=3, label=label)
            axes.axhline(1, color=REST, lw=0.6)
            axes.set(title=phase, xlabel="cores a side", ylim=(0, None), xticks=sides)
        figure.axes[0].legend(loc="lower left")


PICTURES: dict[str, Callable[[Path], None]] = {
    "meshgemm.png": meshgemm,
    "meshgemm-dark.png": lambda path: meshgemm(path, dark=True),
    "reproduction.png": lambda path: draw.reproduction(cells(), path),
    "validation.png": draw.validation,
    "wafer.png": wafer,
    "token.png": token,
    "schedule.png": lambda path: draw.schedule(product("mesh"), path),
    "mesh.png": lambda path: draw.mesh(product("mesh", 8), path, round=5),
    "links.png": lambda path: draw.links(summed("star"), path),
    "sram.png": lambda path: draw.sram(product("allgather", 24), path),
    "timeline.png": lambda path: draw.timeline(product("mesh", 8), path),
    "compare.png": compared,
    "sweep.png": tree_groups,
    "serving.png": served,
    "head-groups.png": head_groups,
}


def draw_all(folder: Path) -> Iterator[Path]:
    """Draw all pictures into a folder."""
    for name, content in PICTURES.items():
        content(folder / name)
        yield folder / name


if __name__ == "__main__":
    for path in draw_all(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent):
        print(f"written: {path}")
