"""One model's blocks on one mesh: the sizes of a core's tiles, and their common code in decode and prefill.

The columns hold the heads in groups (see `decoder.heads`); with one group every column holds the same few rotary
pairs of every head. A score, and the norm of a head (Qwen3), is a sum along x over the columns of a group.
The sequence of keys and values lies along y in both phases (WaferLLM, OSDI'25, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from wafer_triton import local
from wafer_triton.algorithms.kv_cache import KvCache
from wafer_triton.algorithms.norm import rms_norm
from wafer_triton.algorithms.reduce import all_reduce
from wafer_triton.algorithms.segment_gemm import BlockRing
from wafer_triton.decoder.expert_places import ExpertRegions
from wafer_triton.decoder.heads import HeadGroups
from wafer_triton.device import ANY
from wafer_triton.device.dtype import accumulator
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import check_counts
from wafer_triton.schedule import sram
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.moe import Experts

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Block:
    """A model on a mesh: storage and accumulation types, KV cache, K-tree, sequences decoded together.

    A row holds `entries` KV entries for each of `batch` sequences. `policy` is as in `KvCache`; with None the cache is
    an input and never grows. `groups` are the K-tree's, as in `ktree` (None: `default_groups`). With `overlap` prefill
    has a second buffer for the partial sums of scores, so that their reduction flows beside the next product.

    The columns hold the heads in `head_groups` groups. `head_tree` are the groups of the K-tree over the columns of one
    of several head groups (None: `default_groups`). In prefill experts lie in `expert_regions` of the mesh, or each on
    all of it (None). Raises MeshError for head groups that do not fit the model or the mesh.
    """

    shape: DecoderShape
    mesh: Mesh
    dtype: str = "fp32"
    accumulate: str = "fp32"
    entries: int = 1
    policy: str | None = "shift"
    groups: tuple[int, ...] | None = None
    batch: int = 1
    overlap: bool = True
    head_groups: int = 1
    head_tree: tuple[int, ...] | None = None
    expert_regions: ExpertRegions | None = None

    def __post_init__(self) -> None:
        HeadGroups(self.shape, self.mesh.shape[1], self.head_groups)
        for name in ("entries", "batch", "head_groups"):  # numpy's numbers become Python's
            object.__setattr__(self, name, *check_counts(**{name: getattr(self, name)}))

    def cache(self, prefilled: int = 0) -> KvCache:
        """Return the KV cache of a sequence whose prompt had `prefilled` tokens."""
        assert self.policy is not None, "a cache that never grows has no policy"
        return KvCache(self.mesh.shape[0], self.entries, self.policy, prefilled)

    @property
    def slots(self) -> int:
        """KV slots of a row."""
        return self.entries if self.policy is None else self.cache().slots

    @property
    def sum_dtype(self) -> str:
        """The dtype of partial sums."""
        return accumulator(self.dtype, self.accumulate)

    @property
    def weight_dtype(self) -> str:
        """The dtype in which weight matrices are stored and moved; all else has `dtype`."""
        return self.shape.weights or self.dtype

    @cached_property
    def anywhere(self) -> Block:
        """The block on `ANY` device: counts do not depend on its numbers, so devices can share cached counts.

        A variant keeps its device, as its parts may read it.
        """
        return self if self.shape.variant is not None else replace(self, mesh=replace(self.mesh, device=ANY))

    @cached_property
    def layout(self) -> HeadGroups:
        """Which heads, and which rotary pairs of them, a column holds."""
        return HeadGroups(self.shape, self.mesh.shape[1], self.head_groups)

    @property
    def pairs(self) -> int:
        """Rotary pairs of a head that one column holds."""
        return self.layout.pairs

    @property
    def head_width(self) -> int:
        """Dimensions of a head that one column holds."""
        return self.layout.head_width

    @property
    def query_heads(self) -> int:
        """Query heads of a core."""
        return self.layout.query_heads

    @property
    def kv_heads(self) -> int:
        """Key-value heads of a core."""
        return self.layout.kv_heads

    @property
    def all_heads(self) -> int:
        """Query, key and value heads of a core."""
        return self.query_heads + 2 * self.kv_heads

    @property
    def gemv_options(self) -> dict[str, Any]:
        """The options of a product of decode."""
        return {"accumulate": self.accumulate, "groups": self.groups}

    @property
    def head_reduce_options(self) -> dict[str, Any]:
        """Return the options of an all-reduce along x that sums over the columns of a head."""
        if self.head_groups == 1:
            return {"groups": self.groups}
        return {"groups": self.head_tree, "segment": self.layout.width}

    @property
    def block_ring(self) -> BlockRing:
        """Where the blocks of scores of a row lie on the columns of a head group, in prefill."""
        return BlockRing(self.mesh.shape[1], self.layout.width)

    @property
    def scale(self) -> float:
        """The factor of scores, 1 / sqrt(head_dim)."""
        return self.shape.head_dim**-0.5

    @property
    def unfused(self) -> bool:
        """Whether no steps are fused, as in the measured kernels.

        Otherwise prefill computes queries, keys and values in one product, which RoPE splits, and decode all-reduces
        the sums of softmax weights together with the weighted values.
        """
        return not self.shape.rotary

    @property
    def qkv_width(self) -> int:
        """Width of a core's queries, keys and values."""
        return self.all_heads * self.head_width

    def share(self, width: int, axis: str) -> int:
        """Return a core's share of `width` cut along an axis."""
        return -(-width // self.mesh.length(axis))

    @property
    def head_counts(self) -> dict[str, Any]:
        """Query and key-value heads of a core, as local operations name them."""
        return {"heads": self.query_heads, "kv_heads": self.kv_heads}

    @property
    def experts(self) -> Experts:
        """The experts of a model that has some."""
        assert self.shape.experts is not None, "a model that has experts"
        return self.shape.experts

    @property
    def experts_in_regions(self) -> tuple[Experts, ExpertRegions]:
        """The experts of a model, and the regions where they live."""
        assert self.expert_regions is not None, "a block whose experts have regions"
        return self.experts, self.expert_regions

    def expected_passes(self, tokens: int) -> int:
        """Return the passes that take `tokens` tokens a row to experts in regions, if all are equally likely."""
        e, regions = self.experts_in_regions
        return regions.expected_passes(e.top_k, tokens, self.mesh.shape[0])

    def norm(self, b: Builder, axis: str) -> None:
        """Add h = RMSNorm of x, whose rows are cut along `axis`.

        Sums of squares are fp32, for any dtype of other sums: sums of squares of real models overflow fp16.
        """
        c = self.shape
        rms_norm(b, "x", "norm", "h", axis, width=c.hidden_size, eps=c.rms_norm_eps, groups=self.groups)

    def residual(self, b: Builder, *steps: Any) -> None:
        """Add y to x; `steps` come first in the round."""
        b.round(*steps, b.local("add", "x", ("x", "y"), size=b.buffers["x"].numel), label="residual")

    def rotate(self, b: Builder, tokens: int, outs: tuple[str | Slot, ...], *steps: Any) -> None:
        """Set `outs` (q, k, v) to the projections qkv [tokens, all heads, head] after RoPE.

        Bias, head norms and clipping come first, if the model has them. `steps` join the last round.
        """
        c = self.shape
        if c.qkv_bias:
            b.round(b.local("add", "qkv", ("qkv", "bqkv"), size=tokens * self.qkv_width), label="bias")
        if c.qk_norm:
            self._head_norm(b, tokens)
        if c.clip_qkv is not None:
            b.round(b.local("clip", "qkv", "qkv", size=tokens * self.qkv_width, limit=c.clip_qkv), label="clip")
        turned = b.local("rope", outs, ("qkv", "cos", "sin"), m=tokens, n=self.head_width, **self.head_counts)
        b.round(turned, *steps, label="rope")

    def _head_norm(self, b: Builder, tokens: int) -> None:
        """Add RMSNorm of each query and key head, over the columns of its head group.

        With `qk_norm_whole` all query heads share one, and all key heads another, each as often as columns repeat it.
        """
        c, all_heads, n = self.shape, self.all_heads, self.head_width
        squares = b.buffer("heads.squares", (tokens, 2 if c.qk_norm_whole else all_heads), "fp32")
        over: dict[str, Any] = self.head_reduce_options
        sizes: dict[str, Any] = {"m": tokens, "n": n, "eps": c.rms_norm_eps}
        if c.qk_norm_whole:
            over, copies = {"groups": self.groups}, int((self.layout.rows("k") >= 0).sum()) // c.kv_width
            widths: dict[str, Any] = {"width": c.q_width, "kv_width": copies * c.kv_width, **self.head_counts}
            sums = b.local("mean_squares", squares, "qkv", m=tokens, n=n, **widths)
            sizes |= {"width": 1, "first": self.query_heads}
        else:
            sums = b.local("sum_squares", squares, "qkv", m=tokens * all_heads, n=n)
            sizes["width"] = c.head_dim
        b.round(sums, label="head norm")
        all_reduce(b, squares, "x", label="head norm", **over)
        sizes |= {"groups": all_heads, "kept": self.kv_heads}
        b.round(b.local("rms_scale", "qkv", ("qkv", squares, "qk_norm"), **sizes), label="head norm")


@dataclass(frozen=True, eq=False)
class SubLayer:
    """A sub-layer of a decoder: a function that adds its buffers and rounds, and its schedule's title and family.

    Its schedule does not depend on the fields of `Block` that it `ignores`.
    """

    add_steps: Callable[..., None]  # of a builder, a block and whole numbers
    title: str
    family: str
    ignores: tuple[str, ...] = ()

    def __call__(self, b: Builder, block: Block, *args: int) -> None:
        """Add the buffers and rounds."""
        self.add_steps(b, block, *args)


# By the axis that cuts the model's width: how tokens are cut, and how an activation [tokens, width].
ROWS = {"y": "m", "x": "(y m)"}
HIDDEN_SPECS = {axis: f"{rows} ({axis} d)" for axis, rows in ROWS.items()}
HEADS = ("entries", "policy", "overlap", "head_groups", "head_tree")  # fields of `Block` that attention alone reads


def sub_layer(
    title: str, family: str = "kernel", ignores: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], SubLayer]:
    """Make the decorated function a `SubLayer`."""
    return lambda adds: SubLayer(adds, title, family, ignores)


