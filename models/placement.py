"""Where a decoder's weights lie: tiles of a block by phase, and regions of the device by block.

Weights are given under their Hugging Face names, [out, in]. Decode places the output and down projections the other
way round than the rest, so that consecutive MeshGEMVs alternate axes; prefill places all alike and skews them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


@dataclass(frozen=True)
class Need:
    """Bytes of a block on a core, by buffer: what stays (weights, caches), and the most that comes and goes."""

    stays: dict[str, int]
    passes: dict[str, int]


def regions(block: Block, max_prompt: int) -> list[Region]:
    """Lay the decoder's blocks on the device: as many consecutive blocks to a region as its SRAM holds.

    Both decode and prefill of up to `max_prompt` tokens must fit: a longer one spreads the blocks wider.

    A head that does not fit one region gets a larger one, a whole multiple of it. Regions fill the device in rows, to
    and fro, so that consecutive ones are neighbours. Raises SramError when one block does not fit the mesh (it names
    the smallest mesh that works) and MeshError when the device is full (it says how many cores are missing).
    """
    limit = block.mesh.device.sram_bytes

    def fitting(kind: str) -> Need:
        return sram.fitting(
            lambda mesh: need(on := replace(block, mesh=mesh), kind, tokens_a_row(on, max_prompt)), block.mesh
        )

    needs = {kind: fitting(kind) for kind in KINDS}
    packed: list[tuple[Mesh, list[str]]] = []
    for layer in range(block.config.num_hidden_layers):
        for kind in KINDS:
            if packed and total(needs[one.split()[-1]] for one in [*packed[-1][1], kind]).peak <= limit:
                packed[-1][1].append(f"layer {layer} {kind}")
            else:
                packed.append((block.mesh, [f"layer {layer} {kind}"]))
    head = head_block(block)
    needs["head"] = need(head, "head")
    if head.mesh == block.mesh and total(needs[one.split()[-1]] for one in [*packed[-1][1], "head"]).peak <= limit:
        packed[-1][1].append("head")
    else:
        packed.append((head.mesh, ["head"]))
    origins = _place([mesh for mesh, _ in packed])
    found = []
    for (mesh, names), origin in zip(packed, origins, strict=True):
        held = total(needs[one.split()[-1]] for one in names)
        found.append(Region(replace(mesh, origin=origin), tuple(names), held.peak, held.by_buffer))
    return found


KINDS = ("attention", "ffn")


@lru_cache(maxsize=64)
def schedule(block: Block, step: str, *args: int) -> Schedule:
    """The schedule of one step of a block, built once."""
    made: Schedule = getattr(block, step)(*args)
    return made


@lru_cache(maxsize=64)
def need(block: Block, kind: str, tokens: int = 0) -> Need:
    """What a block of this kind needs per core for decode and, with `tokens` on each row, for prefill."""
    steps = {
        "attention": ("decode_project", "decode_attend"),
        "ffn": ("decode_ffn",),
        "head": ("head",),
    }[kind]
    built = [schedule(block, step) for step in steps]
    stays = {one.name: one.bytes for made in built for one in made.buffers.values() if one.role == "resident"}
    stays.pop("x", None)  # the activation is the region's, not the block's
    if tokens and kind != "head":
        square = replace(block, mesh=block.mesh.square())
        built.append(schedule(square, f"prefill_{kind}", tokens))
    passes: dict[str, int] = {}
    for made in built:
        live = {name: size for name, size in sram.account(made).by_buffer.items() if name not in stays}
        passes = max(passes, live, key=lambda one: sum(one.values()))
    return Need(stays, passes)


@dataclass(frozen=True)
class Held:
    """What a core of a region holds at the most."""

    by_buffer: dict[str, int]

    @property
    def peak(self) -> int:
        """Bytes."""
        return sum(self.by_buffer.values())


def total(needs: Iterable[Need]) -> Held:
    """Weights and caches of all blocks of a region, and the largest working set of any."""
    held: dict[str, int] = {}
    passing: dict[str, int] = {}
    for one in needs:
        for name, size in one.stays.items():
            held[name] = held.get(name, 0) + size
        passing = max(passing, one.passes, key=lambda live: sum(live.values()))
    return Held(held | passing)


def tokens_a_row(block: Block, count: int) -> int:
    """Prompt tokens on each row of the square mesh of prefill."""
    return -(-count // block.mesh.square().shape[0])


def check_prompt(block: Block, placed: Iterable[Region], count: int) -> None:
    """Raise SramError if prefill of `count` tokens overflows a region; it names the longest prompt that fits."""
    limit = block.mesh.device.sram_bytes
    mixes = {
        tuple(name.split()[-1] for name in region.blocks) for region in placed if region.mesh.rows == block.mesh.rows
    }

    def overflow(tokens: int) -> str | None:
        """Why a prompt of so many tokens a row does not fit; None if it does."""
        try:
            held = max((total(need(block, kind, tokens) for kind in mix) for mix in mixes), key=lambda one: one.peak)
        except SramError as too_much:
            return str(too_much)
        buffers = ", ".join(f"{name} {size:,} B" for name, size in held.by_buffer.items())
        return None if held.peak <= limit else f"{held.peak:,} B a core: {buffers}"

    tokens = tokens_a_row(block, count)
    why = overflow(tokens)
    if why is None:
        return
    rows = block.mesh.square().shape[0]
    longest = next(fewer * rows for fewer in range(tokens - 1, -1, -1) if fewer == 0 or overflow(fewer) is None)
    raise SramError(
        f"prefill of {count} tokens on mesh {block.mesh} overflows the {limit:,} B of SRAM of each core on "
        f"{block.mesh.device.name}, where at most {longest} tokens fit as the model lies; give max_prompt={count} when "
        f"it is placed, or a larger mesh ({why})"
    )


def head_block(block: Block) -> Block:
    """The block on the smallest whole multiple of its mesh that holds the LM head."""
    mesh, times = block.mesh, 1
    while True:
        bigger = replace(block, mesh=replace(mesh, rows=mesh.rows * times, cols=mesh.cols * times))
        try:
            schedule(bigger, "head")
        except SramError:
            times += 1
            continue
        return bigger


def _place(meshes: list[Mesh]) -> list[tuple[int, int]]:
    """Origins of regions in rows from the top, every second row from right to left."""
    device = meshes[0].device
    origins: list[tuple[int, int]] = []
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
