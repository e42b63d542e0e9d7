"""Training workloads by their published sizes: operators of a layer, their work, and the bytes that they keep.

Bytes of activations follow Korthikanti et al. (arXiv 2205.05198), in 16 bits: of a GPT's layer s b h (34 + 5 a s / h),
of which 10 s b h are on every die of plain tensor parallelism. A Llama's layer is counted in the same way: it has no
dropout and keeps the outputs of gate and up-projection. Full recompute keeps a layer's input.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from wafer_triton.errors import ConfigError, check_counts, nearest, shown

Numbers = Any  # a number, or an array of them


@dataclass(frozen=True)
class Rules:
    """Bytes of a parameter's states and of moving elements; by default mixed-precision Adam, 16 bytes a parameter."""

    weight: int = 2
    gradient: int = 2
    optimizer: int = 12  # fp32 master weight and two moments
    element: int = 2  # of activations and weights that move
    sums: int = 2  # of sums that move

    def __post_init__(self) -> None:
        check_counts(**vars(self))

    @property
    def states(self) -> int:
        """Return bytes of a parameter with nothing sharded."""
        return self.weight + self.gradient + self.optimizer

    def state_bytes(self, parameters: Numbers, sharded: Numbers, over: Numbers) -> Numbers:
        """Return bytes on a die of `parameters` parameters; all may be columns.

        `sharded` is a stage of ZeRO: 0 cuts nothing over the dies, 1 the optimizer, 2 gradients as well, 3 all.
        """
        stages = {3: self.weight, 2: self.gradient, 1: self.optimizer}
        return parameters * sum(
            size / np.where(np.asarray(sharded) >= stage, over, 1) for stage, size in stages.items()
        )


@dataclass(frozen=True)
class Operator:
    """One operator of a layer for one token: `flops` forward, and bytes kept for backward.

    Of a product the weights are [k, n]. `side` is "in" for the first of a pair of products, "out" for the second, else
    "attention". `common` bytes are on every die of plain tensor parallelism, `split` bytes are cut, and selective
    recompute drops the `scores` bytes.
    """

    name: str
    side: str
    k: int
    n: int
    flops: float
    common: float
    split: float
    scores: float

    @property
    def weights(self) -> int:
        """Return the number of parameters."""
        return self.k * self.n


@dataclass(frozen=True)
class Workload:
    """A model and a batch of `batch` samples of `sequence` tokens. Raises ConfigError for sizes that do not fit."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocab: int
    gated: bool  # SwiGLU, no dropout: Llama; else GELU with dropout: GPT
    sequence: int = 2048
    batch: int = 128

    def __post_init__(self) -> None:
        numbers = ("layers", "width", "heads", "kv_heads", "hidden", "vocab", "sequence", "batch")
        check_counts(**{name: getattr(self, name) for name in numbers})
        if self.width % self.heads or self.heads % self.kv_heads:
            raise ConfigError(
                f"{self.name}: width {self.width} must be a multiple of {self.heads} heads, and heads a multiple of "
                f"{self.kv_heads} key heads"
            )

    @property
    def tokens(self) -> int:
        """Return tokens of a batch."""
        return self.sequence * self.batch

    @property
    def kv_width(self) -> int:
        """Return elements of a token's keys."""
        return self.width // self.heads * self.kv_heads

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Return the operators of one layer, in order."""
        h, f, s, kv = self.width, self.hidden, self.sequence, self.kv_width
        drop, inner = (0, 2 * f) if self.gated else (h, f)
        scores = (2 if self.gated else 5) * self.heads * s
        return (
            self._product("qkv", "in", h, h + 2 * kv, 4 * h, 0),
            Operator("attention", "attention", 0, 0, 4 * s * h, 0, 2 * (h + 2 * kv), scores),
            self._product("o", "out", h, h, drop, 2 * h),
            self._product("inner", "in", h, inner, 4 * h, 2 * inner),
            self._product("out", "out", f, h, drop, 2 * f),
        )

    def _product(self, name: str, side: str, k: int, n: int, common: float, split: float) -> Operator:
        return Operator(name, side, k, n, 2 * k * n, common, split, 0)


# Sizes: GPT-3 6.7B and 175B of Brown et al. 2020, table 2.1; 76B of Narayanan et al. 2021, table 1; OPT of Zhang et al.
# 2022, table 1; Llamas from their published configurations.
WORKLOADS = {
    "gpt3-6.7b": Workload("gpt3-6.7b", 32, 4096, 32, 32, 16384, 50257, False),
    "gpt3-76b": Workload("gpt3-76b", 60, 10240, 80, 80, 40960, 50257, False),
    "gpt3-175b": Workload("gpt3-175b", 96, 12288, 96, 96, 49152, 50257, False),
    "llama2-7b": Workload("llama2-7b", 32, 4096, 32, 32, 11008, 32000, True, sequence=4096),
    "llama3-70b": Workload("llama3-70b", 80, 8192, 64, 8, 28672, 128256, True, sequence=4096),
    "opt-175b": Workload("opt-175b", 96, 12288, 96, 96, 49152, 50272, False),
}


def workload(name: str | Workload, sequence: int | None = None, batch: int | None = None) -> Workload:
    """Return the workload `name`, with another sequence or batch if given; ConfigError if unknown."""
    if not isinstance(name, Workload):
        if name not in WORKLOADS:
            raise ConfigError(
                f"unknown training workload {shown(name)}{nearest(name, WORKLOADS)} (known: {', '.join(WORKLOADS)})"
            )
        name = WORKLOADS[name]
    sequence, batch = name.sequence if sequence is None else sequence, name.batch if batch is None else batch
    return replace(name, sequence=sequence, batch=batch)
