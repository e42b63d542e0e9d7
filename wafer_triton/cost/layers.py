"""Layers of a decoder, priced: the sub-layers that run (`decoder.decode`, `decoder.prefill`), step by step.

Two programs are priced, by the same builders with two shapes. "full" is the model's own: its heads, its grouped keys
and values, a cache that grows, and the LM head after the layers. "paper-benchmark" is the program that WaferLLM ran on
silicon: one head as wide as the model, keys and values as wide as queries, a cache of fixed length, and no LM head
(OSDI'25, section 4). Tiles and sums are the block's; the blocks built here have fp16 for both, as on the wafer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from wafer_triton.cost.constants import Constants
from wafer_triton.cost.phases import Phase, prefill_products
from wafer_triton.cost.price import Cost, Groups, Reading, best_groups, phase_cost, read, relayed, sum_cycles, tree_for
from wafer_triton.decoder import decode, prefill
from wafer_triton.decoder.block import Block, SubLayer, cached_across_devices, draft, resolve_variant
from wafer_triton.decoder.heads import HeadGroups, distinct_head_groups
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ShapeError, shown
from wafer_triton.place.need import decode_need
from wafer_triton.shape.decoder import DecoderShape

PROGRAMS = ("full", "paper-benchmark")
Costs = dict[str, Cost]  # by the name of a step of the algorithm, in order


def decode_block(
    shape: DecoderShape, mesh: Mesh, context: int, c: Constants, groups: Groups = None, program: str = "full",
    head_groups: int | None = None,
) -> Block:  # fmt: skip
    """Return the first of `decode_blocks`."""
    return decode_blocks(shape, mesh, context, c, groups, program, head_groups)[0]


def decode_blocks(
    shape: DecoderShape, mesh: Mesh, context: int, c: Constants, groups: Groups = None, program: str = "full",
    head_groups: int | None = None,
) -> tuple[Block, ...]:  # fmt: skip
    """Return blocks of a decode layer with `context` tokens in its cache; `groups` None takes `tree_for` the mesh.

    `head_groups` None takes `head_group_choices`; the paper-benchmark program has one. Raises ShapeError for an unknown
    program, MeshError for head groups that do not fit.
    """
    tree = tree_for(mesh, c.of("decode")) if groups is None else groups
    entries = -(-context // mesh.shape[0])
    if is_paper_benchmark(program):
        one = 1 if head_groups is None else head_groups
        return (Block(shape.paper_benchmark(), mesh, "fp16", "fp16", entries, None, tree, head_groups=one),)
    block = Block(shape, mesh, "fp16", "fp16", entries, "shift", tree)
    return head_group_choices(block, c, head_groups)


def prefill_block(shape: DecoderShape, mesh: Mesh, c: Constants, program: str = "full") -> Block:
    """Return the block of a prefill layer with one head group, on the square grid of a mesh.

    `prefill_head_group_choices` has others. Raises ShapeError for an unknown program.
    """
    square = mesh.square()
    own = shape.paper_benchmark() if is_paper_benchmark(program) else shape
    return Block(own, square, "fp16", "fp16", groups=tree_for(square, c))


def decode_steps(block: Block, context: int, c: Constants) -> Costs:
    """Return the costs of one token in one decode layer; if layers are of two kinds, the mean over all layers."""
    return _mean(block, decode_sub_layers(block, context), c)


def prefill_steps(block: Block, tokens: int, c: Constants, at_once: int | None = None) -> Costs:
    """Return the costs of one prefill layer for `tokens` tokens a row, in chunks of `at_once` (None: all).

    If layers are of two kinds, the costs are the mean over all layers.
    """
    return _mean(block, prefill_sub_layers(block, tokens, at_once), c)


def prefill_price(c: Constants) -> Callable[[Block, int, int], float]:
    """Return the function of a block, tokens a row and tokens at once to the cycles of a prefill layer."""
    return lambda block, tokens, at_once: total(prefill_steps(block, tokens, c, at_once)).cycles


KindsAndSubLayers = Iterable[tuple[str, SubLayer, tuple[int, ...]]]  # the kind of block, a sub-layer, its arguments


def decode_sub_layers(block: Block, context: int) -> KindsAndSubLayers:
    """Yield the sub-layers of the model's decode layers, for every kind of layer."""
    for kind in feed_forward(block):
        sub_layers = decode.layer(block, context, kind)
        yield from (("attention", *each) for each in sub_layers[:-1] if kind == feed_forward(block)[0])
        yield kind, *sub_layers[-1]


