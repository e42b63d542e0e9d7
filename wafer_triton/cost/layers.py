"""Layers of a decoder, priced: the parts that run (`schedule.decode`, `schedule.prefill`), step by step.

Two programs are priced, by the same builders with two shapes. "true" is the model's own: its heads, its grouped keys
and values, a cache that grows, and the LM head after the layers. "measured" is what WaferLLM ran on silicon: one head
as wide as the model, keys and values as wide as queries, a cache that is given, and no LM head (OSDI'25, section 4).
Tiles and sums are those of the block; the blocks built here have fp16 for both, as on the wafer.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import gcd

from wafer_triton.cost.constants import Constants
from wafer_triton.cost.phases import Phase, Sketch, phases
from wafer_triton.cost.price import Cost, phase_cost, relayed
from wafer_triton.count.routes import colours
from wafer_triton.errors import ShapeError
from wafer_triton.mesh import Mesh
from wafer_triton.schedule import decode, prefill, sram
from wafer_triton.schedule.block import Block, Part
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.reduce import two_level
from wafer_triton.shapes import DecoderShape

PROGRAMS = ("true", "measured")
Steps = dict[str, Cost]  # by the name of a step of the algorithm, in order
Groups = tuple[int, ...] | None
_PART_OF_A_MESH = 32  # cores a side, from which on the routes of prefill are the same on every mesh


def decode_block(
    shape: DecoderShape, mesh: Mesh, context: int, c: Constants, groups: Groups = None, program: str = "true"
) -> Block:
    """The block of a decode layer with `context` tokens in its cache; `groups` None takes `tree_for` the mesh.

    Raises ShapeError for an unknown program.
    """
    tree = tree_for(mesh, c.of("decode")) if groups is None else groups
    entries = -(-context // mesh.shape[0])
    if _measured(program):
        return Block(shape.measured(), mesh, "fp16", "fp16", entries, None, tree)
    return Block(shape, mesh, "fp16", "fp16", entries, "shift", tree)


def prefill_block(shape: DecoderShape, mesh: Mesh, c: Constants, program: str = "true") -> Block:
    """The block of a prefill layer, on the square grid of a mesh; ShapeError for an unknown program."""
    square = mesh.square()
    own = shape.measured() if _measured(program) else shape
    return Block(own, square, "fp16", "fp16", groups=tree_for(square, c))


def decode_steps(block: Block, context: int, c: Constants) -> Steps:
    """The costs of one token through one decode layer."""
    return _steps((block, part, args, c) for part, args in decode.layer(block, context))


def prefill_steps(block: Block, tokens: int, c: Constants, at_once: int | None = None) -> Steps:
    """The costs of a prompt of `tokens` tokens a row through one prefill layer, in chunks of `at_once` (None: all)."""
    size = tokens if at_once is None else at_once
    chunks = ((min(size, tokens - past), past) for past in range(0, tokens, size))
    return _steps((block, part, args, c) for chunk in chunks for part, args in prefill.layer(*chunk))


def head_steps(block: Block, tokens: int, c: Constants) -> Steps:
    """The costs of `tokens` tokens through the final norm and the LM head; MeshError if the device does not hold it."""
    return _steps([(decode.head_block(block), decode.head, (tokens,), c)])


def embedding_steps(block: Block, tokens: int, c: Constants) -> Steps:
    """The costs of looking `tokens` tokens up on the mesh of the head; MeshError if the device does not hold that."""
    home = decode.head_block(block)
    sizes = decode.batches(decode.embed, home, tokens)
    return _steps((home, decode.embed, (size,), c) for size, times in sizes.items() for _ in range(times))


def total(steps: Steps) -> Cost:
    """The cost of all steps."""
    return sum(steps.values(), Cost())


def _steps(parts: Iterable[tuple[Block, Part, tuple[int, ...], Constants]]) -> Steps:
    steps: Steps = {}
    for block, part, args, c in parts:
        for name, cost in _part(part, block, args, c).items():
            steps[name] = steps.get(name, Cost()) + cost
    return steps


def _part(part: Part, block: Block, args: tuple[int, ...], c: Constants) -> Steps:
    """The cost of a part by step."""
    demands, needed, peak = _read(part, block, args)
    own, over = c.of(part.family), relayed(needed, block.mesh.device)
    steps: Steps = {}
    for phase in demands:
        before = steps.get(phase.label, Cost(routes=needed, sram_peak_bytes=peak, relayed=over))
        steps[phase.label] = before + phase_cost(phase, own, over)
    return steps


@lru_cache(maxsize=4096)
def _read(part: Part, block: Block, args: tuple[int, ...]) -> tuple[list[Phase], int, int]:
    """The phases of a part, its routes, and a core's SRAM peak in bytes, none of which depend on constants."""
    sketch = sketched(part, block, *args)
    return phases(sketch), _colours(part, block, args), sram.account(sketch).peak_bytes


@lru_cache(maxsize=64)
def sketched(part: Part, block: Block, *args: int) -> Sketch:
    """A part's rounds as a `Sketch`, for pricing and for SRAM."""
    sketch = Sketch(block.mesh, part.title, part.family)
    part(sketch, block, *args)
    return sketch


def _colours(part: Part, block: Block, args: tuple[int, ...]) -> int:
    """The routes that a part needs, which follow from where messages go, not from their sizes."""
    mesh = block.mesh
    if part.family == "decode":
        return _routes_of(part, mesh, block.groups, block.policy, block.batch, args, block.shape.qk_norm)
    common = gcd(mesh.rows, mesh.cols)
    proportions = mesh.rows // common, mesh.cols // common
    times = min(common, -(-_PART_OF_A_MESH // max(proportions)))
    small = Mesh(times * proportions[0], times * proportions[1], mesh.device).square()
    groups = block.groups if times == common else None
    return _routes_of(part, small, groups, None, 1, tuple(min(size, 1) for size in args), block.shape.qk_norm)


@lru_cache(maxsize=1024)
def _routes_of(
    part: Part, mesh: Mesh, groups: Groups, policy: str | None, batch: int, args: tuple[int, ...], qk_norm: bool
) -> int:
    entries = max(1, -(-args[1] // mesh.shape[0]) + 1) if len(args) == 3 else 1  # an append needs room
    shape = DecoderShape(2, 2, 1, 1, 1, 2, 2, qk_norm=qk_norm)
    block = Block(shape, mesh, "fp16", "fp16", entries, policy, groups, batch)
    b = Builder(mesh, part.title, part.family)
    part(b, block, *args)
    return colours(b)


def tree_for(mesh: Mesh, c: Constants) -> Groups:
    """The groups of the fastest K-tree on a square mesh; None, the default tree, on any other mesh."""
    rows, cols = mesh.shape
    return best_groups(rows, c) if rows == cols else None


def best_groups(length: int, c: Constants) -> tuple[int, ...]:
    """The number of groups on the first of two levels that makes an all-reduce of one word fastest."""
    return _best_groups(length, c.stage_cycles, c.hop_cycles)


@lru_cache(maxsize=1024)
def _best_groups(length: int, stage: float, hop: float) -> tuple[int, ...]:
    if length <= 4:
        return ()
    count, stages, hops = two_level(length)
    return (int(count[(stages * stage + hops * hop).argmin()]),)


def _measured(program: str) -> bool:
    if program not in PROGRAMS:
        raise ShapeError(f"program {program!r}: choose 'true', the model's own, or 'measured', that of the paper")
    return program == "measured"
