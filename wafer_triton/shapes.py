"""The shape of a decoder: what its layers compute and cost, and the one table of models that are known by name.

No torch: schedules are built and priced from a shape alone. Names are those of a Hugging Face `config.json`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

from wafer_triton.errors import ConfigError
from wafer_triton.settings import (
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
    rotary: bool = True  # rotary position embedding; the measured program has none
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

    def decode_macs(self, context: int) -> dict[str, int]:
        """Multiply-adds of one token through each block of a layer, with `context` tokens in the cache."""
        projections = 2 * self.hidden_size * (self.q_width + self.kv_width)
        ffn = 3 * self.hidden_size * self.intermediate_size
        return {"attention": projections + 2 * self.q_width * context, "ffn": ffn}

    def decode_elements(self, context: int) -> dict[str, int]:
        """Numbers that each block of a layer keeps: weights, and the keys and values of `context` tokens."""
        norms = self.hidden_size, 2 * self.head_dim * self.qk_norm
        bias = (self.q_width + 2 * self.kv_width) * self.qkv_bias
        projections = 2 * self.hidden_size * (self.q_width + self.kv_width)
        attention = sum(norms) + bias + projections + 2 * self.kv_width * context
        return {"attention": attention, "ffn": self.hidden_size * (1 + 3 * self.intermediate_size)}

    def measured(self) -> DecoderShape:
        """The shape of the program that WaferLLM measured for this model: one head, keys and values as wide as queries.

        No bias, norm of heads or rotary embedding, no head and no embedding. Source: the public kernels of WaferLLM
        (OSDI'25).
        """
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
        values.get("num_key_value_heads") if model_type == "llama" else required(name, values, "num_key_value_heads")
    )
    return {
        "hidden_size": required(name, values, "hidden_size"),
        "intermediate_size": required(name, values, "intermediate_size"),
        "num_hidden_layers": required(name, values, "num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads if kv_heads is None else kv_heads,
        "head_dim": _head_dim(name, model_type, values),
        "tie_word_embeddings": check_flag(name, values, "tie_word_embeddings"),
        "qkv_bias": model_type == "qwen2",
        "qk_norm": model_type == "qwen3",
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


_KEYS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings",
)  # fmt: skip
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3 |= {"original_max_position_embeddings": 8192}
# Each row from the model's own config.json.
_ROWS: dict[str, tuple[Any, ...]] = {
    "smollm2-135m": ("llama", 576, 1536, 30, 9, 3, 64, 49152, 8192, 1e-5, 100000.0, True),
    "llama2-7b": ("llama", 4096, 11008, 32, 32, 32, 128, 32000, 4096, 1e-5, 10000.0, False),
    "llama2-13b": ("llama", 5120, 13824, 40, 40, 40, 128, 32000, 4096, 1e-5, 10000.0, False),
    "codellama-7b": ("llama", 4096, 11008, 32, 32, 32, 128, 32016, 16384, 1e-5, 1000000.0, False),
    "codellama-34b": ("llama", 8192, 22016, 48, 64, 8, 128, 32000, 16384, 1e-5, 1000000.0, False),
    "llama3-8b": ("llama", 4096, 14336, 32, 32, 8, 128, 128256, 8192, 1e-5, 500000.0, False),
    "llama3.1-8b": ("llama", 4096, 14336, 32, 32, 8, 128, 128256, 131072, 1e-5, 500000.0, False),
    "llama3.2-1b": ("llama", 2048, 8192, 16, 32, 8, 64, 128256, 131072, 1e-5, 500000.0, True),
    "mistral-7b": ("mistral", 4096, 14336, 32, 32, 8, 128, 32768, 32768, 1e-5, 1000000.0, False),
    "qwen2-72b": ("qwen2", 8192, 29568, 80, 64, 8, 128, 152064, 131072, 1e-5, 1000000.0, False),
    "qwen2.5-0.5b": ("qwen2", 896, 4864, 24, 14, 2, 64, 151936, 32768, 1e-6, 1000000.0, True),
    "qwen2.5-1.5b": ("qwen2", 1536, 8960, 28, 12, 2, 128, 151936, 131072, 1e-6, 1000000.0, True),
    "qwen2.5-3b": ("qwen2", 2048, 11008, 36, 16, 2, 128, 151936, 32768, 1e-6, 1000000.0, True),
    "qwen2.5-7b": ("qwen2", 3584, 18944, 28, 28, 4, 128, 152064, 131072, 1e-6, 1000000.0, False),
    "qwen2.5-14b": ("qwen2", 5120, 13824, 48, 40, 8, 128, 152064, 131072, 1e-5, 1000000.0, False),
    "qwen2.5-32b": ("qwen2", 5120, 27648, 64, 40, 8, 128, 152064, 131072, 1e-5, 1000000.0, False),
    "qwen2.5-72b": ("qwen2", 8192, 29568, 80, 64, 8, 128, 152064, 131072, 1e-5, 1000000.0, False),
    "qwen3-0.6b": ("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, 40960, 1e-6, 1000000.0, True),
    "qwen3-1.7b": ("qwen3", 2048, 6144, 28, 16, 8, 128, 151936, 40960, 1e-6, 1000000.0, True),
    "qwen3-4b": ("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, 40960, 1e-6, 1000000.0, True),
    "qwen3-8b": ("qwen3", 4096, 12288, 36, 32, 8, 128, 151936, 40960, 1e-6, 1000000.0, False),
    "qwen3-14b": ("qwen3", 5120, 17408, 40, 40, 8, 128, 151936, 40960, 1e-6, 1000000.0, False),
    "qwen3-32b": ("qwen3", 5120, 25600, 64, 64, 8, 128, 151936, 40960, 1e-6, 1000000.0, False),
}
MODELS: dict[str, dict[str, Any]] = {
    name: dict(zip(_KEYS, row, strict=True)) | ({"sliding_window": None} if row[0] == "mistral" else {})
    for name, row in _ROWS.items()
}
MODELS["llama3.1-8b"]["rope_scaling"] = _LLAMA3
MODELS["llama3.2-1b"]["rope_scaling"] = _LLAMA3 | {"factor": 32.0}

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
# fmt: on


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
    features(str(path), values)
    known = {*SIZES, *REFUSED, *_HARMLESS}
    unknown = [key for key in values if key not in known and not key.startswith("_")]
    if unknown:
        raise ConfigError(
            f"{path}: unknown key {', '.join(map(short, unknown))}; read are {', '.join(SIZES)}: mend its name, or "
            f"take it out if it changes nothing that a layer computes"
        )
    vocabulary = 0 if values.get("vocab_size") is None else values["vocab_size"]
    shape = DecoderShape(**shape_values(str(path), values), vocab_size=vocabulary)
    return replace(shape, name=name_of(path))


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
