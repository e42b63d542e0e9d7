"""Where a decoder's weights lie: tiles of a block by phase, and regions of the device by block.

Weights are given under their Hugging Face names, [out, in]. Decode places the output and down projections the other
way round than the rest, so that consecutive MeshGEMVs alternate axes; prefill places all alike and skews them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from wafer_triton import sram
from wafer_triton.errors import MeshError, SramError
from wafer_triton.layout import scatter
from wafer_triton.mesh import Mesh
from wafer_triton.models.blocks import Block
from wafer_triton.schedule.gemm import align
from wafer_triton.schedule.rounds import Builder, Schedule
from wafer_triton.torch_executor import TorchExecutor

Tiles = dict[str, torch.Tensor]
Weights = Mapping[str, torch.Tensor]


def attention_tiles(weights: Weights, layer: int, block: Block, phase: str) -> Tiles:
    """The tiles [rows, cols, *tile] of an attention block's norm, wqkv and wo for "decode" or "prefill"."""
    mesh, prefix = block.mesh, f"model.layers.{layer}"
    into, out_of = ("y", "x") if phase == "decode" else ("x", "y")
    c = block.config
    parts = [
        scatter(weights[f"{prefix}.self_attn.{name}_proj.weight"], mesh, "(h two x p) (y d) -> d (h two p)", h=h, two=2)
        for name, h in (("q", c.num_attention_heads), ("k", c.num_key_value_heads), ("v", c.num_key_value_heads))
    ]
    output = scatter(
        weights[f"{prefix}.self_attn.o_proj.weight"],
        mesh,
        f"({into} d) (h two {out_of} p) -> (h two p) d",
        h=c.num_attention_heads,
        two=2,
    )
    tiles = {
        "norm": scatter(weights[f"{prefix}.input_layernorm.weight"], mesh, f"({into} d)").tiles,
        "wqkv": torch.cat([part.tiles for part in parts], -1),
        "wo": output.tiles,
    }
    return tiles if phase == "decode" else _skewed(tiles, mesh)


def ffn_tiles(weights: Weights, layer: int, block: Block, phase: str) -> Tiles:
    """The tiles of a feed-forward block's norm, wgu and wdown."""
    mesh, prefix = block.mesh, f"model.layers.{layer}"
    into, out_of = ("y", "x") if phase == "decode" else ("x", "y")
    up_gate = [
        scatter(weights[f"{prefix}.mlp.{name}_proj.weight"], mesh, "(x f) (y d) -> d f") for name in ("gate", "up")
    ]
    tiles = {
        "norm": scatter(weights[f"{prefix}.post_attention_layernorm.weight"], mesh, f"({into} d)").tiles,
        "wgu": torch.cat([part.tiles for part in up_gate], -1),
        "wdown": scatter(weights[f"{prefix}.mlp.down_proj.weight"], mesh, f"({into} d) ({out_of} f) -> f d").tiles,
    }
    return tiles if phase == "decode" else _skewed(tiles, mesh)


def head_tiles(weights: Weights, block: Block) -> Tiles:
    """The tiles of the final norm and the LM head (the embedding where they are tied)."""
    table = "model.embed_tokens.weight" if block.config.tie_word_embeddings else "lm_head.weight"
    return {
        "norm": scatter(weights["model.norm.weight"], block.mesh, "(y d)").tiles,
        "whead": scatter(weights[table], block.mesh, "(x v) (y d) -> d v").tiles,
    }


def _skewed(tiles: Tiles, mesh: Mesh) -> Tiles:
    """Weights are aligned by the host, once: moved as MeshGEMM's alignment would move them."""
    source = _skew(mesh)
    return {name: tile if name == "norm" else tile.flatten(0, 1)[source].view_as(tile) for name, tile in tiles.items()}


@lru_cache(maxsize=8)
def _skew(mesh: Mesh) -> torch.Tensor:
    """From which core each tile comes: the alignment schedule, run on core numbers."""
    b = Builder(mesh, "skew")
    align(b, b.buffer("w", (1,), "fp32", "resident"), "y")
    cores = torch.arange(mesh.cores, dtype=torch.float32).view(*mesh.shape, 1)
    program = TorchExecutor().bind(b.build(), {"w": cores})
    program.run()
    return program.read("w").flatten().long()


@dataclass(frozen=True)
class Region:
    """A part of the device that holds some consecutive blocks, with its SRAM peak per core in bytes."""

    mesh: Mesh
    blocks: tuple[str, ...]
    sram_peak_bytes: int
    sram_by_buffer: dict[str, int]


