"""The pictures of README.md, drawn beside this file: `make pictures`, or `python docs/pictures/draw.py [FOLDER]`.

Nothing is run on a mesh: moves, hops and bytes are counted from schedules, times are predicted by the cost model. The
numbers that a picture shows are kept in its PNG description, so that a test can compare them with those of today.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from wafer_triton import Mesh, Schedule
from wafer_triton.cost.calibrate import FAMILIES, rows
from wafer_triton.cost.calibrate.fit import STAGES
from wafer_triton.cost.constants import constants
from wafer_triton.count.runs import kind
from wafer_triton.device import device
from wafer_triton.draw.trace import Trace, trace
from wafer_triton.schedule.product import recipe

SIDE, SIZE = 16, 512  # cores a side, and rows of the matrices: a core holds tiles of 32 x 32
ALGORITHMS = {"mesh": "MeshGEMM", "cannon": "Cannon"}
# The numbers of a picture by name. Predictions are ratios to the measurement, products are counts.
Numbers = dict[str, list[float]]


def product(algorithm: str) -> Schedule:
    """A whole product in fp16 by an algorithm."""
    shapes = ((SIZE, SIZE), (SIZE, SIZE))
    return recipe("gemm", Mesh(SIDE, SIDE), "fp16", shapes, (("algorithm", algorithm),)).schedule


def meshgemm(figure: Figure) -> Numbers:
    """MeshGEMM beside Cannon: the moves of a round, hops over the rounds, bytes over links."""
    schedules = {name: product(algorithm) for algorithm, name in ALGORITHMS.items()}
    traces = {name: trace(schedule) for name, schedule in schedules.items()}
    figure.suptitle(
        f"[{SIZE}, {SIZE}] x [{SIZE}, {SIZE}] in fp16 on {SIDE} x {SIDE} cores of a WSE-2, counted from its rounds"
    )
    grid: Any = figure.subplots(2, 3, width_ratios=(4, 3, 2))
    top = max(int(traced.links["east"].max()) for traced in traces.values())
    for line, (name, traced) in zip(grid, traces.items(), strict=True):
        _moves(line[0], name, schedules[name])
        _hops(line[1], traced)
        image = line[2].imshow(traced.links["east"], vmin=0, vmax=top, interpolation="nearest")
        line[2].set(title="bytes sent to the east", xlabel="column", ylabel="row")
    for axes in grid.flat:
        axes.title.set_fontsize("medium")
        axes.locator_params(integer=True)
    for axes in grid[0]:
        axes.set_xlabel("")
    figure.colorbar(image, ax=list(grid[:, 2]), label="bytes over the run")
    return {f"hops of {name}": traced.counts["hops"].tolist() for name, traced in traces.items()}


def _moves(axes: Any, name: str, schedule: Schedule) -> None:
    """The moves along one row of cores in the first round that multiplies, as arcs from sender to receiver."""
    round_ = next(round_ for round_ in schedule.rounds if kind(round_) == "product" and round_.exchanges)
    exchange = next(exchange for exchange in round_.exchanges if exchange.axis == "x")
    half_turn = np.linspace(0, np.pi, 60)
    for send, recv in zip(np.atleast_2d(exchange.send)[0], np.atleast_2d(exchange.recv)[0], strict=True):
        middle, radius = (send + recv) / 2, (recv - send) / 2
        colour = "C3" if abs(recv - send) > 2 else "C0"
        axes.plot(middle - radius * np.cos(half_turn), abs(recv - send) * np.sin(half_turn), colour, lw=1.2)
    axes.plot(range(SIDE), np.zeros(SIDE), "ks", ms=4)
    longest = int(abs(exchange.send - exchange.recv).max())
    axes.set(title=f"{name}: a round moves a tile over at most {longest} links", ylabel="links crossed")
    axes.set(xlabel="column of the core", ylim=(-1, SIDE))


def _hops(axes: Any, traced: Trace) -> None:
    """Hops of the longest move of each round."""
    hops = traced.counts["hops"]
    axes.bar(np.arange(len(hops)) + 0.5, hops, 0.8, color=np.where(hops > 2, "C3", "C0"))
    axes.set(title="longest move of each round", xlabel="round", ylabel="hops", ylim=(0, SIDE))


def validation(figure: Figure) -> Numbers:
    """Predicted against measured: cycles of a WSE-3, tokens per second of a WSE-2, errors by family."""
    axes: Any = figure.subplots(1, 3, width_ratios=(3, 3, 4))
    units: dict[str, Any] = {"cycles": axes[0], "tokens/s": axes[1]}
    titles = {"cycles": "a WSE-3: cycles", "tokens/s": "a WSE-2: tokens per second"}
    ratios: Numbers = {}
    fitted = {stage.family: constants(device(stage.device)) for stage in STAGES}
    for number, family in enumerate(FAMILIES):
        measurements = rows(family)
        measured = np.array([row.measured for row in measurements])
        predicted = np.array([row.predict(fitted[family]) for row in measurements])
        ratios[family] = (predicted / measured).tolist()
        style = {"marker": "os^Dv"[number], "color": f"C{number}", "ls": "", "ms": 4, "alpha": 0.7}
        units[measurements[0].unit].plot(measured, predicted, label=family, **style)
        spread = np.linspace(-0.25, 0.25, len(measured))
        axes[2].plot(100 * (predicted / measured - 1), number + spread, **style)
    for unit, panel in units.items():
        low, high = min(panel.get_xlim()[0], panel.get_ylim()[0]), max(panel.get_xlim()[1], panel.get_ylim()[1])
        limits = (max(low, 200), high * 1.3)
        panel.plot(limits, limits, "k-", lw=0.6)
        panel.set(xscale="log", yscale="log", xlim=limits, ylim=limits, title=titles[unit])
        panel.set(xlabel=f"measured ({unit})", ylabel=f"predicted ({unit})")
        panel.legend(fontsize="small")
    axes[2].axvline(0, color="k", lw=0.6)
    axes[2].set(yticks=range(len(FAMILIES)), yticklabels=FAMILIES, xlabel="predicted over measured, less 1 (%)")
    axes[2].set(title="errors, a point a measurement")
    axes[2].invert_yaxis()
    return ratios


PICTURES: dict[str, tuple[Callable[[Figure], Numbers], tuple[float, float]]] = {
    "meshgemm.png": (meshgemm, (11, 5)),
    "validation.png": (validation, (11, 3.4)),
}


def draw(folder: Path) -> Iterator[Path]:
    """Draw all pictures into a folder."""
    for name, (content, size) in PICTURES.items():
        figure = Figure(figsize=size, layout="constrained", dpi=100)
        numbers = content(figure)
        short = {key: [round(number, 4) for number in values] for key, values in numbers.items()}
        figure.savefig(folder / name, metadata={"Description": json.dumps(short)})
        yield folder / name


if __name__ == "__main__":
    for path in draw(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent):
        print(f"written: {path}")
