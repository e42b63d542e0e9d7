"""The placement of a model: by its user's options, and by the cost model for options that are None."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from wafer_triton.algorithms.trees import as_groups
from wafer_triton.cost.constants import constants
from wafer_triton.cost.inference import first
from wafer_triton.cost.layers import head_group_choices, prefill_head_group_choices, prefill_price
from wafer_triton.cost.placement import ExpertPlacement
from wafer_triton.cost.placement import checked as check_experts
from wafer_triton.cost.placement import placed as with_experts
from wafer_triton.cost.price import best_groups
from wafer_triton.cost.search import Plan, plan
from wafer_triton.decoder.block import Block
from wafer_triton.device import Device
from wafer_triton.device import device as find_device
from wafer_triton.device.dtype import accumulator
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.errors import MeshError, SramError, WaferError, check_counts
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.options import PlaceOptions
from wafer_triton.place.regions import Placement, decode_regions
from wafer_triton.place.regions import place_model as place_blocks
from wafer_triton.text.progress import Progress, silent

SIDES = 36  # the number of meshes to try: on a WSE-2 sides of 20, 40, ...


def place(config: DecoderConfig, o: PlaceOptions, progress: Progress = silent) -> Placement:
    """Return the placement of a model by its options `o`; a search for meshes reports to `progress`.

    Raises ShapeError for a size below 1, SramError or MeshError when the model does not fit.
    """
    length, most, batch = check_counts(max_length=o.max_length, max_prompt=o.max_prompt, batch=o.batch)
    sums = accumulator(o.dtype, o.accumulate)
    o = replace(o, max_length=length, max_prompt=most, batch=batch, accumulate=sums)
    groups, prefill_groups = as_groups(o.groups), as_groups(o.prefill_groups)
    check_experts(o.experts, config)
    prompt = min(o.max_prompt, o.max_length)

    def blocks(mesh: Any) -> tuple[Block, ...]:
        corner = _corner(mesh, o.device)
        entries = -(-o.max_length // corner.rows)
        block = Block(config, corner, o.dtype, o.accumulate, entries, groups=groups, batch=o.batch)
        c = constants(corner.device)
        return head_group_choices(block, c, o.head_groups)

    def placed(mesh: Any, other: Any, finish: Callable[[Block], Block] = lambda block: block) -> Placement:
        def laid_out(decode: Block) -> Placement:
            apart = (decode.mesh if other is None else _beside(other, decode.mesh)).square()
            count, c = (
                o.head_groups if o.prefill_head_groups is None else o.prefill_head_groups,
                constants(apart.device),
            )
            own = replace(decode, mesh=apart, groups=prefill_groups, batch=1, head_groups=1, head_tree=None)
            tokens = -(-prompt // apart.shape[0])
            choices = with_experts(prefill_head_group_choices(own, tokens, c, count), tokens, c, o.experts)
            return place_blocks(finish(decode), list(map(finish, choices)), prompt, prefill_price(c))

        return first(laid_out, blocks(mesh))

    if o.mesh is not None:
        return placed(o.mesh, o.prefill_mesh)
    chip = find_device("wse2" if o.device is None else o.device)
    candidates: Iterable[tuple[int, Any]] = _plans(
        config, chip, blocks, prompt, max(1, o.max_length - prompt), o.head_groups, o.experts, progress
    )
    if o.prefill_mesh is not None:
        _beside(o.prefill_mesh, Mesh(1, 1, chip))
        candidates = [(side, o.prefill_mesh) for side in dict.fromkeys(side for side, _ in candidates)]
    failed, reason = list[int](), None
    for side, other in candidates:
        if o.prefill_mesh is None and other in failed:
            continue
        try:
            return placed(side, other, _with_trees)
        except WaferError as error:
            reason = error
            if isinstance(error, SramError) and other != side:  # too much for its cores, on any mesh of decode
                failed.append(other)
    assert reason is not None, "a plan is tried"
    raise MeshError(
        f"no mesh that was tried on {chip.name} holds {config.name}; take a larger device ({reason.message})"
    )


def _beside(prefill_mesh: Any, mesh: Mesh) -> Mesh:
    """Return the mesh of prefill on the device of decode's."""
    if isinstance(prefill_mesh, Mesh) and prefill_mesh.device != mesh.device:
        raise MeshError(
            f"prefill_mesh is on {prefill_mesh.device.name}, the mesh of decode on {mesh.device.name}; give the same "
            f"device to both"
        )
    return _corner(prefill_mesh, mesh.device)


def _corner(mesh: Any, device: Any) -> Mesh:
    return replace(as_mesh(mesh, device), origin=(0, 0), fold=(1, 1))


def _with_trees(block: Block) -> Block:
    """Return the block with its K-tree, else with the fastest on its square mesh."""
    if block.groups is not None:
        return block
    return replace(block, groups=best_groups(block.mesh.shape[0], constants(block.mesh.device).of("decode")))


def _plans(
    config: DecoderConfig, device: Device, blocks: Callable[[int], tuple[Block, ...]], prompt: int, answer: int,
    head_groups: int | None, experts: ExpertPlacement, progress: Progress,
) -> Iterator[tuple[int, int]]:  # fmt: skip
    """Yield sides of the meshes of decode and prefill whose cores hold decode, the fastest plan first.

    A plan is for 16 bits and takes no prompt in chunks, so sides without a plan come last. Reports as
    `search.plan`, and "meshes" to `progress`.
    """
    reason = None
    sides, step = [], max(1, min(device.rows, device.cols) // SIDES)
    tried = range(step, min(device.rows, device.cols) + 1, step)
    for number, side in enumerate(tried, 1):
        progress("meshes", number, len(tried))
        try:
            first(decode_regions, blocks(side))
        except WaferError as error:
            reason = error
            continue
        sides.append(side)
    if not sides:
        assert reason is not None, "a side is tried"
        raise MeshError(f"no mesh of {device.name} holds {config.name}; take a larger device ({reason.message})")
    plans: Sequence[Plan] = ()
    with suppress(WaferError):
        plans = plan(
            model=config, device=device, input=prompt, output=answer, sides=sides, best=len(sides) ** 2,
            head_groups=head_groups, experts=experts, progress=progress,
        )  # fmt: skip
    yield from ((fit.decode_mesh, fit.prefill_mesh) for fit in plans)
    yield from ((side, side) for side in sides)
