"""The blocks of a decoder layer as schedules (WaferLLM, OSDI'25, section 4).

Decode: the activation is cut along y and repeated along x; products are MeshGEMVs whose axes alternate, so nothing is
transposed. Prefill: tokens are cut along y, widths along x; products are MeshGEMMs on the square grid, scores GEMM-T.
Heads share the columns: every column holds the same few rotary pairs of every head, so a score is a sum along x.
The sequence of keys and values lies along y in both phases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wafer_triton.dtype import accumulator
from wafer_triton.mesh import Mesh
from wafer_triton.models.config import DecoderConfig
from wafer_triton.schedule.gemm import align, meshgemm, meshgemm_t
from wafer_triton.schedule.gemv import meshgemv
from wafer_triton.schedule.kv_cache import KvCache
from wafer_triton.schedule.reduce import all_reduce
from wafer_triton.schedule.rounds import Builder, Schedule, Slot
from wafer_triton.schedule.rows import rms_norm, softmax_parts


@dataclass(frozen=True)
class Block:
    """One model's blocks on one mesh: sizes of a core's tiles, storage and accumulation types.

    `entries` is the number of KV entries that a row holds, `policy` the KV cache's, `groups` the K-tree's (None:
    default).
    """

    config: DecoderConfig
    mesh: Mesh
    dtype: str = "fp32"
    accumulate: str = "fp32"
    entries: int = 1
    policy: str = "shift"
    groups: tuple[int, ...] | None = None

    def cache(self, prefilled: int = 0) -> KvCache:
        """The KV cache of a sequence whose prompt had `prefilled` tokens."""
        return KvCache(self.mesh.shape[0], self.entries, self.policy, prefilled)

    @property
    def slots(self) -> int:
        """KV slots of a row."""
        return self.cache().slots

    @property
    def sums(self) -> str:
        """The dtype of partial sums."""
        return accumulator(self.dtype, self.accumulate)

    @property
    def pairs(self) -> int:
        """Rotary pairs of a head that one column holds."""
        return -(-self.config.head_dim // 2 // self.mesh.shape[1])

    @property
    def qkv(self) -> int:
        """Width of a core's queries, keys and values."""
        return (self.config.num_attention_heads + 2 * self.config.num_key_value_heads) * 2 * self.pairs

    def share(self, width: int, axis: str) -> int:
        """A core's share of `width` cut along an axis."""
        return -(-width // self.mesh.length(axis))

    @property
    def heads(self) -> dict[str, Any]:
        """Query and key-value heads, as local operations name them."""
        return {"heads": self.config.num_attention_heads, "kv_heads": self.config.num_key_value_heads}

    # --- decode: one token ---

    def _decode_attention(self, name: str) -> Builder:
        """A builder with the buffers that stay on the cores of an attention block."""
        b, c = Builder(self.mesh, name), self.config
        d, width = self.share(c.hidden_size, "y"), 2 * self.pairs
        b.buffer("x", (1, d), self.dtype, "resident")
        b.buffer("norm", (d,), self.dtype, "resident")
        b.buffer("wqkv", (d, self.qkv), self.dtype, "resident")
        b.buffer("wo", (c.num_attention_heads * width, d), self.dtype, "resident")
        for cache in ("k_cache", "v_cache"):
            b.buffer(cache, (c.num_key_value_heads, width), self.dtype, "resident", self.slots)
        return b

    def _qkv_buffers(self, b: Builder, tokens: int) -> None:
        c, width = self.config, 2 * self.pairs
        b.buffer("q", (tokens, c.num_attention_heads, width), self.dtype, "output")
        for name in ("k", "v"):
            b.buffer(name, (tokens, c.num_key_value_heads, width), self.dtype, "output")

    def decode_project(self) -> Schedule:
        """x -> q, k, v of the new token, rotated."""
        b, c = self._decode_attention("decode projections"), self.config
        d = self.share(c.hidden_size, "y")
        b.buffer("cos", (1, self.pairs), self.dtype, "input")
        b.buffer("sin", (1, self.pairs), self.dtype, "input")
        b.buffer("h", (1, d), self.dtype)
        b.buffer("qkv", (1, self.qkv), self.sums)
        self._qkv_buffers(b, 1)
        self._norm(b, "norm", "y")
        meshgemv(b, "h", "wqkv", "qkv", "y", m=1, k=d, n=self.qkv, accumulate=self.accumulate, groups=self.groups,
                 label="qkv")  # fmt: skip
        b.round(
            b.local("rope", ("q", "k", "v"), ("qkv", "cos", "sin"), m=1, n=2 * self.pairs, **self.heads), label="rope"
        )
        return b.build()

    def decode_append(self, count: int, prefilled: int) -> Schedule:
        """k, v -> entry number `count` of the cache, of which a prompt filled `prefilled`."""
        b = self._decode_attention("kv append")
        tile = (self.config.num_key_value_heads, 2 * self.pairs)
        for name in ("k", "v"):
            b.buffer(name, tile, self.dtype, "input")
        self.cache(prefilled).append(b, {"k_cache": "k", "v_cache": "v"}, count)
        return b.build()

    def decode_attend(self) -> Schedule:
        """x, q and the cache -> x plus the attention block's output; bias [1, slots] is -inf on empty slots."""
        b, c = self._decode_attention("decode attention"), self.config
        width, d = 2 * self.pairs, self.share(c.hidden_size, "y")
        q_heads = c.num_attention_heads
        sizes: dict[str, Any] = {"m": 1, "accumulate": self.accumulate, **self.heads}
        b.buffer("q", (1, q_heads, width), self.dtype, "input")
        b.buffer("bias", (1, self.slots), "fp32", "input")
        b.buffer("s", (q_heads, 1, self.slots), self.sums)
        b.buffer("p", (q_heads, 1, self.slots), self.dtype)
        b.buffer("o", (1, q_heads, width), self.sums)
        b.buffer("att", (1, q_heads * width), self.dtype)
        b.buffer("y", (1, d), self.sums)
        keys, values = Slot("k_cache", None), Slot("v_cache", None)
        b.round(b.local("gemm_t", "s", ("q", keys), k=width, n=self.slots, **sizes), label="scores")
        all_reduce(b, "s", "x", groups=self.groups, label="scores")
        z = softmax_parts(b, "s", "bias", "p", "y", scale=c.head_dim**-0.5, sums=self.sums, groups=self.groups)
        b.round(b.local("gemm", "o", ("p", values), k=self.slots, n=width, **sizes), label="attention")
        all_reduce(b, "o", "y", groups=self.groups, label="attention")
        b.round(b.local("normalize", "att", ("o", z), m=1, heads=q_heads, n=width), label="attention")
        meshgemv(b, "att", "wo", "y", "x", m=1, k=q_heads * width, n=d, accumulate=self.accumulate, groups=self.groups,
                 label="output projection")  # fmt: skip
        b.round(b.local("add", "x", ("x", "y"), size=d), label="residual")
        return b.build()

    def decode_ffn(self) -> Schedule:
        """x -> x plus the feed-forward block's output."""
        b, c = Builder(self.mesh, "decode feed-forward"), self.config
        d, f = self.share(c.hidden_size, "y"), self.share(c.intermediate_size, "x")
        b.buffer("x", (1, d), self.dtype, "resident")
        b.buffer("norm", (d,), self.dtype, "resident")
        b.buffer("wgu", (d, 2 * f), self.dtype, "resident")
        b.buffer("wdown", (f, d), self.dtype, "resident")
        b.buffer("h", (1, d), self.dtype)
        b.buffer("gu", (1, 2 * f), self.sums)
        b.buffer("act", (1, f), self.dtype)
        b.buffer("y", (1, d), self.sums)
        self._norm(b, "norm", "y")
        run: dict[str, Any] = {"accumulate": self.accumulate, "groups": self.groups}
        meshgemv(b, "h", "wgu", "gu", "y", m=1, k=d, n=2 * f, label="gate and up", **run)
        b.round(b.local("silu_mul", "act", "gu", m=1, n=f), label="silu")
        meshgemv(b, "act", "wdown", "y", "x", m=1, k=f, n=d, label="down", **run)
        b.round(b.local("add", "x", ("x", "y"), size=d), label="residual")
        return b.build()

    def head(self) -> Schedule:
        """x -> logits, cut along x."""
        b, c = Builder(self.mesh, "head"), self.config
        d, v = self.share(c.hidden_size, "y"), self.share(c.vocab_size, "x")
        b.buffer("x", (1, d), self.dtype, "resident")
        b.buffer("norm", (d,), self.dtype, "resident")
        b.buffer("whead", (d, v), self.dtype, "resident")
        b.buffer("h", (1, d), self.dtype)
        b.buffer("logits", (1, v), self.sums, "output")
        self._norm(b, "norm", "y")
        meshgemv(b, "h", "whead", "logits", "y", m=1, k=d, n=v, accumulate=self.accumulate, groups=self.groups)
        return b.build()

    # --- prefill: a prompt, `tokens` of it on each row of the square mesh ---

    def prefill_attention(self, tokens: int) -> Schedule:
        """x -> x plus the attention block's output, and the keys and values; bias [tokens, tokens] masks the future."""
        b, c = Builder(self.mesh, "prefill attention"), self.config
        width, d, q_heads = 2 * self.pairs, self.share(c.hidden_size, "x"), c.num_attention_heads
        run: dict[str, Any] = {"m": tokens, "accumulate": self.accumulate}
        b.buffer("x", (tokens, d), self.dtype, "resident")
        b.buffer("norm", (d,), self.dtype, "resident")
        b.buffer("wqkv", (d, self.qkv), self.dtype, "resident")
        b.buffer("wo", (q_heads * width, d), self.dtype, "resident")
        b.buffer("cos", (tokens, self.pairs), self.dtype, "input")
        b.buffer("sin", (tokens, self.pairs), self.dtype, "input")
        b.buffer("bias", (tokens, tokens), "fp32", "input")
        b.buffer("h", (tokens, d), self.dtype)
        b.buffer("qkv", (tokens, self.qkv), self.sums)
        self._qkv_buffers(b, tokens)
        b.buffer("s", (q_heads, tokens, tokens), self.sums)
        b.buffer("p", (q_heads, tokens, tokens), self.dtype)
        b.like("v.skewed", "v")
        b.buffer("o", (tokens, q_heads, width), self.sums)
        b.buffer("att", (tokens, q_heads * width), self.dtype)
        b.buffer("y", (tokens, d), self.sums)

        self._norm(b, "norm", "x")
        align(b, "h", "x")
        meshgemm(b, "h", "wqkv", "qkv", k=d, n=self.qkv, label="qkv", **run)
        b.round(
            b.local("rope", ("q", "k", "v"), ("qkv", "cos", "sin"), m=tokens, n=width, **self.heads),
            b.local("copy", "v.skewed", "v", size=b.buffers["v"].numel),
            label="rope",
        )
        meshgemm_t(b, "q", "k", "s", k=width, n=tokens, label="scores", **run, **self.heads)
        z = softmax_parts(b, "s", "bias", "p", "x", scale=c.head_dim**-0.5, sums=self.sums, groups=self.groups)
        align(b, "p", "x")
        align(b, "v.skewed", "y")
        meshgemm(b, "p", "v.skewed", "o", k=tokens, n=width, label="attention", **run, **self.heads)
        b.round(b.local("normalize", "att", ("o", z), m=tokens, heads=q_heads, n=width), label="attention")
        align(b, "att", "x")
        meshgemm(b, "att", "wo", "y", k=q_heads * width, n=d, label="output projection", **run)
        b.round(b.local("add", "x", ("x", "y"), size=tokens * d), label="residual")
        return b.build()

    def prefill_ffn(self, tokens: int) -> Schedule:
        """x -> x plus the feed-forward block's output."""
        b, c = Builder(self.mesh, "prefill feed-forward"), self.config
        d, f = self.share(c.hidden_size, "x"), self.share(c.intermediate_size, "x")
        run: dict[str, Any] = {"m": tokens, "accumulate": self.accumulate}
        b.buffer("x", (tokens, d), self.dtype, "resident")
        b.buffer("norm", (d,), self.dtype, "resident")
        b.buffer("wgu", (d, 2 * f), self.dtype, "resident")
        b.buffer("wdown", (f, d), self.dtype, "resident")
        b.buffer("h", (tokens, d), self.dtype)
        b.buffer("gu", (tokens, 2 * f), self.sums)
        b.buffer("act", (tokens, f), self.dtype)
        b.buffer("y", (tokens, d), self.sums)
        self._norm(b, "norm", "x")
        align(b, "h", "x")
        meshgemm(b, "h", "wgu", "gu", k=d, n=2 * f, label="gate and up", **run)
        b.round(b.local("silu_mul", "act", "gu", m=tokens, n=f), label="silu")
        align(b, "act", "x")
        meshgemm(b, "act", "wdown", "y", k=f, n=d, label="down", **run)
        b.round(b.local("add", "x", ("x", "y"), size=tokens * d), label="residual")
        return b.build()

    def _norm(self, b: Builder, weight: str, axis: str) -> None:
        c = self.config
        rms_norm(b, "x", weight, "h", axis, width=c.hidden_size, eps=c.rms_norm_eps, sums=self.sums, groups=self.groups)