def prefill_sub_layers(block: Block, tokens: int, at_once: int | None) -> KindsAndSubLayers:
    """Yield the sub-layers of the model's prefill layers, for every kind of layer and every chunk in turn."""
    size = tokens if at_once is None else at_once
    for past in range(0, tokens, size):
        yield from chunk_sub_layers(block, min(size, tokens - past), past)


def chunk_sub_layers(block: Block, tokens: int, past: int) -> KindsAndSubLayers:
    """Yield the sub-layers of prefill layers for a chunk of `tokens` tokens a row, after `past` ones."""
    for kind in feed_forward(block):
        first, *others = prefill.layer(block, tokens, past, kind)
        if kind == feed_forward(block)[0]:
            yield "attention", *first
        yield from ((kind, *each) for each in others)


def feed_forward(block: Block) -> tuple[str, ...]:
    """Return the kinds of block after attention that the model's layers have."""
    return tuple(kind for kind in block.shape.layers_of if kind != "attention")


def _mean(block: Block, sub_layers: KindsAndSubLayers, c: Constants) -> Costs:
    """Return the mean costs of a layer: each sub-layer is weighted by the share of layers with its kind of block."""
    held, every, steps = block.shape.layers_of, block.shape.num_hidden_layers, Costs()
    for kind, sub_layer, args in sub_layers:
        for name, cost in _sub_layer(sub_layer, block, args, c).items():
            steps[name] = steps.get(name, Cost()) + (cost if held[kind] == every else cost * (held[kind] / every))
    return steps


def costs_by_kind(block: Block, sub_layers: KindsAndSubLayers, c: Constants) -> dict[str, Cost]:
    """Return the cost of sub-layers by the kind of block that they are of, see `decode_sub_layers` and others."""
    kinds: dict[str, Costs] = {kind: {} for kind in block.shape.layers_of}
    for kind, sub_layer, args in sub_layers:
        _add(kinds[kind], _sub_layer(sub_layer, block, args, c))
    return {kind: total(steps) for kind, steps in kinds.items()}


def _add(steps: Costs, more: Costs) -> None:
    for name, cost in more.items():
        steps[name] = steps.get(name, Cost()) + cost


def head_steps(block: Block, tokens: int, c: Constants) -> Costs:
    """Return the costs of the final norm and the LM head for `tokens`; MeshError if the device does not hold them."""
    return _sub_layer(decode.head, decode.head_block(block), (tokens,), c)


def embedding_steps(block: Block, tokens: int, c: Constants) -> Costs:
    """Return the costs of embedding `tokens` on the mesh of the head; MeshError if the device does not hold it."""
    home = decode.head_block(block)
    sizes = decode.batches(decode.embed, home, tokens)
    return _steps(home, ((decode.embed, (size,)) for size, times in sizes.items() for _ in range(times)), c)


def total(steps: Costs) -> Cost:
    """Return the cost of all steps."""
    return sum(steps.values(), Cost())


def _steps(block: Block, sub_layers: Iterable[tuple[SubLayer, tuple[int, ...]]], c: Constants) -> Costs:
    steps: Costs = {}
    for sub_layer, args in sub_layers:
        _add(steps, _sub_layer(sub_layer, block, args, c))
    return steps


def _sub_layer(sub_layer: SubLayer, block: Block, args: tuple[int, ...], c: Constants) -> Costs:
    """Return the cost of a sub-layer by step."""
    sub_layer, block = resolve_variant(sub_layer, block)
    found = _read(block, sub_layer, args)
    own, over = c.of(sub_layer.family), relayed(found.routes, block.mesh.device)
    steps, whole = Costs(), Cost(routes=found.routes, sram_peak_bytes=found.sram_peak_bytes, relayed=over)
    for phase in found.phases:
        steps[phase.label] = steps.get(phase.label, whole) + phase_cost(phase, own, over)
    return steps


@cached_across_devices(4096)
def _read(block: Block, sub_layer: SubLayer, args: tuple[int, ...]) -> Reading:
    """Return the reading of a sub-layer."""
    return read(draft(sub_layer, block, *args))