SubLayers = tuple[tuple[SubLayer, tuple[int, ...]], ...]  # in order, each with its whole numbers


@dataclass(frozen=True, eq=False)
class Variant:
    """A decoder with sub-layers of the user's own in the place of usual ones, such as `decode.ffn` and `prefill.ffn`.

    `DecoderShape.variant` names it. A sub-layer takes the arguments of the usual one, and passes on the same states.
    Its weights say which parameters they hold, see `Parameter`; so the variant is placed, priced, run and drawn as all
    decoders are.
    """

    sub_layers: Mapping[SubLayer, SubLayer]


def cached_across_devices(
    most: int,
) -> Callable[[Callable[Concatenate[Block, P], T]], Callable[Concatenate[Block, P], T]]:
    """Cache the last `most` results of a function of a block, shared between devices by `Block.anywhere`."""

    def kept(function: Callable[Concatenate[Block, P], T]) -> Callable[Concatenate[Block, P], T]:
        cached: Any = lru_cache(maxsize=most)(lambda _, *args, **more: function(*args, **more))

        @wraps(function)
        def shared(block: Block, *args: P.args, **more: P.kwargs) -> T:
            return cached(local.definitions(), block.anywhere, *args, **more)

        return shared

    return kept


def resolve_variant(layer: SubLayer, block: Block) -> tuple[SubLayer, Block]:
    """Return the variant's sub-layer in place of `layer`, or `layer`; and the block, with defaults for ignored fields.

    So equal sub-layers of several blocks share a schedule.
    """
    variant = block.shape.variant
    chosen = variant.sub_layers.get(layer, layer) if isinstance(variant, Variant) else layer
    defaults: dict[str, Any] = {field.name: field.default for field in fields(Block) if field.name in chosen.ignores}
    return chosen, replace(block, **defaults) if defaults else block


def schedule(layer: SubLayer, block: Block, *args: int) -> Schedule:
    """Return the schedule of a sub-layer, built once; raises SramError when it does not fit a core."""
    return _schedule(*resolve_variant(layer, block), *args)


@lru_cache(maxsize=256)
def _schedule(layer: SubLayer, block: Block, *args: int) -> Schedule:
    made = _draft(layer, block, *args)
    sram.check(made)
    return made


def draft(layer: SubLayer, block: Block, *args: int) -> Schedule:
    """Return the schedule of a sub-layer, or of a variant's in its place, unchecked: for counts and prices."""
    return _draft(*resolve_variant(layer, block), *args)


@lru_cache(maxsize=8)
def _draft(layer: SubLayer, block: Block, *args: int) -> Schedule:
    b = Builder(block.mesh, layer.title, layer.family)
    layer(b, block, *args)
    return b.build(draft=True)
