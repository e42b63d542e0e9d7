"""The shape of a decoder: the sizes of its layers. Names are as in a Hugging Face `config.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property

from wafer_triton.device.dtype import WEIGHTS
from wafer_triton.errors import ConfigError
from wafer_triton.shape.config import MOST, check_positive, check_size
from wafer_triton.shape.moe import Experts


@dataclass(frozen=True)
class DecoderShape:
    """Widths, heads and layers of a decoder; `vocab_size` 0 means its layers alone, without embedding and head.

    The constructor raises ConfigError for an impossible decoder.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    _: KW_ONLY
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    qkv_bias: bool = False  # on the projections of queries, keys and values (Qwen2)
    qk_norm: bool = False  # RMSNorm of each query and key head before RoPE (Qwen3)
    qk_norm_whole: bool = False  # that norm is over all heads together (OLMoE)
    clip_qkv: float | None = None  # the largest projection, of either sign (OLMoE)
    experts: Experts | None = None  # in place of the feed-forward block of some or all layers
    rotary: bool = True  # rotary position embedding; the paper-benchmark program has none
    weights: str | None = None  # the storage of matrices, of `dtype.WEIGHTS`; None: as all tiles
    variant: Hashable | None = None  # a `decoder.block.Variant`, of a decoder with parts of the user's own
    name: str = "decoder"

    def __post_init__(self) -> None:
        for key in SIZES:
            least = 0 if key == "vocab_size" and type(self) is DecoderShape else 1
            check_size(self.name, key, getattr(self, key), least, MOST_LAYERS if key == "num_hidden_layers" else MOST)
        check_positive(self.name, "rms_norm_eps", self.rms_norm_eps)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"{self.name}: num_attention_heads = {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads = {self.num_key_value_heads}; each key head serves a whole group of query heads"
            )
        if self.weights not in (None, *WEIGHTS):
            raise ConfigError(f"{self.name}: weights = {self.weights!r} must be one of {', '.join(WEIGHTS)}")
        alike = self.num_attention_heads == self.num_key_value_heads
        if not self.rotary and (self.qkv_bias or self.qk_norm or not alike):
            raise ConfigError(f"{self.name}: without rotary embedding no bias, head norm or grouped keys are computed")
        if self.clip_qkv is not None:
            check_positive(self.name, "clip_qkv", self.clip_qkv)
        if self.rotary and self.head_dim % 2:
            raise ConfigError(f"{self.name}: head_dim = {self.head_dim} is odd; rotary embedding turns pairs")

    @property
    def q_width(self) -> int:
        """The width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """The width of all key heads together."""
        return self.num_key_value_heads * self.head_dim

    @property
    def queries_each(self) -> int:
        """Query heads of each key-value head."""
        return self.num_attention_heads // self.num_key_value_heads

    def kinds(self, layer: int) -> tuple[str, str]:
        """Return the two blocks of a layer: "attention", then "ffn" or "experts"."""
        sparse = self.experts is not None and layer not in self.experts.dense
        return "attention", "experts" if sparse else "ffn"

    @cached_property
    def layers_of(self) -> dict[str, int]:
        """The number of layers with each kind of block."""
        counts = Counter(kind for layer in range(self.num_hidden_layers) for kind in self.kinds(layer))
        return {kind: counts[kind] for kind in ("attention", "ffn", "experts") if counts[kind]}

    def decode_macs(self, context: int, every: bool = False) -> dict[str, int]:
        """Return multiply-adds of one token by kind of block, with `context` tokens in the cache.

        A token passes the experts that it takes or, with `every`, all of them.
        """
        projections = 2 * self.hidden_size * (self.q_width + self.kv_width)
        macs = {
            "attention": projections + 2 * self.q_width * context,
            "ffn": 3 * self.hidden_size * self.intermediate_size,
        }
        if self.experts is not None:
            e = self.experts
            taken = e.count if every else e.top_k
            macs["experts"] = self.hidden_size * (e.logits + 3 * (taken * e.width + e.shared_width))
        return {kind: macs[kind] for kind in self.layers_of}

    @property
    def weights_of(self) -> dict[str, int]:
        """The number of weights of each kind of block: those of its products, its norm and, of attention, more."""
        heads = self.q_width + self.kv_width if self.qk_norm_whole else 2 * self.head_dim
        bias = (self.q_width + 2 * self.kv_width) * self.qkv_bias
        more = {"attention": bias + heads * self.qk_norm}
        macs = self.decode_macs(0, every=True)
        return {kind: number + self.hidden_size + more.get(kind, 0) for kind, number in macs.items()}

    @property
    def matrices(self) -> int:
        """Elements of the matrices of all layers."""
        return sum(number * self.layers_of[kind] for kind, number in self.decode_macs(0, every=True).items())

    @property
    def parameters(self) -> int:
        """Weights of the whole model, embedding and head included."""
        layers = sum(self.weights_of[kind] * count for kind, count in self.layers_of.items())
        tables = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size
        return layers + tables + self.hidden_size * bool(self.vocab_size)

    def paper_benchmark(self) -> DecoderShape:
        """Return the shape of the program that WaferLLM measured for this model.

        It has one head, keys and values as wide as queries, and no bias, norm of heads, rotary embedding, LM head or
        embedding. Source: the public kernels of WaferLLM
        (OSDI'25). ConfigError for a mixture of experts, of which none was measured.
        """
        if self.experts is not None:
            raise ConfigError(f"{self.name}: no program with experts was measured; take program='full'")
        return DecoderShape(
            self.hidden_size, self.intermediate_size, self.num_hidden_layers, 1, 1, self.q_width, 0,
            rms_norm_eps=self.rms_norm_eps, rotary=False, weights=self.weights, name=self.name,
        )  # fmt: skip


SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)


MOST_LAYERS = 10_000  # every layer is placed, a hundred times the deepest that is known