PhasesOf = dict[str, list[Phase]]  # by the kind of block


def phases_by_kind(block: Block, sub_layers: KindsAndSubLayers) -> PhasesOf:
    """Return the phases of sub-layers by the kind of block that they are of."""
    found: PhasesOf = {kind: [] for kind in block.shape.layers_of}
    for kind, sub_layer, args in sub_layers:
        own, plain = resolve_variant(sub_layer, block)
        found[kind] += _read(plain, own, args).phases
    return found


def head_group_choices(block: Block, c: Constants, count: int | None = None) -> tuple[Block, ...]:
    """Return a decode block with `count` head groups, or blocks in numbers of head groups that a core holds.

    The one that is predicted to be the fastest is first. If a core holds none, the one that needs the least SRAM is
    alone. The prediction is for a cache whose entries a row are rounded up to a power of two. Raises MeshError for a
    count that does not fit the model or the mesh.
    """
    if count is not None:
        return (_grouped(block, count, c),)
    alike = replace(block, entries=1 << (block.entries - 1).bit_length(), policy=block.policy and "shift")
    choices = [_grouped(block, count, c) for count in _fastest(alike, c)]
    limit = block.mesh.device.sram_bytes
    return tuple(each for each in choices if decode_bytes(each) <= limit) or (min(choices, key=decode_bytes),)


def _grouped(block: Block, count: int, c: Constants) -> Block:
    """Return a decode block with `count` head groups and the fastest K-tree over the columns of one."""
    count = HeadGroups(block.shape, block.mesh.shape[1], count).count  # raises for a count that does not fit
    tree = None if count == 1 else best_groups(block.mesh.shape[1] // count, c.of("decode"))
    return replace(block, head_groups=count, head_tree=tree)


def decode_bytes(block: Block) -> int:
    """Return a decode layer's bytes on a core: resident buffers and the largest workspace."""
    needs = {kind: decode_need(block, kind) for kind in block.shape.layers_of}
    resident = {kind: sum(need.resident.values()) for kind, need in needs.items()}
    workspace = max(sum(need.workspace.values()) for need in needs.values())
    return resident["attention"] + max(resident[kind] for kind in feed_forward(block)) + workspace


def prefill_head_group_choices(block: Block, tokens: int, c: Constants, count: int | None = None) -> list[Block]:
    """Return a prefill block with `count` head groups, or with as many as there are columns.

    None takes two numbers and then one group. The two have the fewest predicted cycles of products with `tokens` tokens
    on a row, the best first. Groups of more than `WIDEST_GROUP` columns are left out: few models have that few heads,
    and pricing takes long, as every column has sums of its own. Raises MeshError for a count that does not fit.
    """
    choices = prefill.head_group_blocks(block, count)
    if count is not None:
        return choices
    cycles = {choice: sum_cycles(prefill_products(choice, tokens), c) for choice in choices}
    fastest = sorted(choices, key=lambda choice: cycles[choice])[:2]
    return list(dict.fromkeys([*fastest, prefill.in_head_groups(block, 1)]))


_PRICED = 3  # numbers of head groups that are priced: the three with the least padding


def _fastest(block: Block, c: Constants) -> tuple[int, ...]:
    """Return numbers of head groups, the fastest first; one group is last, as it is never the fastest of several."""
    kinds = distinct_head_groups(block.shape, block.mesh.shape[1])
    narrow = sorted(kinds, key=lambda kind: ((kind.query_heads + 2 * kind.kv_heads) * kind.pairs, kind.query_heads))
    priced = {kind.count: _attention_cycles(_grouped(block, kind.count, c), c) for kind in narrow[:_PRICED]}
    return tuple(dict.fromkeys([*sorted(priced, key=lambda count: priced[count]), 1]))


def _attention_cycles(block: Block, c: Constants) -> float:
    sub_layers = decode.layer(block, block.mesh.shape[0] * block.entries)[:-1]
    return total(_steps(block, sub_layers, c)).cycles


def is_paper_benchmark(program: str) -> bool:
    """Return whether `program` is "paper-benchmark"; ShapeError for a name that is not in `PROGRAMS`."""
    if program not in PROGRAMS:
        raise ShapeError(f"program {shown(program)}: choose 'full', the model's own, or 'paper-benchmark', the paper's")
    return program == "paper-benchmark"
