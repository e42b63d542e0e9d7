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

# What the decoder computes today. A new family grows this table; whatever is not in it is refused.
SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("llama", "mistral"),
    "hidden_act": ("silu",),
    "rope_type": ("default", "linear", "llama3"),
    "qkv_bias": (False,),
    "qk_norm": (False,),
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
class RopeScaling:
    """How rotary frequencies are stretched; `kind` is transformers' `rope_type`, positions are in tokens."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        _supported("rope_scaling", "rope_type", self.kind)
        for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
            _positive("rope_scaling", key, getattr(self, key))
        if not self.low_freq_factor < self.high_freq_factor:
            raise ConfigError(
                f"rope_scaling: low_freq_factor = {self.low_freq_factor} must be below "
                f"high_freq_factor = {self.high_freq_factor}"
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
    qkv_bias: bool = False
    qk_norm: bool = False
    name: str = "decoder"

    def __post_init__(self) -> None:
        for key in ("model_type", "hidden_act", "qkv_bias", "qk_norm"):
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
        # Mistral's default is 8 whatever the number of heads; nobody means that, so it must be said.
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
            tie_word_embeddings=bool(values.get("tie_word_embeddings", False)),
            bos_token_id=values.get("bos_token_id"),
            eos_token_ids=_token_ids(name, values.get("eos_token_id")),
            model_type=model_type,
            hidden_act=values.get("hidden_act", "silu"),
            name=name,
        )

    def inv_freq(self) -> tuple[torch.Tensor, float]:
        """Rotary inverse frequencies (head_dim / 2,) float32 in radians per token, and the factor on cos and sin.

        The same float32 operations in the same order as transformers' `modeling_rope_utils`, so the same bits.
        """
        dims = torch.arange(0, self.head_dim, 2, dtype=torch.int64).to(torch.float32)
        freq = 1.0 / (self.rope_theta ** (dims / self.head_dim))
        scaling = self.rope_scaling
        if scaling is None:
            return freq, 1.0
        if scaling.kind == "linear":
            return freq / scaling.factor, 1.0
        # llama3: long waves are stretched by `factor`, short ones kept, those between blended.
        context = scaling.original_max_position_embeddings
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        wavelength = 2 * math.pi / freq
        is_long, is_short = wavelength > context / low, wavelength < context / high
        blend = (context / wavelength - low) / (high - low)
        blended = (1 - blend) * freq / scaling.factor + blend * freq
        return torch.where(is_long, freq / scaling.factor, torch.where(is_short, freq, blended)), 1.0


def param_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter by its Hugging Face name; a projection is (out_features, in_features)."""
    width, ffn = config.hidden_size, config.intermediate_size
    q_width, kv_width = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    layer = {
        "input_layernorm": (width,),
        "self_attn.q_proj": (q_width, width),
        "self_attn.k_proj": (kv_width, width),
        "self_attn.v_proj": (kv_width, width),
        "self_attn.o_proj": (width, q_width),
        "post_attention_layernorm": (width,),
        "mlp.gate_proj": (ffn, width),
        "mlp.up_proj": (ffn, width),
        "mlp.down_proj": (width, ffn),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, width)}
    for index in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{index}.{part}.weight": shape for part, shape in layer.items()}
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
    needed = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}[kind]
    scaling: dict[str, Any] = {key: _required(f"{name}: rope {kind!r}", rope, key) for key in needed}
    if kind == "llama3":
        context = rope.get("original_max_position_embeddings", values.get("max_position_embeddings"))
        scaling["original_max_position_embeddings"] = context
    return theta, RopeScaling(kind, **scaling)


def _refuse_sliding_window(name: str, model_type: str, values: Mapping[str, Any]) -> None:
    # transformers takes an absent key in a Mistral config for 4096.
    window = values.get("sliding_window", 4096 if model_type == "mistral" else None)
    used = window is not None and values.get("use_sliding_window") is not False
    kinds = set(values.get("layer_types") or ()) - {"full_attention"}
    if used or kinds:
        what = f"sliding_window = {window}" if used else f"layer_types with {', '.join(sorted(kinds))}"
        raise ConfigError(f"{name}: {what} is not computed here; only full attention (sliding_window = null)")


def _head_dim(name: str, values: Mapping[str, Any]) -> Any:
    if values.get("head_dim") is not None:
        return values["head_dim"]
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


def _positive(where: str, key: str, value: Any) -> None:
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ConfigError(f"{where}: {key} = {value!r} must be a positive number")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds a {type(values).__name__}, not a table of settings")
    return values


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
