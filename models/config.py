"""What a decoder is made of, read from a Hugging Face `config.json` and checked at birth.

A feature that no decoder here computes is refused by name, never ignored: a model that runs is the model that was
asked for. Both spellings are read: transformers 4 (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`).
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wafer_triton.errors import CheckpointError, ConfigError
from wafer_triton.models import rotary
from wafer_triton.models.rotary import RopeScaling

# What the decoder computes today. A new family grows this table; whatever is not in it is refused.
SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("llama", "mistral", "qwen2", "qwen3"),
    "hidden_act": ("silu",),
    "rope_type": ("default", *rotary.KINDS),
}

# Keys that ask for something outside the decoder, each with the values that ask for nothing.
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "quantization_config": (),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "n_routed_experts": (0,),
    "partial_rotary_factor": (1,),
}

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
)


@dataclass(frozen=True)
class DecoderConfig:
    """One decoder-only transformer under Hugging Face's names; raises `ConfigError` on what it cannot be."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    model_type: str = "llama"
    hidden_act: str = "silu"
    qkv_bias: bool = False  # on the projections of queries, keys and values (Qwen2)
    qk_norm: bool = False  # RMSNorm of each query and key head before RoPE (Qwen3)
    name: str = "decoder"

    def __post_init__(self) -> None:
        for key in ("model_type", "hidden_act"):
            _supported(self.name, key, getattr(self, key))
        for key in _SIZES:
            _size(self.name, key, getattr(self, key))
        _positive(self.name, "rms_norm_eps", self.rms_norm_eps)
        _positive(self.name, "rope_theta", self.rope_theta)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"{self.name}: num_attention_heads = {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads = {self.num_key_value_heads}; each key head serves a whole group of query heads"
            )
        if self.head_dim % 2:
            raise ConfigError(f"{self.name}: head_dim = {self.head_dim} is odd; rotary embedding turns pairs")

    @classmethod
    def from_folder(cls, folder: str | Path) -> "DecoderConfig":
        """Reads `config.json`, and `generation_config.json` for the ids that end a text as `generate` does.

        Raises `CheckpointError` without `config.json`, `ConfigError` for what is in it.
        """
        folder = Path(folder)
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"{folder}: no config.json; give a folder in Hugging Face layout")
        values = _read_json(folder / "config.json")
        if (folder / "generation_config.json").is_file():
            eos = _read_json(folder / "generation_config.json").get("eos_token_id")
            values = values if eos is None else {**values, "eos_token_id": eos}
        return cls.from_dict(values, name=folder.resolve().name)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str = "config") -> "DecoderConfig":
        """Reads the keys of a `config.json`; an absent optional key means what transformers takes it to mean."""
        model_type = _required(name, values, "model_type")
        _supported(name, "model_type", model_type)
        for key, harmless in _REFUSED.items():
            if values.get(key) is not None and values[key] not in harmless:
                raise ConfigError(f"{name}: {key} = {_short(values[key])} is not computed here; only models without it")
        _refuse_sliding_window(name, model_type, values)
        theta, scaling = _rope(name, values)
        heads = _required(name, values, "num_attention_heads")
        # The others' defaults are 8 or 32 whatever the number of heads; nobody means that, so it must be said.
        kv_heads = (
            values.get("num_key_value_heads")
            if model_type == "llama"
            else _required(name, values, "num_key_value_heads")
        )
        return cls(
            hidden_size=_required(name, values, "hidden_size"),
            intermediate_size=_required(name, values, "intermediate_size"),
            num_hidden_layers=_required(name, values, "num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=heads if kv_heads is None else kv_heads,
            head_dim=_head_dim(name, values),
            vocab_size=_required(name, values, "vocab_size"),
            max_position_embeddings=_required(name, values, "max_position_embeddings"),
            rms_norm_eps=_required(name, values, "rms_norm_eps"),
            rope_theta=theta,
            rope_scaling=scaling,
            tie_word_embeddings=_flag(name, values, "tie_word_embeddings"),
            bos_token_id=values.get("bos_token_id"),
            eos_token_ids=_token_ids(name, values.get("eos_token_id")),
            model_type=model_type,
            hidden_act=values.get("hidden_act", "silu"),
            qkv_bias=model_type == "qwen2",
            qk_norm=model_type == "qwen3",
            name=name,
        )

    @property
    def context(self) -> int:
        """The most tokens that a text may have: `max_position_embeddings`, or what rope scaling stretches it to."""
        if self.rope_scaling is None:
            return self.max_position_embeddings
        trained = self.rope_scaling.original_max_position_embeddings
        trained = self.max_position_embeddings if self.rope_scaling.kind == "linear" else trained
        return max(self.max_position_embeddings, int(self.rope_scaling.factor * trained))

    def inv_freq(self, length: int | None = None) -> tuple[torch.Tensor, float]:
        """Rotary inverse frequencies of `length` tokens, and the factor on cos and sin; see `rotary.inv_freq`."""
        return rotary.inv_freq(self.rope_theta, self.head_dim, self.rope_scaling, length)


def param_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter by its Hugging Face name; a projection is (out_features, in_features)."""
    width, ffn = config.hidden_size, config.intermediate_size
    q_width, kv_width = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    layer = {
        "input_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (q_width, width),
        "self_attn.k_proj.weight": (kv_width, width),
        "self_attn.v_proj.weight": (kv_width, width),
        "self_attn.o_proj.weight": (width, q_width),
        "post_attention_layernorm.weight": (width,),
        "mlp.gate_proj.weight": (ffn, width),
        "mlp.up_proj.weight": (ffn, width),
        "mlp.down_proj.weight": (width, ffn),
    }
    if config.qkv_bias:
        layer |= {f"self_attn.{part}_proj.bias": layer[f"self_attn.{part}_proj.weight"][:1] for part in "qkv"}
    if config.qk_norm:
        layer |= {f"self_attn.{part}_norm.weight": (config.head_dim,) for part in "qk"}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, width)}
    for index in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{index}.{part}": shape for part, shape in layer.items()}
    shapes["model.norm.weight"] = (width,)
    return shapes if config.tie_word_embeddings else shapes | {"lm_head.weight": (config.vocab_size, width)}


def _rope(name: str, values: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    rope = values.get("rope_scaling") or values.get("rope_parameters") or {}
    if not isinstance(rope, Mapping) or any(isinstance(value, Mapping) for value in rope.values()):
        raise ConfigError(f"{name}: rope settings {_short(rope)} must be one flat table for all layers")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(
            f"{name}: partial_rotary_factor = {rope['partial_rotary_factor']} is not computed here; only whole heads"
        )
    theta = rope.get("rope_theta", values.get("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    _supported(name, "rope_type", kind)
    if kind == "default":
        return theta, None
    where = f"{name}: rope {kind!r}"
    scaling: dict[str, Any] = {key: _required(where, rope, key) for key in _ROPE_NEEDS.get(kind, ("factor",))}
    scaling |= {key: rope[key] for key in _ROPE_MAY.get(kind, ()) if rope.get(key) is not None}
    if kind != "linear":
        # dynamic starts to stretch at the end of the context that the config names
        outside = values.get("original_max_position_embeddings"), values.get("max_position_embeddings")
        inside = None if kind == "dynamic" else rope.get("original_max_position_embeddings")
        context = outside[1] if kind == "dynamic" else outside[0] or inside or outside[1]
        scaling["original_max_position_embeddings"] = context
    return theta, RopeScaling(kind, **scaling)


_ROPE_NEEDS = {"llama3": ("factor", "low_freq_factor", "high_freq_factor")}
_ROPE_MAY = {"yarn": ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")}


def _refuse_sliding_window(name: str, model_type: str, values: Mapping[str, Any]) -> None:
    # transformers takes an absent key in a Mistral config for 4096.
    window = values.get("sliding_window", 4096 if model_type == "mistral" else None)
    used = window is not None and values.get("use_sliding_window", not model_type.startswith("qwen")) is not False
    layers = values.get("layer_types") or []
    if not isinstance(layers, list) or not all(isinstance(one, str) for one in layers):
        raise ConfigError(f"{name}: layer_types = {_short(layers)} must be a list of words")
    kinds = set(layers) - {"full_attention"}
    if used or kinds:
        what = f"sliding_window = {window}" if used else f"layer_types with {', '.join(sorted(kinds))}"
        raise ConfigError(f"{name}: {what} is not computed here; only full attention (sliding_window = null)")


def _head_dim(name: str, values: Mapping[str, Any]) -> Any:
    if values.get("head_dim") is not None:
        return values["head_dim"]
    if values["model_type"] == "qwen3":
        return 128  # transformers' default for this family
    width, heads = (_required(name, values, key) for key in ("hidden_size", "num_attention_heads"))
    _size(name, "hidden_size", width)
    _size(name, "num_attention_heads", heads)
    if width % heads:
        raise ConfigError(f"{name}: hidden_size = {width} is not a multiple of num_attention_heads = {heads}")
    return width // heads


def _token_ids(name: str, ids: Any) -> tuple[int, ...]:
    listed = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if not all(type(token) is int for token in listed):
        raise ConfigError(f"{name}: eos_token_id = {ids!r} must be a token id or a list of them")
    return tuple(listed)


def _required(where: str, values: Mapping[str, Any], key: str) -> Any:
    if values.get(key) is None:
        raise ConfigError(f"{where}: {key} is missing")
    return values[key]


def _supported(where: str, key: str, value: Any) -> None:
    if value not in SUPPORTED[key]:
        known = ", ".join(repr(choice) for choice in SUPPORTED[key])
        raise ConfigError(f"{where}: {key} = {value!r} is not computed here; supported: {known}")


def _size(where: str, key: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{where}: {key} = {value!r} must be a positive integer")


def _flag(where: str, values: Mapping[str, Any], key: str) -> bool:
    value = values.get(key)
    if value not in (None, True, False):
        raise ConfigError(f"{where}: {key} = {_short(value)} must be true or false")
    return bool(value)


def _positive(where: str, key: str, value: Any) -> None:
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ConfigError(f"{where}: {key} = {value!r} must be a positive number")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds a {type(values).__name__}, not a table of settings")
    return values


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
