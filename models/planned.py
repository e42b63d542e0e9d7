"""Where a model lies by what its user says, and by the cost model where they do not say it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from wafer_triton.cost.model_presets import ModelSizes
from wafer_triton.cost.planning import plan
from wafer_triton.device import Device
from wafer_triton.device import device as find_device
from wafer_triton.errors import MeshError, ShapeError, WaferError
from wafer_triton.mesh import as_mesh
from wafer_triton.models.blocks import Block
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.placement import Placement, decode_regions

Groups = tuple[int, ...] | None
SIDES = 36  # meshes that are tried: on a WSE-2 every 20th


def place(
    config: DecoderConfig, *, mesh: Any, device: Any, dtype: str, accumulate: str, max_length: int, max_prompt: int,
    kv_policy: str, batch: int, prefill_mesh: Any, groups: Groups, prefill_groups: Groups,
) -> Placement:  # fmt: skip
    """A model on a device, as `WaferForCausalLM` describes the arguments.

    Raises ShapeError for a size below 1, SramError or MeshError when the model does not fit.
    """
    for name, size in (("max_length", max_length), ("max_prompt", max_prompt), ("batch", batch)):
        if type(size) is not int or size < 1:
            raise ShapeError(f"{name} = {size!r} must be a whole number of at least 1")
    prompt = min(max_prompt, max_length)

    def block(mesh: Any) -> Block:
        on = as_mesh(mesh, device)
        return Block(config, on, dtype, accumulate, -(-max_length // on.rows), kv_policy, groups, batch)

    def placed(mesh: Any, other: Any) -> Placement:
        decode = block(mesh)
        apart = decode.mesh if other is None else as_mesh(other, decode.mesh.device)
        return Placement.make(decode, replace(decode, mesh=apart.square(), groups=prefill_groups, batch=1), prompt)

    if mesh is not None:
        return placed(mesh, prefill_mesh)
    on = find_device("wse2" if device is None else device)
    try:
        plans = _plans(config, on, block, prompt, max(1, max_length - prompt))
    except WaferError as error:
        hint = "take a larger device, or a mesh= of yours"
        raise MeshError(f"no mesh of {on.name} holds {config.name}; {hint} ({error})") from None
    for number, (decode_side, prefill_side) in enumerate(plans):
        try:
            return placed(decode_side, prefill_side if prefill_mesh is None else prefill_mesh)
        except WaferError:
            if number == len(plans) - 1:
                raise
    raise AssertionError("a plan is never empty")


def _plans(
    config: DecoderConfig, on: Device, block: Callable[[int], Block], prompt: int, answer: int
) -> list[tuple[int, int]]:
    """Sides of the meshes of decode and prefill, the fastest plan first, whose cores hold the model as it lies here.

    The cost model places a model without the padding of heads to whole rotary pairs, in 16 bits and without a head.
    """
    c, reason = config, None
    sides, step = [], max(1, min(on.rows, on.cols) // SIDES)
    for side in range(step, min(on.rows, on.cols) + 1, step):
        try:
            decode_regions(block(side))
        except WaferError as error:
            reason = error
            continue
        sides.append(side)
    if not sides:
        raise reason or MeshError(f"{on.name} has no cores")
    sizes = ModelSizes(
        c.name, c.num_hidden_layers, c.hidden_size, c.intermediate_size, c.num_attention_heads, c.num_key_value_heads,
        c.head_dim,
    )  # fmt: skip
    plans = plan(model=sizes, device=on, input=prompt, output=answer, sides=sides, best=len(sides) ** 2)
    return [(one.decode_mesh, one.prefill_mesh) for one in plans]
