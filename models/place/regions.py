"""Where a decoder lies on a device: which blocks share a region, and how much of a prompt fits beside them at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from wafer_triton import notebook
from wafer_triton.cost.layers import sketched
from wafer_triton.cost.phases import Sketch
from wafer_triton.errors import MeshError, SramError, WaferError
from wafer_triton.mesh import Mesh
from wafer_triton.schedule import decode as decode_blocks
from wafer_triton.schedule import sram
from wafer_triton.schedule.block import Block, Part
from wafer_triton.schedule.expert_regions import prefill_pass
from wafer_triton.schedule.prefill import first

ENDS = ("embedding", "head")  # on a mesh of their own, and at rest; a tied model has its embedding in the head


@dataclass(frozen=True)
class Region:
    """A part of the device that holds some consecutive blocks, with its SRAM peak per core in bytes."""

    mesh: Mesh
    blocks: tuple[str, ...]
    sram_peak_bytes: int
    sram_by_buffer: dict[str, int]


@lru_cache(maxsize=256)
def decode_need(block: Block, kind: str) -> sram.Need:
    """What a block of this kind needs per core for decode."""
    return sram.need(_checked(part, block, *args) for part, args in decode_blocks.sharing(block, kind))


def _checked(part: Part, block: Block, *args: int) -> Sketch:
    """A part of a decoder, sketched; SramError if it does not fit a core."""
    sketch = sketched(part, block, *args)
    sram.check(sketch.build(draft=True))
    return sketch


def prefill_need(block: Block, kind: str, tokens: int, past: int) -> sram.Need:
    """What a block needs per core for prefill on a square mesh, with so many new and past tokens on each row."""
    need = _prefill_need(block, kind, tokens, past if kind == "attention" else 0)
    if isinstance(need, str):
        raise SramError(need)
    return need


@lru_cache(maxsize=256)
def _prefill_need(block: Block, kind: str, tokens: int, past: int) -> sram.Need | str:
    """The need, or why it is too much, which takes as long to find out."""
    try:
        parts: list[tuple[Part, tuple[int, ...]]] = [(first(block, kind), (tokens, past))]
        if kind == "experts" and block.expert_regions is not None:
            parts.append((prefill_pass, (tokens, 0, 0)))
        return sram.need([_checked(part, block, *args) for part, args in parts])
    except SramError as error:
        return str(error)


@dataclass(frozen=True)
class Placement:
    """A model on a device: its blocks for `decode` and `prefill`, on one mesh or two, and the regions that hold them.

    `prefill.mesh` is square: a rectangular one is folded to its lcm grid.
    """

    decode: Block
    prefill: Block
    head: Block
    regions: tuple[Region, ...]
    prefill_regions: tuple[Region, ...]

    @classmethod
    def make(cls, decode: Block, prefill: Block, max_prompt: int) -> Placement:
        """Lay the blocks on the device: as many consecutive ones to a region as its SRAM holds.

        Decode and prefill of up to `max_prompt` tokens must fit, a prompt in chunks if one block cannot take it whole.
        A head that does not fit one region gets a larger one, a whole multiple of it. Regions fill the device in rows,
        to and fro, so that consecutive ones are neighbours. Prefill has the second buffer of partial sums if that costs
        neither a chunk nor a region.

        Raises SramError when one block does not fit the mesh, which names the smallest mesh that works, and MeshError
        when the device is full, which says how many cores are missing.
        """
        tokens, single = cls._laid_out(decode, replace(prefill, overlap=False), max_prompt)
        try:
            as_many, double = cls._laid_out(decode, prefill, max_prompt)
        except WaferError:
            return single
        regions = (len(single.regions), len(single.prefill_regions))
        return double if (len(double.regions), len(double.prefill_regions)) == regions and as_many == tokens else single

    @classmethod
    def _laid_out(cls, decode: Block, prefill: Block, max_prompt: int) -> tuple[int, Placement]:
        """The tokens that a row takes at once, and the placement of the blocks as they are given."""
        head, shared = decode_blocks.head_block(decode), _shared(decode, prefill)
        held = decode.shape.layers_of
        tokens = _first(lambda sizes: all(_fits(decode, prefill, kind, *sizes) for kind in held), prefill, max_prompt)
        if tokens is None:
            for kind in held:  # the one that fails says so
                sram.fitting(partial(_smallest, decode, prefill, kind), decode.mesh)
            rows = -(-max_prompt // prefill.mesh.shape[0])
            raise SramError(
                f"prefill of {max_prompt} tokens on mesh {prefill.mesh}: even one token a row at a time does not fit "
                f"beside the {rows - 1} before it; give a smaller max_prompt, or a larger mesh"
            )
        sizes = (tokens, -(-max_prompt // prefill.mesh.shape[0]) - tokens)
        both = {kind: _needs(decode, prefill, kind, *sizes) for kind in held}
        kinds = {kind: first.beside(second) if shared else first for kind, (first, second) in both.items()}
        regions = _regions(decode.mesh, kinds, head)
        alone = {kind: second for kind, (_, second) in both.items()}
        apart = regions if shared else _regions(prefill.mesh, alone, head)
        return tokens, cls(decode, prefill, head, regions, apart)

    def _repr_html_(self) -> str:
        rows = (
            (
                str(region.mesh.origin),
                str(region.mesh),
                region.sram_peak_bytes,
                f"{region.blocks[0]} to {region.blocks[-1]}",
            )
            for region in self.regions
        )
        title = f"{len(self.regions)} regions on {self.decode.mesh.device.name}"
        return notebook.table(title, rows, ("origin", "cores", "SRAM peak (B)", "blocks"))

    def chunk(self, count: int) -> int:
        """How many tokens a row takes at once of a prompt of `count`; SramError names the longest prompt that fits."""
        tokens = _first(lambda sizes: self._overflow(*sizes) is None, self.prefill, count)
        if tokens is not None:
            return tokens
        side, limit = self.prefill.mesh.shape[0], self.prefill.mesh.device.sram_bytes
        rows = -(-count // side)
        longest = next(fewer for fewer in range(rows - 1, -1, -1) if fewer == 0 or not self._overflow(1, fewer - 1))
        raise SramError(
            f"prefill of {count} tokens on mesh {self.prefill.mesh} overflows the {limit:,} B of SRAM of each core on "
            f"{self.prefill.mesh.device.name}, where at most {longest * side} tokens fit as the model lies, in chunks; "
            f"give max_prompt={count} when it is placed, or a larger mesh ({self._overflow(1, rows - 1)})"
        )

    def _overflow(self, tokens: int, past: int) -> str | None:
        """Why so many new and past tokens a row do not fit; None if they do."""
        shared = self.prefill_regions is self.regions
        regions = [[name for name in region.blocks if name not in ENDS] for region in self.prefill_regions]
        mixes = {tuple(name.split()[-1] for name in names) for names in regions}
        try:
            both = {kind: _needs(self.decode, self.prefill, kind, tokens, past) for kind in self.decode.shape.layers_of}
        except SramError as too_much:
            return str(too_much)
        needs = {kind: decode.beside(prefill) if shared else prefill for kind, (decode, prefill) in both.items()}
        held = max((sram.total(needs[kind] for kind in mix) for mix in mixes), key=lambda sizes: sum(sizes.values()))
        peak = sum(held.values())
        buffers = ", ".join(f"{name} {size:,} B" for name, size in held.items())
        return None if peak <= self.prefill.mesh.device.sram_bytes else f"{peak:,} B a core: {buffers}"


def _shared(decode: Block, prefill: Block) -> bool:
    """Whether both phases run on the same cores; prefill's mesh is folded, which decode's may be too lopsided for."""
    return replace(prefill.mesh, fold=(1, 1)) == decode.mesh


def _needs(decode: Block, prefill: Block, kind: str, tokens: int, past: int) -> tuple[sram.Need, sram.Need]:
    """A block's needs in both phases; SramError if a schedule does not fit, or the block beside its prefill."""
    needs = decode_need(decode, kind), prefill_need(prefill, kind, tokens, past)
    if _shared(decode, prefill):
        peak, limit = sum(sram.total([needs[0].beside(needs[1])]).values()), decode.mesh.device.sram_bytes
        if peak > limit:
            raise SramError(
                f"{kind} on mesh {decode.mesh}: core {decode.mesh.origin} (and every other) needs {peak:,} B for "
                f"decode and prefill, {peak - limit:,} B over the {limit:,} B of SRAM on {decode.mesh.device.name}"
            )
    return needs


