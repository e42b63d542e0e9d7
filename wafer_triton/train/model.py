"""Models for training: Llama-like and GPT-like transformers, their sizes and parameters, and their loss in plain torch.

`plain_loss` is the reference of `wafer_triton.train.step`: the same model in a few lines of torch, differentiated by
autograd. Weights are [inputs, outputs].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, gelu, layer_norm, silu

from wafer_triton.errors import ConfigError, DtypeError, ShapeError, check_counts, check_positive, check_type, shown

Parameters = dict[str, Tensor]
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Sizes:
    """A transformer of a `kind`: "llama" (RMSNorm, rotary, SwiGLU, grouped keys) or "gpt" (LayerNorm, GELU, biases).

    Keys of a GPT have no bias, as in Whisper: softmax cancels a vector that is added to all keys. Raises ConfigError
    for another kind, or heads that do not divide; ShapeError for a number out of range.
    """

    kind: str = "llama"
    layers: int = 2
    width: int = 16
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 24
    vocab: int = 19
    eps: float = 1e-5
    theta: float = 10_000.0
    positions: int = 16  # that a GPT has embeddings for

    def __post_init__(self) -> None:
        if self.kind not in ("llama", "gpt"):
            raise ConfigError(f"model kind {self.kind!r}: choose 'llama' or 'gpt'")
        counts = ("layers", "width", "heads", "kv_heads", "hidden", "vocab", "positions")
        check_counts(**{name: getattr(self, name) for name in counts})
        check_positive("Sizes", eps=self.eps, theta=self.theta)
        if self.width % self.heads or self.heads % self.kv_heads or self.head % 2:
            raise ConfigError(
                f"width {self.width} must be a multiple of {self.heads} heads of even size, and heads a multiple of "
                f"{self.kv_heads} key heads"
            )
        if self.kind == "gpt" and self.kv_heads != self.heads:
            raise ConfigError(f"a GPT has as many key heads as heads, {self.heads}, not {self.kv_heads}")
        layer = sum(self.rows(name) * self.columns(name) for joined in self.matrices.values() for name in joined)
        check_counts(parameters=self.layers * layer + 2 * self.vocab * self.width + self.positions * self.width)

    @property
    def head(self) -> int:
        """Return elements of a head."""
        return self.width // self.heads

    @property
    def matrices(self) -> dict[str, tuple[str, ...]]:
        """Return the products of a layer, each with the weights that it joins."""
        inner = ("gate", "up") if self.kind == "llama" else ("in",)
        return {"qkv": ("q", "k", "v"), "o": ("o",), "inner": inner, "out": ("out",)}

    def columns(self, name: str) -> int:
        """Return the outputs of a weight."""
        heads = {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}
        return heads[name] * self.head if name in heads else self.hidden if name in ("gate", "up", "in") else self.width

    def rows(self, name: str) -> int:
        """Return the inputs of a weight."""
        return self.hidden if name == "out" else self.heads * self.head if name == "o" else self.width

    def biased(self, name: str) -> bool:
        """Return whether a weight has a bias."""
        return self.kind == "gpt" and name != "k"

    @property
    def vectors(self) -> dict[str, int]:
        """Return parameters that are no matrices, with their elements: norms, biases, embeddings of positions."""
        found = {}
        for layer in range(self.layers):
            for norm in ("norm_a", "norm_f"):
                found[f"{layer}.{norm}"] = self.width
                if self.kind == "gpt":
                    found[f"{layer}.{norm}.bias"] = self.width
            weights = (name for joined in self.matrices.values() for name in joined if self.biased(name))
            found |= {f"{layer}.{name}.bias": self.columns(name) for name in weights}
        found["norm"] = self.width
        if self.kind == "gpt":
            found |= {"norm.bias": self.width, "positions": self.positions * self.width}
        return found

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every parameter: matrices [inputs, outputs], "embed" [vocab, width], "head", vectors."""
        found: dict[str, tuple[int, ...]] = {"embed": (self.vocab, self.width)}
        for layer in range(self.layers):
            names = (name for joined in self.matrices.values() for name in joined)
            found |= {f"{layer}.{name}": (self.rows(name), self.columns(name)) for name in names}
        found |= {name: (size,) for name, size in self.vectors.items()}
        return found | {"head": (self.width, self.vocab)}


def parameters(sizes: Sizes, seed: int = 0, dtype: torch.dtype = torch.float32) -> Parameters:
    """Return random parameters by name, of the shapes of `sizes`.

    Raises DtypeError for a dtype other than `FLOATS`, ShapeError for a seed below 0 or beyond 64 bits.
    """
    if not isinstance(dtype, torch.dtype) or dtype not in FLOATS:
        raise DtypeError(f"parameters: dtype = {shown(dtype)}: choose one of {', '.join(map(str, FLOATS))}")
    if not 0 <= seed < 1 << 64:
        raise ShapeError(f"parameters: seed = {shown(seed)} must be a whole number from 0 to 2**64 - 1")
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, scale: float) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(dtype)

    found = {}
    for name, shape in sizes.shapes.items():
        one = "norm" in name and not name.endswith("bias")
        scale = 0.1 if len(shape) == 1 else 0.5 if name == "embed" else shape[0] ** -0.5
        found[name] = draw(*shape, scale=scale) + (1 if one else 0)
    return found