def regions(block: Block) -> list[Region]:
    """Lay the decoder's blocks on the device: as many consecutive blocks to a region as its SRAM holds.

    A head that does not fit one region gets a larger one, a whole multiple of it. Regions fill the device in rows, to
    and fro, so that consecutive ones are neighbours. Raises SramError when one block does not fit the mesh (it names
    the smallest mesh that works) and MeshError when the device is full (it says how many cores are missing).
    """
    limit = block.mesh.device.sram_bytes
    packed: list[tuple[Mesh, list[str], list[_Need]]] = []
    for name, need in _needs(block):
        if packed and _total([*packed[-1][2], need]) <= limit:
            packed[-1][1].append(name)
            packed[-1][2].append(need)
        else:
            packed.append((block.mesh, [name], [need]))
    head = head_block(block)
    need = _need([head.head()])
    if head.mesh == block.mesh and _total([*packed[-1][2], need]) <= limit:
        packed[-1][1].append("head")
        packed[-1][2].append(need)
    else:
        packed.append((head.mesh, ["head"], [need]))
    origins = _place([mesh for mesh, _, _ in packed])
    return [
        Region(replace(mesh, origin=origin), tuple(names), _total(needs), _by_buffer(names, needs))
        for (mesh, names, needs), origin in zip(packed, origins, strict=True)
    ]


def head_block(block: Block) -> Block:
    """The block on the smallest whole multiple of its mesh that holds the LM head."""
    mesh, times = block.mesh, 1
    while True:
        bigger = replace(block, mesh=replace(mesh, rows=mesh.rows * times, cols=mesh.cols * times))
        try:
            bigger.head()
        except SramError:
            times += 1
            continue
        return bigger


@dataclass(frozen=True)
class _Need:
    """Bytes that stay on a core, by buffer, and the most that come and go."""

    stay: dict[str, int]
    passing: dict[str, int]


def _need(schedules: list[Schedule]) -> _Need:
    stay = {
        buffer.name: buffer.bytes
        for schedule in schedules
        for buffer in schedule.buffers.values()
        if buffer.role == "resident"
    }
    passing: dict[str, int] = {}
    for schedule in schedules:
        live = {name: size for name, size in sram.account(schedule).by_buffer.items() if name not in stay}
        passing = max(passing, live, key=lambda one: sum(one.values()))
    return _Need(stay, passing)


def _needs(block: Block) -> list[tuple[str, _Need]]:
    def attention(mesh: Mesh) -> _Need:
        on = replace(block, mesh=mesh)
        return _need([on.decode_project(), on.decode_append(0), on.decode_attend()])

    def ffn(mesh: Mesh) -> _Need:
        return _need([replace(block, mesh=mesh).decode_ffn()])

    kinds: dict[str, Callable[[Mesh], _Need]] = {"attention": attention, "ffn": ffn}
    needs = {kind: sram.fitting(build, block.mesh) for kind, build in kinds.items()}
    layers = range(block.config.num_hidden_layers)
    return [(f"layer {layer} {kind}", needs[kind]) for layer in layers for kind in kinds]


def _total(needs: list[_Need]) -> int:
    """Weights and caches of all blocks, and the largest working set of any; the activation `x` is shared."""
    return sum(_by_buffer([""] * len(needs), needs).values())


def _by_buffer(names: list[str], needs: list[_Need]) -> dict[str, int]:
    held: dict[str, int] = {}
    for need in needs:
        for name, size in need.stay.items():
            held[name] = size if name == "x" else held.get(name, 0) + size
    return held | max((need.passing for need in needs), key=lambda one: sum(one.values()))


def _place(meshes: list[Mesh]) -> list[tuple[int, int]]:
    """Origins of regions in rows from the top, every second row from right to left."""
    device, origins = meshes[0].device, []
    top, height, used, leftwards = 0, 0, 0, False
    for mesh in meshes:
        if used + mesh.cols > device.cols:
            top, height, used, leftwards = top + height, 0, 0, not leftwards
        if top + mesh.rows > device.rows or mesh.cols > device.cols:
            wanted = sum(one.rows * one.cols for one in meshes)
            placed = sum(one.rows * one.cols for one in meshes[: len(origins)])
            raise MeshError(
                f"the model does not fit {device.name}: its {len(meshes)} regions need {wanted:,} cores, and after "
                f"{len(origins)} regions ({placed:,} cores of {device.cores:,}) there is no room for {mesh}; "
                f"{wanted - placed:,} cores are missing"
            )
        origins.append((top, device.cols - used - mesh.cols if leftwards else used))
        used, height = used + mesh.cols, max(height, mesh.rows)
    return origins
