"""A PLMR verdict for every operation of a decoder layer on a device (WaferLLM, OSDI'25, section 3).

P: at least half of the cores hold some of what the operation works on, not padding alone. L: the critical path, hops
and routing stages, takes at most twice as long as a message across the mesh and a stage on every core of a line, so it
is linear in the mesh. M: what the core holds meanwhile fits its SRAM. R: the operation's routes fit a router.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from wafer_triton.count.account import Account, account
from wafer_triton.count.routes import routes
from wafer_triton.mesh import Mesh
from wafer_triton.models import decode_blocks, prefill_blocks
from wafer_triton.models.blocks import Block
from wafer_triton.models.place.regions import head_block
from wafer_triton.schedule.rounds import Schedule

LATENCY_RATIO = 2.0
BUSY_SHARE = 0.5
ROOMY = 1 << 40  # an operation that does not fit is a finding here, not an error
HEADS = ("qkv", "bias", "head norm", "rope", "scores", "softmax", "attention", "output projection")
FFN = ("gate and up", "silu", "down")


@dataclass(frozen=True)
class Operation:
    """One step of a layer in a phase: its counts, the routes that it needs, and its verdict by letter."""

    phase: str
    name: str
    rounds: int
    stages: int
    hops: int
    routes: int
    sram_peak_bytes: int
    verdict: dict[str, bool]

    @property
    def ok(self) -> bool:
        """Whether all four letters are kept."""
        return all(self.verdict.values())


def layer(block: Block, tokens: int = 0) -> list[Operation]:
    """The operations of one decode layer, of the head, and, with `tokens` a row, of one prefill layer."""
    limit = block.mesh.device
    roomy = replace(block, mesh=_roomy(block.mesh))
    square = replace(roomy, mesh=roomy.mesh.square())
    phases = {
        "decode": [
            decode_blocks.project(roomy),
            decode_blocks.append(roomy, 0, block.mesh.rows * block.entries - 1, 0),
            decode_blocks.attend(roomy, 0),
            decode_blocks.output(roomy),
            decode_blocks.ffn(roomy),
        ],
        "head": [decode_blocks.head(replace(head_block(block), mesh=_roomy(head_block(block).mesh)), 1)],
        "prefill": [prefill_blocks.attention(square, tokens, 0), prefill_blocks.ffn(square, tokens, 0)]
        if tokens
        else [],
    }
    return [
        _operation(phase, part, block, limit.sram_bytes, limit.routes)
        for phase, schedules in phases.items()
        for made in schedules
        for part in _parts(made)
    ]


def _parts(made: Schedule) -> Iterator[Schedule]:
    """The runs of rounds that carry one label, as schedules of their own."""
    for label, rounds in groupby(made.rounds, key=lambda one: one.label):
        yield replace(made, name=label, rounds=tuple(rounds))


def _operation(phase: str, part: Schedule, block: Block, sram_bytes: int, most_routes: int | None) -> Operation:
    count, needed = account(part), routes(part).colours
    return Operation(
        phase, part.name, count.rounds, count.stages, count.hops, needed, count.sram_peak_bytes,
        {
            "P": _busy_share(part, block) >= BUSY_SHARE,
            "L": _linear(count, part.mesh),
            "M": count.sram_peak_bytes <= sram_bytes,
            "R": most_routes is None or needed <= most_routes,
        },
    )  # fmt: skip


def _linear(count: Account, mesh: Mesh) -> bool:
    device = mesh.device
    once = device.hop_cycles * (mesh.rows + mesh.cols) + device.stage_cycles * max(mesh.rows, mesh.cols)
    return count.hops * device.hop_cycles + count.stages * device.stage_cycles <= LATENCY_RATIO * once


def _busy_share(part: Schedule, block: Block) -> float:
    """The share of the columns that hold some of the width which the operation cuts along x, or of the rows."""
    c, mesh = block.config, part.mesh
    if part.name in HEADS:
        return _used(c.head_dim // 2, mesh.shape[1])
    if part.name in FFN:
        return _used(c.intermediate_size, mesh.shape[1])
    return _used(c.hidden_size, mesh.shape[0])


def _used(width: int, cores: int) -> float:
    return -(-width // -(-width // cores)) / cores


def _roomy(mesh: Mesh) -> Mesh:
    return replace(mesh, device=replace(mesh.device, sram_bytes=ROOMY))
