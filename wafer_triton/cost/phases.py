"""Phases of a schedule: the loads of links, routers and multipliers that `wafer_triton.cost` prices.

A phase is a run of rounds (see `wafer_triton.count.runs`) and its number of repetitions. Its hops lie on the longest
path that data can take through its rounds; in a phase without products cores wait for this data alone. Its local work
is the work of its fullest round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from wafer_triton import local
from wafer_triton.count.runs import RoundRun, counted_runs, kind, runs, sources, stages
from wafer_triton.count.spans import by_cores
from wafer_triton.count.traffic import WORD_BYTES, RunTraffic, Traffic
from wafer_triton.decoder.block import Block
from wafer_triton.device.dtype import BYTES
from wafer_triton.schedule.access import overlaps
from wafer_triton.schedule.rounds import Local, Round
from wafer_triton.schedule.schedule import Schedule


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
    """A phase of a `kind`: "local", "stream", "circuit", "tiles" or "product". Words are 32 bits.

    The phase runs `times` times; every other number is of one time.
    """

    kind: str
    times: int = 1
    rounds: int = 1
    stages: int = 0  # set-ups of exchanges on the critical path
    hops: int = 0  # longest path of data
    busiest_words: int = 0  # over the busiest link
    mean_words: float = 0.0  # over the links in use, or of the largest tile if that has more
    link_bytes: int = 0  # bytes times links crossed, on the whole mesh
    packed: int = 0  # moved tiles of more than one element; they move as packed words
    fold: int = 1  # logical cores of one physical core
    overlaps: bool = False  # products read nothing that arrives in the same round
    products: tuple[tuple[Product, ...], ...] = ()  # of each kind of core that has any
    macs: int = 0  # of a core
    elements: int = 0  # vector elements of a core
    sram_bytes: int = 0  # read and written by a core's local operations, every operand once
    label: str = ""  # the step of the algorithm to which the phase belongs
    hidden: bool = False  # a stream or circuit that flows beside the next product, whose phase counts its words
    beside: tuple[float, int] = (0.0, 0)  # mean words and hops of the hidden one that a product is as long as


def phases(schedule: Schedule) -> list[Phase]:
    """Return the phases of a schedule; equal phases are merged.

    A stream or circuit is hidden beside the next product on two conditions: only local operations lie between the two,
    and neither these nor the product use a buffer that it touches. The product's phase counts the words of both on each
    link, and is as long as the hidden one. If the next stream sends what that product computes, as in A B^T, what is
    left of it flows beside that one. For repeated steps the second time stands for all times but the first and the
    last, because it also has neighbours on both sides.
    """
    cut, every = zip(*counted_runs(schedule), strict=True) if len(schedule.rounds) else ((), ())
    counts = Counter[Phase]()
    for phase, times in zip(_in_order(schedule, cut), every, strict=True):
        counts[phase] += times
    return [replace(phase, times=times) for phase, times in counts.items()]


def phases_in_order(schedule: Schedule) -> list[tuple[RoundRun, Phase]]:
    """Return the runs of a schedule in order of time, each with its phase; equal phases are not merged."""
    cut = runs(schedule)
    return list(zip(cut, _in_order(schedule, cut), strict=True))


def _in_order(schedule: Schedule, cut: Sequence[RoundRun]) -> list[Phase]:
    """Return the phase of each run."""
    traffic, each = Traffic(schedule), dict[RoundRun, Phase]()
    for run in cut:
        if run not in each:
            each[run] = _phase(schedule, run, traffic.run(run))
    whole = [each[run] for run in cut]
    for number, phase in enumerate(whole):
        later = _product_beside(cut, whole, number) if phase.kind in ("stream", "circuit") else None
        if later is None:
            continue
        product, busiest = whole[later], max(phase.busiest_words, whole[later].busiest_words)
        words, hops = phase.mean_words, phase.hops
        if cut[number].axes & cut[later].axes:  # else they share no link
            both = traffic.run(RoundRun((*cut[number].steps, *cut[later].steps)))
            busiest, words, hops = both.busiest_words, both.mean_words, max(hops, product.hops)
        if _is_sent_on(cut, later) and whole[later + 1].kind == phase.kind:  # what is left of it flows beside that one
            words, hops = words - whole[later + 1].mean_words, hops - whole[later + 1].hops
        whole[number] = replace(phase, hidden=True)
        whole[later] = replace(product, busiest_words=busiest, beside=(words, hops))
    return whole


def _is_sent_on(cut: Sequence[RoundRun], number: int) -> bool:
    """Return whether the next run sends what run `number` wrote, and nothing else."""
    return number + 1 < len(cut) and sources(cut[number + 1].ends[0]) <= cut[number].written


def _product_beside(cut: Sequence[RoundRun], whole: list[Phase], number: int) -> int | None:
    """Return the number of the product's run beside which the stream of run `number` flows, or None."""
    needs = cut[number].touched
    for later in range(number + 1, len(cut)):
        uses = cut[later].ends[0].uses.keys()
        if whole[later].kind == "product":
            return None if needs & uses else later
        if whole[later].kind != "local":
            return None
        if needs & uses:  # results of the stream do not exist before it
            needs |= uses
    return None