def _fits(decode: Block, prefill: Block, kind: str, tokens: int, past: int) -> bool:
    try:
        _needs(decode, prefill, kind, tokens, past)
    except SramError:
        return False
    return True


def _smallest(decode: Block, prefill: Block, kind: str, mesh: Mesh) -> tuple[sram.Need, sram.Need]:
    """A block's needs on another mesh, for a prompt that goes token by token; a prefill mesh of its own stays."""
    other = replace(prefill, mesh=mesh.square()) if _shared(decode, prefill) else prefill
    entries = -(-decode.entries * decode.mesh.rows // mesh.rows)  # of the same cache
    return _needs(replace(decode, mesh=mesh, entries=entries), other, kind, 1, 0)


def _first(fits: Callable[[tuple[int, int]], bool], prefill: Block, count: int) -> int | None:
    """The most tokens a row, of all of them halved again and again, that fit beside those before them."""
    rows = -(-count // prefill.mesh.shape[0])
    tokens = rows
    while tokens:
        if fits((tokens, rows - tokens)):
            return tokens
        tokens //= 2
    return None


def _regions(mesh: Mesh, kinds: dict[str, sram.Need], head: Block) -> tuple[Region, ...]:
    limit, needs = mesh.device.sram_bytes, kinds | {end: decode_need(head, end) for end in ENDS}
    packed: list[tuple[Mesh, list[str]]] = []
    shape = head.shape
    names = [f"layer {layer} {kind}" for layer in range(shape.num_hidden_layers) for kind in shape.kinds(layer)]
    for name in [*([] if head.shape.tie_word_embeddings else ["embedding"]), *names, "head"]:
        own = head.mesh if name in ENDS else mesh
        last = [*packed[-1][1], name] if packed and packed[-1][0] == own else []
        if last and sum(sram.total(needs[block.split()[-1]] for block in last).values()) <= limit:
            packed[-1][1].append(name)
        else:
            packed.append((own, [name]))
    origins = _place([own for own, _ in packed])
    regions = []
    for (own, names), origin in zip(packed, origins, strict=True):
        held = sram.total(needs[block.split()[-1]] for block in names)
        regions.append(Region(replace(own, origin=origin), tuple(names), sum(held.values()), held))
    return tuple(regions)


def decode_regions(block: Block) -> tuple[Region, ...]:
    """The regions of decode alone, which are quick to find out; raises as `Placement.make`."""
    needs = {kind: decode_need(block, kind) for kind in block.shape.layers_of}
    return _regions(block.mesh, needs, decode_blocks.head_block(block))


def _place(meshes: list[Mesh]) -> list[tuple[int, int]]:
    """Origins of regions in rows from the top, every second row from right to left."""
    device = meshes[0].device
    origins: list[tuple[int, int]] = []
    top, height, used, leftwards = 0, 0, 0, False
    for mesh in meshes:
        if used + mesh.cols > device.cols:
            top, height, used, leftwards = top + height, 0, 0, not leftwards
        if top + mesh.rows > device.rows or mesh.cols > device.cols:
            wanted = sum(mesh.rows * mesh.cols for mesh in meshes)
            placed = sum(mesh.rows * mesh.cols for mesh in meshes[: len(origins)])
            raise MeshError(
                f"the model does not fit {device.name}: its {len(meshes)} regions need {wanted:,} cores, and after "
                f"{len(origins)} regions ({placed:,} cores of {device.cores:,}) there is no room for {mesh}; "
                f"{wanted - placed:,} cores are left to place"
            )
        origins.append((top, device.cols - used - mesh.cols if leftwards else used))
        used, height = used + mesh.cols, max(height, mesh.rows)
    return origins
