"""The sizes of a decoder that its cost depends on: presets by name, or a Hugging Face `config.json`."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from wafer_triton.errors import ConfigError


@dataclass(frozen=True)
class ModelSizes:
    """Width, feed-forward width, heads and layers; `head_dim` 0 means dim / heads. Raises ConfigError at birth."""

    name: str
    layers: int
    dim: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int = 0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            least = 0 if one.name == "head_dim" else 1
            if one.name != "name" and (type(value) is not int or value < least):
                raise ConfigError(f"model {self.name!r}: {one.name} = {value!r} must be a whole number of at least 1")
        if self.heads % self.kv_heads:
            raise ConfigError(f"model {self.name!r}: {self.heads} heads are no multiple of {self.kv_heads} kv_heads")
        if not self.head_dim and self.dim % self.heads:
            raise ConfigError(f"model {self.name!r}: dim {self.dim} is no multiple of {self.heads} heads")

    @property
    def width(self) -> int:
        """Of all heads together."""
        return self.heads * (self.head_dim or self.dim // self.heads)

    @property
    def kv_width(self) -> int:
        """Of all key heads together."""
        return self.width // self.heads * self.kv_heads


# (layers, dim, ffn, heads, kv_heads[, head_dim]), each from the model's own config.json.
_SIZES: dict[str, tuple[int, ...]] = {
    "smollm2-135m": (30, 576, 1536, 9, 3),
    "llama3-8b": (32, 4096, 14336, 32, 8),
    "llama2-13b": (40, 5120, 13824, 40, 40),
    "codellama-34b": (48, 8192, 22016, 64, 8),
    "qwen2-72b": (80, 8192, 29568, 64, 8),
    "qwen2.5-0.5b": (24, 896, 4864, 14, 2),
    "qwen2.5-1.5b": (28, 1536, 8960, 12, 2),
    "qwen2.5-3b": (36, 2048, 11008, 16, 2),
    "qwen2.5-7b": (28, 3584, 18944, 28, 4),
    "qwen2.5-14b": (48, 5120, 13824, 40, 8),
    "qwen2.5-32b": (64, 5120, 27648, 40, 8),
    "qwen2.5-72b": (80, 8192, 29568, 64, 8),
    "qwen3-0.6b": (28, 1024, 3072, 16, 8, 128),
    "qwen3-1.7b": (28, 2048, 6144, 16, 8, 128),
    "qwen3-4b": (36, 2560, 9728, 32, 8, 128),
    "qwen3-8b": (36, 4096, 12288, 32, 8, 128),
    "qwen3-14b": (40, 5120, 17408, 40, 8, 128),
    "qwen3-32b": (64, 5120, 25600, 64, 8, 128),
}
MODELS = {name: ModelSizes(name, *sizes) for name, sizes in _SIZES.items()}

_KEYS = {
    "num_hidden_layers": "layers",
    "hidden_size": "dim",
    "intermediate_size": "ffn",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
}
# Keys of a config.json that change what a layer computes, each with the values under which it does not.
_FOREIGN: dict[str, tuple[Any, ...]] = {
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "n_routed_experts": (None, 0),
    "kv_lora_rank": (None,),
    "q_lora_rank": (None,),
    "vision_config": (None,),
    "text_config": (None,),
}

# Keys that do not change the cost of a layer; any other is refused, since it may.
# fmt: off
_HARMLESS = frozenset((
    "architectures", "attention_bias", "attention_dropout", "auto_map", "bos_token_id", "dtype", "eos_token_id",
    "hidden_act", "initializer_range", "is_llama_config", "layer_types", "max_position_embeddings",
    "max_window_layers", "mlp_bias", "model_type", "name", "pad_token_id", "pretraining_tp", "quantization_config",
    "rms_norm_eps", "rope_interleaved", "rope_parameters", "rope_scaling", "rope_theta", "sliding_window",
    "tie_word_embeddings", "torch_dtype", "transformers.js_config", "transformers_version", "use_cache", "use_mrope",
    "use_sliding_window", "vocab_size",
))
# fmt: on


def model_sizes(name: str | ModelSizes) -> ModelSizes:
    """A preset's sizes, or those of a config.json (or of the folder that holds it).

    Raises ConfigError: with the nearest names for an unknown model, with the keys that a configuration lacks, and for a
    key that asks for another kind of layer.
    """
    if isinstance(name, ModelSizes):
        return name
    if name in MODELS:
        return MODELS[name]
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if path.is_file():
        return _read(path)
    near = difflib.get_close_matches(name.lower(), MODELS, n=3, cutoff=0.4)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    raise ConfigError(f"unknown model {name!r}{hint} (presets: {', '.join(MODELS)}; or a config.json)")


def _read(path: Path) -> ModelSizes:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds a {type(values).__name__}, not a table of settings")
    for key, harmless in _FOREIGN.items():
        if values.get(key) not in harmless:
            raise ConfigError(f"{path}: {key} = {values[key]!r}: only dense decoders are estimated")
    unknown = [key for key in values if key not in {*_KEYS, *_FOREIGN, *_HARMLESS} and not key.startswith("_")]
    if unknown:
        raise ConfigError(f"{path}: unknown key {', '.join(map(repr, unknown))}; read are {', '.join(_KEYS)}")
    values.setdefault("num_key_value_heads", values.get("num_attention_heads"))
    missing = [key for key in _KEYS if key != "head_dim" and values.get(key) is None]
    if missing:
        raise ConfigError(f"{path}: {', '.join(missing)} missing")
    return ModelSizes(path.parent.name, **{own: values.get(key) or 0 for key, own in _KEYS.items()})
