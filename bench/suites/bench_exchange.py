"""Exchange alone: shifts around the ring with nothing computed, beside the machine's own copies of as many bytes."""

from dataclasses import dataclass
from functools import cache

import torch

from cases import EXCHANGES, ROOMY, executor, held, ways
from timing import Runs, Timing, sets
from wafer_triton.algorithms.ring import ring_step
from wafer_triton.device.dtype import torch_dtype
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.schedule import Schedule
from work import record, shares, work

STEPS = 8


@dataclass(frozen=True)
class Shift:
    """Shifts of one tile x tile buffer along x on side x side cores."""

    side: int
    tile: int
    dtype: str
    rows: tuple[str, ...] = (*EXCHANGES, "emulation", "copy")

    def __str__(self) -> str:
        return (
            f"{STEPS} ring shifts on {self.side} x {self.side} cores, tiles of {self.tile} x {self.tile}, {self.dtype}"
        )

    @property
    def slug(self) -> str:
        return f"shift-on{self.side}-tile{self.tile}-{self.dtype}"


SHAPES = [Shift(side, tile, "fp32") for side, tile in ((8, 32), (16, 32), (64, 8))]


@cache
def shifts(shape: Shift) -> Schedule:
    b = Builder(Mesh(shape.side, shape.side, ROOMY), str(shape))
    hands = [b.buffer(name, (shape.tile, shape.tile), shape.dtype, "state") for name in ("here", "there")]
    for step in range(STEPS):
        b.round(ring_step(b, "x", hands[step % 2], hands[1 - step % 2]))
    return b.build()


def moved(tiles: torch.Tensor, schedule: Schedule) -> torch.Tensor:
    """Return where the tiles lie at the end, by the schedule's tables."""
    for round_ in schedule.rounds:
        (exchange,) = round_.exchanges
        following = tiles.clone()
        following[:, torch.from_numpy(exchange.moves.recv.copy()).to(tiles.device)] = tiles[
            :, torch.from_numpy(exchange.moves.send.copy()).to(tiles.device)
        ]
        tiles = following
    return tiles


def time_shifts(shape: Shift, row: str, device: str) -> Timing:
    """Check where the tiles lie at the end, time the shifts over rotating inputs, and return the record."""
    schedule, dtype = shifts(shape), torch_dtype(shape.dtype)
    make = lambda: torch.randn(shape.side, shape.side, shape.tile**2, device=device).to(dtype)  # noqa: E731
    backend = None if row == "copy" else executor(row, device)
    runs, programs, number = [], [], 1
    while len(runs) < number:
        here, there = make(), make()
        if backend is None:
            number = sets(device, 2 * here.nbytes)
            runs.append(lambda a=here, b=there: [(a, b)[1 - n % 2].copy_((a, b)[n % 2]) for n in range(STEPS)])
            continue
        programs.append(backend.bind(schedule, {"here": here, "there": there}))
        number = sets(device, held(programs[0]))
        runs.append(programs[-1].execute)
        if len(programs) == 1:
            programs[0].execute()
            assert torch.equal(programs[0].read("here").flatten(2), moved(here, schedule))
    footprint = 2 * make().nbytes
    facts = {
        "what": f"{STEPS} ring shifts" if backend else f"{STEPS} plain copies", "rounds": STEPS,
        "mesh": f"{shape.side}x{shape.side}", "tile": f"{shape.tile}x{shape.tile}", "dtype": shape.dtype,
        "cores": shape.side**2, "sets": len(runs), "rotated_bytes": len(runs) * footprint, "checked": "exact",
        **ways(backend, programs[0] if programs else None),
    }  # fmt: skip
    times = yield Runs(runs)
    must = work(schedule, None if row == "elided" else schedule)
    return record(shape, row, times, facts | shares(times.seconds, device, shape.dtype, 0, must, len(runs) * footprint))


def test_group(records, shape):
    records(time_shifts, shape)
