"""A ring all-reduce along x by slots, and the same with one mistake, at one core and in one round."""

import numpy as np
from torch import Tensor

from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Slot
from wafer_triton.schedule.schedule import Schedule

Place = tuple[int, tuple[int, int]]  # a round and a core


def ring(mesh: Mesh, *mistakes: tuple[str, Place]) -> Schedule:
    """Build the ring: in each round a core sends a slot to the right, adds what came, and from half-way on keeps it.

    A mistake is the core and round that leaves out this operation ("skipped"), copies in place of the add ("lost"),
    does it twice, takes the tile that came a round before ("late"), or sends another slot ("wrong").
    """
    (rows, cols), line = mesh.shape, np.arange(mesh.shape[1])
    b = Builder(mesh, "ring")
    b.buffer("x", (2,), "fp32", "output", cols)
    inboxes = [b.buffer(f"inbox {number}", (2,), "fp32") for number in range(2 * cols - 2)]
    for number, inbox in enumerate(inboxes):
        slot = (line - number) % cols
        into = Slot("x", (slot - 1) % cols, "x")
        send, others = np.tile(line, (rows, 1)), np.ones(mesh.shape, np.bool_)
        steps = []
        for kind, (at, (row, col)) in mistakes:
            core = Cores.of(np.array([row]), np.array([col]), paired=True)
            if at != number:
                continue
            if kind == "wrong":
                send[row, col] = -1
                other = Slot("x", int(slot[col] + 1) % cols)
                steps.append(b.exchange("x", other, inbox, [col], [(col + 1) % cols], lines=[row]))
                continue
            tile = inboxes[number - 1] if kind == "late" else inbox
            adds = number < cols - 1 and kind != "lost"
            step = b.local("add" if adds else "copy", into, (into, tile) if adds else tile, core, size=2)
            others[row, col] = kind == "twice"
            steps += [step] * (kind != "skipped")
        every = Cores.of(*np.nonzero(others), paired=True)
        adds = number < cols - 1
        b.round(
            b.exchange("x", Slot("x", slot, "x"), inbox, send, np.where(send < 0, -1, (send + 1) % cols)),
            *steps,
            b.local("add" if adds else "copy", into, (into, inbox) if adds else inbox, every, size=2),
        )
    return b.build()


def summed(tiles: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"x": tiles["x"].sum(1, keepdim=True).expand_as(tiles["x"])}
