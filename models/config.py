"""What a decoder is made of, read from a Hugging Face `config.json` and checked at birth.

A feature that no decoder here computes is refused by name, never ignored: a model that runs is the model that was
asked for. Both spellings are read: transformers 4 (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from wafer_triton.errors import CacheError, CheckpointError, ConfigError
from wafer_triton.models import rotary
from wafer_triton.models.rotary import RopeScaling
from wafer_triton.shapes import (
    DecoderShape,
    check_positive,
    check_size,
    name_of,
    read_json,
    required,
    shape_values,
    short,
)

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


@dataclass(frozen=True)
class DecoderConfig(DecoderShape):
    """A decoder shape with what running it takes, under Hugging Face's names; `ConfigError` on what it cannot be."""

    max_position_embeddings: int
    rope_theta: float = field(default=10000.0, kw_only=True)
    rope_scaling: RopeScaling | None = field(default=None, kw_only=True)
    bos_token_id: int | None = field(default=None, kw_only=True)
    eos_token_ids: tuple[int, ...] = field(default=(), kw_only=True)
    model_type: str = field(default="llama", kw_only=True)
    hidden_act: str = field(default="silu", kw_only=True)

    def __post_init__(self) -> None:
        for key in ("model_type", "hidden_act"):
            _supported(self.name, key, getattr(self, key))
        check_size(self.name, "max_position_embeddings", self.max_position_embeddings)
        super().__post_init__()
        check_positive(self.name, "rms_norm_eps", self.rms_norm_eps)
        check_positive(self.name, "rope_theta", self.rope_theta)

    @classmethod
    def from_folder(cls, folder: str | Path) -> "DecoderConfig":
        """Reads `config.json`, and `generation_config.json` for the ids that end a text as `generate` does.

        Raises `CheckpointError` without `config.json`, `ConfigError` for what is in it.
        """
        path = Path(folder) / "config.json"
        if not path.is_file():
            raise CheckpointError(f"{folder}: no config.json; give a folder in Hugging Face layout")
        return cls.from_file(path)

    @classmethod
    def from_file(cls, path: Path) -> "DecoderConfig":
        """Reads a `config.json`, and the `generation_config.json` beside it; ConfigError for what is in them."""
        values, beside = read_json(path), path.with_name("generation_config.json")
        if beside.is_file():
            eos = read_json(beside).get("eos_token_id")
            _token_ids(str(beside), eos)
            values = values if eos is None else {**values, "eos_token_id": eos}
        return replace(cls.from_dict(values, name=str(path)), name=name_of(path))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str = "config") -> "DecoderConfig":
        """Reads the keys of a `config.json`; an absent optional key means what transformers takes it to mean."""
        model_type = required(name, values, "model_type")
        _supported(name, "model_type", model_type)
        for key, harmless in _REFUSED.items():
            if values.get(key) is not None and values[key] not in harmless:
                raise ConfigError(f"{name}: {key} = {short(values[key])} is not computed here; only models without it")
        _refuse_sliding_window(name, model_type, values)
        theta, scaling = _rope(name, values)
        return cls(
            **shape_values(name, values),
            vocab_size=required(name, values, "vocab_size"),
            max_position_embeddings=required(name, values, "max_position_embeddings"),
            rms_norm_eps=required(name, values, "rms_norm_eps"),
            rope_theta=theta,
            rope_scaling=scaling,
            bos_token_id=values.get("bos_token_id"),
            eos_token_ids=_token_ids(name, values.get("eos_token_id")),
            model_type=model_type,
            hidden_act=values.get("hidden_act", "silu"),
        )

    @property
    def context(self) -> int:
        """The most tokens that a text may have: `max_position_embeddings`, or what rope scaling stretches it to."""
        if self.rope_scaling is None:
            return self.max_position_embeddings
        trained = self.rope_scaling.original_max_position_embeddings
        trained = self.max_position_embeddings if self.rope_scaling.kind == "linear" else trained
        return max(self.max_position_embeddings, int(self.rope_scaling.factor * trained))

    def room(self, count: int) -> None:
        """Raise CacheError unless a text may have `count` tokens."""
        if count > self.context:
            raise CacheError(
                f"{count} tokens are more than the {self.context} positions that {self.name} knows "
                f"(max_position_embeddings in its config.json); give a shorter prompt, or fewer new tokens"
            )

    def inv_freq(self, length: int | None = None) -> tuple[torch.Tensor, float]:
        """Rotary inverse frequencies of `length` tokens, and the factor on cos and sin; see `rotary.inv_freq`."""
        return rotary.inv_freq(self.rope_theta, self.head_dim, self.rope_scaling, length)

    def angles(self, position: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [positions, head_dim / 2], float32, of positions in a text of `length` tokens so far."""
        frequencies, factor = self.inv_freq(length)
        angle = position[:, None].float() * frequencies[None, :]
        return angle.cos() * factor, angle.sin() * factor


def param_shapes(config: DecoderShape) -> dict[str, tuple[int, ...]]:
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
        raise ConfigError(f"{name}: rope settings {short(rope)} must be one flat table for all layers")
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
    scaling: dict[str, Any] = {key: required(where, rope, key) for key in _ROPE_NEEDS.get(kind, ("factor",))}
    scaling |= {key: rope[key] for key in _ROPE_MAY.get(kind, ()) if rope.get(key) is not None}
    if kind != "linear":
        # dynamic starts to stretch at the end of the context that the config names
        outside = values.get("original_max_position_embeddings"), values.get("max_position_embeddings")
        inside = None if kind == "dynamic" else rope.get("original_max_position_embeddings")
        context = outside[1] if kind == "dynamic" else outside[0] or inside or outside[1]
        scaling["original_max_position_embeddings"] = context
    try:
        return theta, RopeScaling(kind, **scaling)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


_ROPE_NEEDS = {"llama3": ("factor", "low_freq_factor", "high_freq_factor")}
_ROPE_MAY = {"yarn": ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")}


def _refuse_sliding_window(name: str, model_type: str, values: Mapping[str, Any]) -> None:
    # transformers takes an absent key in a Mistral config for 4096.
    window = values.get("sliding_window", 4096 if model_type == "mistral" else None)
    used = window is not None and values.get("use_sliding_window", not model_type.startswith("qwen")) is not False
    layers = values.get("layer_types") or []
    if not isinstance(layers, list) or not all(isinstance(layer, str) for layer in layers):
        raise ConfigError(f"{name}: layer_types = {short(layers)} must be a list of words")
    kinds = set(layers) - {"full_attention"}
    if used or kinds:
        what = f"sliding_window = {window}" if used else f"layer_types with {', '.join(sorted(kinds))}"
        raise ConfigError(f"{name}: {what} is not computed here; only full attention (sliding_window = null)")


def _token_ids(name: str, ids: Any) -> tuple[int, ...]:
    listed = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if not all(type(token) is int for token in listed):
        raise ConfigError(f"{name}: eos_token_id = {ids!r} must be a token id or a list of them")
    return tuple(listed)


def _supported(where: str, key: str, value: Any) -> None:
    if value not in SUPPORTED[key]:
        known = ", ".join(repr(choice) for choice in SUPPORTED[key])
        raise ConfigError(f"{where}: {key} = {value!r} is not computed here; supported: {known}")