def check_parameters(sizes: Sizes, given: Parameters) -> None:
    """Raise ShapeError unless the parameters have names and shapes of a model of these sizes, and finite values.

    Raises DtypeError for a parameter that is no tensor of floats.
    """
    check_type("parameters", given, dict, ShapeError)
    wanted = sizes.shapes
    for name in wanted.keys() ^ given.keys():
        raise ShapeError(f"parameter {name!r} is {'missing' if name in wanted else 'not of these sizes'}; give {sizes}")
    for name, value in given.items():
        if not isinstance(value, Tensor) or value.dtype not in FLOATS:
            kind = value.dtype if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise DtypeError(f"parameter {name!r} is {kind}; give a tensor of {', '.join(map(str, FLOATS))}")
        if tuple(value.shape) != wanted[name]:
            raise ShapeError(f"parameter {name!r} is {list(value.shape)}, but {sizes} has {list(wanted[name])}")
        if value.is_meta or not value.isfinite().all():
            raise ShapeError(f"parameter {name!r} holds NaN, infinity or no values at all; give finite ones")


def check_batch(sizes: Sizes, tokens: Tensor, targets: Tensor) -> None:
    """Raise ShapeError unless both are ids [samples, length] of the vocabulary, within the positions of a GPT."""
    for what, ids in (("tokens", tokens), ("targets", targets)):
        whole = isinstance(ids, Tensor) and not ids.is_floating_point() and ids.dtype != torch.bool
        if not whole or ids.ndim != 2 or not ids.numel():
            raise ShapeError(f"{what} must be a tensor [samples, length] of whole numbers, with one at least")
        if ids.shape != tokens.shape:
            shapes = f"{list(ids.shape)}, and tokens {list(tokens.shape)}"
            raise ShapeError(f"targets are {shapes}; give one target a token")
        if not 0 <= int(ids.min()) <= int(ids.max()) < sizes.vocab:
            ends = f"{int(ids.min())} to {int(ids.max())}"
            raise ShapeError(f"{what} run from {ends}; give ids from 0 to {sizes.vocab - 1}, the vocabulary")
    if sizes.kind == "gpt" and tokens.shape[1] > sizes.positions:
        raise ShapeError(f"{tokens.shape[1]} tokens a sample: a GPT of {sizes.positions} positions takes no more")


def plain_loss(sizes: Sizes, p: Parameters, tokens: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of targets [samples, length] after tokens [samples, length].

    Raises as `check_parameters` and `check_batch`.
    """
    check_parameters(sizes, p)
    check_batch(sizes, tokens, targets)
    llama, length = sizes.kind == "llama", tokens.shape[1]
    x = p["embed"][tokens]
    if not llama:
        x = x + p["positions"].view(-1, sizes.width)[:length]

    def norm(x: Tensor, name: str) -> Tensor:
        if llama:
            return x * (x.square().mean(-1, True) + sizes.eps).rsqrt() * p[name]
        return layer_norm(x, (sizes.width,), p[name], p[f"{name}.bias"], sizes.eps)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ p[name] + p.get(f"{name}.bias", 0)

    for layer in range(sizes.layers):
        a = norm(x, f"{layer}.norm_a")
        q, k, v = (linear(a, f"{layer}.{name}").unflatten(-1, (-1, sizes.head)).transpose(1, 2) for name in "qkv")
        if llama:
            q, k = rotated(q, sizes, length), rotated(k, sizes, length)
        each = sizes.heads // sizes.kv_heads
        scores = q @ k.repeat_interleave(each, 1).mT * sizes.head**-0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v.repeat_interleave(each, 1)
        x = x + linear(mixed.transpose(1, 2).flatten(-2), f"{layer}.o")
        f = norm(x, f"{layer}.norm_f")
        if llama:
            h = silu(linear(f, f"{layer}.gate")) * linear(f, f"{layer}.up")
        else:
            h = gelu(linear(f, f"{layer}.in"))
        x = x + linear(h, f"{layer}.out")
    return cross_entropy((norm(x, "norm") @ p["head"]).flatten(0, 1), targets.flatten())


def angles(sizes: Sizes, positions: Tensor) -> Tensor:
    """Return the angles [..., head / 2] of rotary pairs at positions, fp64."""
    exponents = torch.arange(0, sizes.head, 2, dtype=torch.float64) / sizes.head
    return positions.double()[..., None] * sizes.theta**-exponents


def rotated(x: Tensor, sizes: Sizes, length: int) -> Tensor:
    """Return heads x [..., length, head] with rotary pairs rotated by the angles of their positions."""
    angle = angles(sizes, torch.arange(length))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