def _phase(schedule: Schedule, run: RoundRun, traffic: RunTraffic) -> Phase:
    first = run.ends[0]
    common, mesh = kind(first), schedule.mesh
    buffers = [schedule.buffers[name] for name in sorted(sources(first))]
    # In a stream all stages compute at once, on different cores, so the one with most work sets the time. A core sends
    # a whole tile only when its round's work is done, so there the work of all rounds adds up.
    every = common == "tiles"
    work = [_work(schedule, round_) for round_ in (run if every else _of_different_work(schedule, run))]
    whole = sum if every else max
    macs, elements, sram_bytes = (whole(column) for column in zip(*(numbers[1:] for numbers in work), strict=True))
    return Phase(
        common,
        rounds=len(run),
        stages=stages(run),
        hops=traffic.hops,
        busiest_words=traffic.busiest_words,
        mean_words=traffic.mean_words,
        link_bytes=traffic.link_bytes,
        packed=sum(buffer.numel > 1 and BYTES[buffer.dtype] < WORD_BYTES for buffer in buffers)
        if common in ("tiles", "product")
        else 0,
        fold=mesh.per_core,
        overlaps=overlaps(first),
        products=work[0][0],
        macs=macs,
        elements=elements,
        sram_bytes=sram_bytes,
        label=first.label,
    )


def _of_different_work(schedule: Schedule, run: RoundRun) -> list[Round]:
    """Return one round for each kind of work in a run: equal operations, parameters, and operands in bytes."""

    def work(op: Local) -> tuple[object, ...]:
        return op.work, tuple([schedule.buffers[slot.buffer].slot_bytes(slot) for slot in op.operands])

    def each(round_: Round) -> frozenset[tuple[object, ...]]:
        return frozenset([tuple(map(work, ops)) for ops in _of_cores(schedule, round_)])

    rounds = reversed(run.rounds) if run.tree is None else run.tree.different
    return list({each(round_): round_ for round_ in rounds}.values())


def _of_cores(schedule: Schedule, round_: Round) -> list[Sequence[Local]]:
    """Return the operations of each group of cores; all together where sums stream, as a core may end both ways."""
    return [round_.locals] if kind(round_) == "stream" else [*by_cores(schedule.mesh, round_.locals)]


def _work(schedule: Schedule, round_: Round) -> tuple[tuple[tuple[Product, ...], ...], int, int, int]:
    """Return the products of each kind of core, and the most multiply-adds, vector elements and SRAM bytes of a core.

    All kinds' products are returned, as a device's rates decide which take longest: 1,000 multiply-adds in fp32 may
    take longer than 1,100 in fp16.
    """
    products, *numbers = zip(*(_work_of(schedule, ops) for ops in _of_cores(schedule, round_)), strict=True)
    return tuple(dict.fromkeys(filter(None, products))), *map(max, numbers)


def _work_of(schedule: Schedule, ops: Sequence[Local]) -> tuple[tuple[Product, ...], int, int, int]:
    """Return products, multiply-adds, vector elements and SRAM bytes of local operations of a core."""
    products, macs, elements, sram_bytes = [], 0, 0, 0
    for op in ops:
        definition = local.find(op.op)
        done = definition.work(**op.params)
        macs += done[0]
        for name, slot in zip(definition.operands, op.operands, strict=True):
            buffer = schedule.buffers[slot.buffer]
            read = definition.reads.get(name)
            sram_bytes += buffer.slot_bytes(slot) if read is None else read(**op.params) * BYTES[buffer.dtype]
        if definition.product is not None:
            products.append(Product(*definition.product(**op.params), schedule.buffers[op.ins[0].buffer].dtype))
        elif definition.elementwise or not done[0]:
            elements += sum(done)
        else:  # its multiply-adds are one vector instruction
            elements += done[1]
            products.append(Product(done[0], 1, 1, 1, schedule.buffers[op.operands[-1].buffer].dtype))
    return tuple(products), macs, elements, sram_bytes


def prefill_products(block: Block, tokens: int) -> list[Product]:
    """Return one local product of each kind of a prefill layer; a core of P x P cores does P of each."""
    heads, head, d = block.query_heads, block.head_width, block.share(block.shape.hidden_size, "x")
    sizes = [
        (tokens, d, block.qkv_width, 1),
        (tokens, head, tokens, heads),  # queries by keys
        (tokens, tokens, head, heads),  # scores by values
        (tokens, heads * head, d, 1),
    ]
    if "ffn" in block.shape.layers_of:
        f = block.share(block.shape.intermediate_size, "x")
        sizes += [(tokens, d, 2 * f, 1), (tokens, f, d, 1)]
    e, product = block.shape.experts, local.find("expert_gemm").product
    if e is not None and product is not None:
        f = block.share(e.width, "x")
        run = {"m": tokens, "per_token": e.per_token, "experts": e.tiles}
        sizes += [product(**run, k=k, n=n) for k, n in ((d, 2 * f), (f, d))]
    return [Product(*size, block.dtype) for size in sizes]


def region_products(block: Block) -> list[Product]:
    """Return one product of each kind in a pass to experts in regions; a core does one an iteration."""
    e, regions, product = block.shape.experts, block.expert_regions, local.find("expert_gemm").product
    assert e is not None and regions is not None and product is not None, "a block whose experts have regions"
    size, d = block.mesh.shape[0] // regions.side, regions.side * block.share(block.shape.hidden_size, "x")
    rows, f = regions.side * regions.capacity, -(-e.width // size)
    each = (product(m=rows, per_token=1, experts=regions.held(e), k=k, n=n) for k, n in ((d, 2 * f), (f, d)))
    return [Product(*sizes, block.dtype) for sizes in each]
