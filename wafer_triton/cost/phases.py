"""What a schedule demands of links, routers and multipliers, in phases; the numbers that `wafer_triton.cost` prices.

A phase is a run of rounds (see `wafer_triton.count.runs`) and how often it comes. In the phases without products cores
wait for their data only: the distance of a phase is the longest path that data can take through its rounds. Counts are
those of the line with most rounds; the lines of a mesh work alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from wafer_triton import local
from wafer_triton.count.runs import distinct_runs, kind, sources
from wafer_triton.count.traffic import WORD_BYTES, RunTraffic, Traffic
from wafer_triton.dtype import BYTES
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Round, Schedule


@dataclass(frozen=True)
class Product:
    """One local product c [m, heads, n] (+)= a [heads, m, k] b [k, n] of a core."""

    m: int
    k: int
    n: int
    heads: int
    dtype: str


@dataclass(frozen=True)
class Phase:
    """A phase and how often it runs. Words are 32 bits; loads are those of one line, in one direction."""

    kind: str
    times: int = 1
    rounds: int = 1
    stages: int = 0  # set-ups of an exchange, one after the other
    hops: int = 0  # longest path of data
    busiest_words: int = 0  # over the busiest link
    mean_words: float = 0.0  # over the links in use
    link_bytes: int = 0  # bytes times links crossed, on the whole mesh
    packed: int = 0  # moved tiles of more than one element, which move as packed words
    fold: int = 1  # logical cores that one physical core works for
    overlaps: bool = False  # products read nothing that arrives in the same round
    products: tuple[Product, ...] = ()
    macs: int = 0  # of a core
    elements: int = 0  # vector elements of a core
    sram_bytes: int = 0  # that a core's local operations read and write, every operand once

    def scaled(self, elements: int, dtype: str, lines: int) -> Phase:
        """A phase of one line and tiles of one fp32 element, as of more `lines` and tiles of `elements`.

        Exact for streams and circuits, whose every number is in proportion to the tile.
        """
        size = elements * BYTES[dtype]
        words = ceil(size / WORD_BYTES)
        return replace(
            self,
            busiest_words=self.busiest_words * words,
            mean_words=self.mean_words * words,
            link_bytes=self.link_bytes * size // WORD_BYTES * lines,
            elements=self.elements * elements,
            sram_bytes=self.sram_bytes * size // WORD_BYTES,
        )


def phases(schedule: Schedule | Builder) -> list[Phase]:
    """The phases of a schedule, built or not; runs that repeat by identity are looked at once."""
    traffic = Traffic(schedule)
    return [replace(_phase(schedule, run, traffic.run(run)), times=times) for run, times in distinct_runs(schedule)]


def _phase(schedule: Schedule | Builder, run: list[Round], traffic: RunTraffic) -> Phase:
    first = run[0]
    common, mesh = kind(first), schedule.mesh
    sizes = [schedule.buffers[name] for name in sorted(sources(first))]
    work = [_work(schedule, round_) for round_ in run]
    # the stages of a stream combine on different cores, while the data flows: the fullest of them counts
    macs, elements, sram_bytes = (max(column) for column in zip(*(one[1:] for one in work), strict=True))
    return Phase(
        common,
        rounds=len(run),
        stages=0 if common == "local" else 1 if common == "circuit" else len(run),
        hops=traffic.hops,
        busiest_words=traffic.busiest_words,
        mean_words=traffic.mean_words,
        link_bytes=traffic.link_bytes,
        packed=sum(one.numel > 1 and BYTES[one.dtype] < WORD_BYTES for one in sizes)
        if common in ("tiles", "product")
        else 0,
        fold=mesh.fold[0] * mesh.fold[1],
        overlaps=first.overlaps,
        products=work[0][0],
        macs=macs,
        elements=elements,
        sram_bytes=sram_bytes,
    )


def _work(schedule: Schedule | Builder, round_: Round) -> tuple[tuple[Product, ...], int, int, int]:
    """Products, multiply-adds, vector elements and SRAM bytes of a core's local operations."""
    products, macs, elements, sram_bytes = [], 0, 0, 0
    for op in round_.locals:
        done = local.find(op.op).work(**op.params)
        slots = (*op.outs, *op.ins)
        sram_bytes += sum(
            schedule.buffers[slot.buffer].bytes if slot.index is None else schedule.buffers[slot.buffer].tile_bytes
            for slot in slots
        )
        if op.op in ("gemm", "gemm_t"):
            p: Any = op.params
            products.append(
                Product(p["m"], p["k"], p["n"], p.get("heads", 1), schedule.buffers[op.ins[0].buffer].dtype)
            )
            macs += done[0]
        else:
            elements += sum(done)
    return tuple(products), macs, elements, sram_bytes
