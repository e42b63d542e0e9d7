"""The shape of a decoder: what its layers compute and cost, from a name, a folder or sizes.

No torch: schedules are built and priced from a shape alone. Names are those of a Hugging Face `config.json`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Hashable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from wafer_triton.errors import ConfigError
from wafer_triton.experts import Experts, experts_of
from wafer_triton.published import MODELS
from wafer_triton.settings import (
    MIXTURES,
    MOST,
    REFUSED,
    check_flag,
    check_positive,
    check_size,
    features,
    read_json,
    required,
    short,
)


@dataclass(frozen=True)
class DecoderShape:
    """Widths, heads and layers of a decoder; `vocab_size` 0 means its layers alone, without embedding and head.

    Raises `ConfigError` at birth for what no decoder can be.
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
    rotary: bool = True  # rotary position embedding; the measured program has none
    variant: Hashable | None = None  # a `schedule.block.Variant`, of a decoder with parts of the user's own
    name: str = "decoder"

    def __post_init__(self) -> None:
        for key in SIZES:
            least = 0 if key == "vocab_size" and type(self) is DecoderShape else 1
            check_size(self.name, key, getattr(self, key), least, MOST_LAYERS if key == "num_hidden_layers" else MOST)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"{self.name}: num_attention_heads = {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads = {self.num_key_value_heads}; each key head serves a whole group of query heads"
            )
        alike = self.num_attention_heads == self.num_key_value_heads
        if not self.rotary and (self.qkv_bias or self.qk_norm or not alike):
            raise ConfigError(f"{self.name}: without rotary embedding no bias, head norm or grouped keys are computed")
        if self.clip_qkv is not None:
            check_positive(self.name, "clip_qkv", self.clip_qkv)
        if self.rotary and self.head_dim % 2:
            raise ConfigError(f"{self.name}: head_dim = {self.head_dim} is odd; rotary embedding turns pairs")

    @property
    def q_width(self) -> int:
        """Of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Of all key heads together."""
        return self.num_key_value_heads * self.head_dim

    @property
    def queries_each(self) -> int:
        """Query heads of each key-value head."""
        return self.num_attention_heads // self.num_key_value_heads

    def kinds(self, layer: int) -> tuple[str, str]:
        """The two blocks of a layer: "attention", then "ffn" or "experts"."""
        sparse = self.experts is not None and layer not in self.experts.dense
        return "attention", "experts" if sparse else "ffn"

    @cached_property
    def layers_of(self) -> dict[str, int]:
        """How many layers have each kind of block that the model has."""
        sparse = sum(self.kinds(layer)[1] == "experts" for layer in range(self.num_hidden_layers))
        counts = {"attention": self.num_hidden_layers, "ffn": self.num_hidden_layers - sparse, "experts": sparse}
        return {kind: count for kind, count in counts.items() if count}

    def decode_macs(self, context: int) -> dict[str, int]:
        """Multiply-adds of one token through each kind of block, with `context` tokens in the cache."""
        projections = 2 * self.hidden_size * (self.q_width + self.kv_width)
        macs = {
            "attention": projections + 2 * self.q_width * context,
            "ffn": 3 * self.hidden_size * self.intermediate_size,
        }
        if self.experts is not None:
            e = self.experts
            macs["experts"] = self.hidden_size * (e.logits + 3 * (e.chosen * e.width + e.shared_width))
        return {kind: macs[kind] for kind in self.layers_of}

    def decode_elements(self, context: int) -> dict[str, int]:
        """Numbers that each kind of block keeps: weights, and the keys and values of `context` tokens."""
        heads = self.q_width + self.kv_width if self.qk_norm_whole else 2 * self.head_dim
        norms = self.hidden_size, heads * self.qk_norm
        bias = (self.q_width + 2 * self.kv_width) * self.qkv_bias
        projections = 2 * self.hidden_size * (self.q_width + self.kv_width)
        attention = sum(norms) + bias + projections + 2 * self.kv_width * context
        numbers = {"attention": attention, "ffn": self.hidden_size * (1 + 3 * self.intermediate_size)}
        if self.experts is not None:
            e = self.experts
            numbers["experts"] = self.hidden_size * (1 + e.logits + 3 * (e.count * e.width + e.shared_width))
        return {kind: numbers[kind] for kind in self.layers_of}

    @property
    def matrices(self) -> int:
        """Numbers of the matrices of all layers."""
        numbers, e = self.decode_macs(0), self.experts
        if e is not None:
            numbers["experts"] += 3 * self.hidden_size * (e.count - e.chosen) * e.width
        return sum(number * self.layers_of[kind] for kind, number in numbers.items())

    @property
    def parameters(self) -> int:
        """Weights of the whole model, embedding and head included."""
        layers = sum(self.decode_elements(0)[kind] * count for kind, count in self.layers_of.items())
        tables = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size
        return layers + tables + self.hidden_size * bool(self.vocab_size)

    def measured(self) -> DecoderShape:
        """The shape of the program that WaferLLM measured for this model: one head, keys and values as wide as queries.

        No bias, norm of heads or rotary embedding, no head and no embedding. Source: the public kernels of WaferLLM
        (OSDI'25). ConfigError for a mixture of experts, of which none was measured.
        """
        if self.experts is not None:
            raise ConfigError(f"{self.name}: no program with experts was measured; take program='true'")
        return DecoderShape(
            self.hidden_size, self.intermediate_size, self.num_hidden_layers, 1, 1, self.q_width, 0,
            rms_norm_eps=self.rms_norm_eps, rotary=False, name=self.name,
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
DTYPES = (None, "auto", "float64", "float32", "float16", "bfloat16")  # of the key `dtype`, once `torch_dtype`


def shape_values(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `DecoderShape` from the keys of a `config.json`.

    An absent optional key means what transformers takes it to mean. Raises ConfigError for a missing key, and for a
    value that no decoder can have.
    """
    model_type = values.get("model_type", "llama")
    check_positive(name, "rms_norm_eps", values.get("rms_norm_eps", 1e-6))
    for key in ("dtype", "torch_dtype"):
        if values.get(key) not in DTYPES:
            known = ", ".join(filter(None, DTYPES))
            raise ConfigError(f"{name}: {key} = {short(values[key])} is no dtype of weights; take one of {known}")
    heads = required(name, values, "num_attention_heads")
    # The others' defaults are 8 or 32 whatever the number of heads; nobody means that, so it must be said.
    kv_heads = (
        values.get("num_key_value_heads")
        if model_type in ("llama", "olmoe")
        else required(name, values, "num_key_value_heads")
    )
    return {
        "hidden_size": required(name, values, "hidden_size"),
        "intermediate_size": required(name, values, "intermediate_size"),
        "num_hidden_layers": required(name, values, "num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads if kv_heads is None else kv_heads,
        "head_dim": _head_dim(name, model_type, values),
        "tie_word_embeddings": check_flag(name, values, "tie_word_embeddings"),
        "qkv_bias": model_type == "qwen2" or (model_type == "qwen2_moe" and values.get("qkv_bias") is not False),
        "qk_norm": model_type in ("qwen3", "qwen3_moe", "olmoe"),
        "qk_norm_whole": model_type == "olmoe",
        "clip_qkv": values.get("clip_qkv") if model_type == "olmoe" else None,
        "experts": experts_of(name, values),
        "name": name,
    }


def _head_dim(name: str, model_type: str, values: Mapping[str, Any]) -> Any:
    if values.get("head_dim") is not None:
        return values["head_dim"]
    if model_type == "qwen3":
        return 128  # transformers' default for this family
    width, heads = (required(name, values, key) for key in ("hidden_size", "num_attention_heads"))
    check_size(name, "hidden_size", width)
    check_size(name, "num_attention_heads", heads)
    if width % heads:
        raise ConfigError(f"{name}: hidden_size = {width} is not a multiple of num_attention_heads = {heads}")
    return width // heads


# Keys that do not change the cost of a layer, or whose values `features` reads; any other is refused, as it may.
# fmt: off
_HARMLESS = frozenset((
    "add_cross_attention", "architectures", "attention_dropout", "auto_map", "begin_suppress_tokens", "bos_token_id",
    "chunk_size_feed_forward", "cls_token_id", "cross_attention_hidden_size", "decoder_start_token_id", "do_sample",
    "dtype", "eos_token_id", "finetuning_task", "generation_config", "hidden_act", "id2label", "initializer_range",
    "is_decoder", "is_encoder_decoder", "is_llama_config", "label2id", "layer_types", "mask_token_id", "max_length",
    "max_position_embeddings", "max_window_layers", "min_length", "model_max_length", "model_type", "name",
    "original_max_position_embeddings", "output_attentions", "output_hidden_states", "pad_token_id", "prefix",
    "pretraining_tp", "problem_type", "pruned_heads", "repetition_penalty", "return_dict", "rms_norm_eps",
    "rope_interleaved", "rope_parameters", "rope_scaling", "rope_theta", "sep_token_id", "sliding_window",
    "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder",
    "tie_word_embeddings", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "unk_token_id", "use_bfloat16", "use_cache", "use_mrope",
    "use_sliding_window", "vocab_size",
))
_OF_EXPERTS = (
    "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "num_local_experts",
    "shared_expert_intermediate_size", "mlp_only_layers", "decoder_sparse_step", "clip_qkv", "qkv_bias",
    "output_router_logits", "router_aux_loss_coef", "router_jitter_noise",
)
# fmt: on


def check_keys(name: str, values: Mapping[str, Any]) -> None:
    """Raise ConfigError for a key that is not read and not known to be harmless; the one rule of all commands."""
    known = {*SIZES, *REFUSED, *_HARMLESS, *(_OF_EXPERTS if values.get("model_type") in MIXTURES else ())}
    unknown = [key for key in values if key not in known and not key.startswith("_")]
    if unknown:
        raise ConfigError(
            f"{name}: unknown key {', '.join(map(short, unknown))}; read are {', '.join(SIZES)}: mend its name, or "
            f"take it out if it changes nothing that a layer computes"
        )


def shape_of(model: str | Path | DecoderShape) -> DecoderShape:
    """The shape of a model that is known by name, or of a `config.json` (or of the folder that holds it).

    Raises ConfigError: with the nearest names for an unknown model, with the key that a configuration lacks, and for a
    key that asks for another kind of layer.
    """
    if isinstance(model, DecoderShape):
        return model
    path = located(model)
    if path is None:
        values = MODELS[str(model)]
        return DecoderShape(**shape_values(str(model), values), vocab_size=values["vocab_size"])
    values = read_json(path)
    required(str(path), values, "model_type")
    features(str(path), values)
    check_keys(str(path), values)
    vocabulary = required(str(path), values, "vocab_size")
    check_size(str(path), "vocab_size", vocabulary)
    if values.get("max_position_embeddings") is not None:
        check_size(str(path), "max_position_embeddings", values["max_position_embeddings"])
    shape = DecoderShape(**shape_values(str(path), values), vocab_size=vocabulary)
    return replace(shape, name=name_of(path))


def positions(model: str | Path) -> int | None:
    """Returns the most tokens that a text of a model may have, rope scaling included; None where it does not say."""
    path = located(model)
    values = MODELS[str(model)] if path is None else read_json(path)
    most = values.get("max_position_embeddings")
    rope = values.get("rope_scaling")
    if most is None or not isinstance(rope, dict) or not isinstance(rope.get("factor"), int | float):
        return most
    trained = most if rope.get("rope_type") == "linear" else rope.get("original_max_position_embeddings", most)
    return max(most, int(rope["factor"] * trained))


def located(model: Any) -> Path | None:
    """The `config.json` that `model` stands for: its path, or the folder that holds it; None of a name in `MODELS`.

    Raises ConfigError for anything else.
    """
    if not isinstance(model, str | Path) or not str(model):
        raise ConfigError(f"model {model!r}: give a name such as {next(iter(MODELS))}, a folder or its config.json")
    if str(model) in MODELS:
        return None
    path = Path(model).expanduser()
    if path.is_dir():
        path = path if path.name == "config.json" else path / "config.json"
        if not path.exists():
            raise ConfigError(f"{path.parent}: no config.json; give a folder in Hugging Face layout")
    elif not path.exists():
        raise unknown_model(str(model))
    return path


def name_of(path: Path) -> str:
    """What a model is called whose `config.json` lies at a path: its folder, or the path where that has no name."""
    return path.resolve().parent.name or str(path)


def is_path(name: str) -> bool:
    """Whether a text that is no file can only have been meant as a path."""
    return name.startswith(("~", ".", os.sep)) or os.sep in name or name.endswith((".json", ".safetensors", ".gguf"))


def unknown_model(name: str) -> ConfigError:
    """What to say of a name that no table, folder or file has."""
    if is_path(name):
        return ConfigError(f"{short(name).strip(chr(39))}: there is no such file or folder")
    near = difflib.get_close_matches(name.lower(), MODELS, n=3, cutoff=0.4)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return ConfigError(
        f"unknown model {short(name)}{hint} (known: {', '.join(MODELS)}; or a folder with a config.json)"
    )


def of_sizes(hidden_size: int, intermediate_size: int, heads: int, kv_heads: int, layers: int) -> DecoderShape:
    """The shape of layers of the given sizes; ConfigError when they do not divide."""
    name = "model of the given sizes"
    for key, value in (("hidden_size", hidden_size), ("num_attention_heads", heads)):
        check_size(name, key, value)
    if hidden_size % heads:
        raise ConfigError(f"{name}: hidden_size = {hidden_size} is not a multiple of num_attention_heads = {heads}")
    return DecoderShape(hidden_size, intermediate_size, layers, heads, kv_heads, hidden_size // heads, 0, name=name)
