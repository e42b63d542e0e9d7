"""The hop of a reduce tree: its time follows from chains of several lengths."""

from dataclasses import dataclass
from functools import cache

import torch

from cases import ROOMY, executor, held, ways
from timing import Runs, Timing, sets
from wafer_triton.algorithms.reduce import all_reduce
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.schedule import Schedule
from work import record, shares, work

LINES, COLUMNS = 64, 64


@dataclass(frozen=True)
class Chain:
    """Sums of 64 columns over 64 lines of 2 x hops + 1 cores, from both ends to the middle and back to all."""

    hops: int
    rows: tuple[str, ...] = ("explicit",)

    def __str__(self) -> str:
        return f"a reduce tree of {self.hops} hops"

    @property
    def slug(self) -> str:
        return f"tree-of-{self.hops}-hops"


SHAPES = [Chain(1), Chain(4)]


@cache
def chains(shape: Chain) -> Schedule:
    b = Builder(Mesh(LINES, 2 * shape.hops + 1, ROOMY), str(shape))
    b.buffer("x", (COLUMNS,), "fp32", "state")
    all_reduce(b, "x", "x", groups=())
    return b.build()


def time_chain(shape: Chain, row: str, device: str) -> Timing:
    """Check the sums, time a tree over rotating inputs, and return the record."""
    schedule, backend = chains(shape), executor(row, device)
    program = backend.bind(schedule, {"x": torch.ones(*schedule.mesh.shape, COLUMNS, device=device)})
    program.execute()
    cores = schedule.mesh.shape[1]
    assert (program.read("x") == cores).all()
    programs = [program]
    while len(programs) < sets(device, held(program)):  # each run adds up the results of the last one: zeros
        programs.append(backend.bind(schedule, {"x": torch.zeros(*schedule.mesh.shape, COLUMNS, device=device)}))
    program.write("x", torch.zeros(*schedule.mesh.shape, COLUMNS))
    rotated = len(programs) * held(program)
    facts = {
        "what": f"{shape}, {LINES} lines", "rounds": len(schedule.rounds), "hops": shape.hops,
        "mesh": f"{LINES}x{cores}", "tile": f"1x{COLUMNS}", "dtype": "fp32", "cores": schedule.mesh.cores,
        "sets": len(programs), "rotated_bytes": rotated, "checked": "exact", **ways(backend, program),
    }  # fmt: skip
    times = yield Runs([one.execute for one in programs])
    must = work(schedule, schedule)
    return record(shape, row, times, facts | shares(times.seconds, device, "fp32", 0, must, rotated))


def test_group(records, shape):
    records(time_chain, shape)
