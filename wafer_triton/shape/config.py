"""The settings of a `config.json`: how a key is read and checked, and which features of a decoder are computed here.

A feature that no decoder here computes is refused by name, never ignored: no other model runs or is priced in place of
the given one. Both spellings are read: transformers 4 (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`). No
torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from wafer_triton.errors import ConfigError
from wafer_triton.text.files import parse_json, read_text

MOST = 2**24  # of a width or a vocabulary, some hundred times the largest that is known

EXPERTS = ("num_experts", "num_local_experts")
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")  # families with experts, see `wafer_triton.shape.moe`

# Features that the decoder computes. A new family extends this table; a feature that is not in it is refused.
SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("llama", "mistral", "qwen2", "qwen3", *MIXTURES),
    "hidden_act": ("silu", "swish"),  # one function, by its newer and its older name
    "rope_type": ("default", "linear", "dynamic", "llama3", "yarn"),
}

# Keys of features outside the decoder, each with its values, beside null, that switch the feature off.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "quantization_config": (),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "n_routed_experts": (0,),
    "kv_lora_rank": (),
    "q_lora_rank": (),
    "vision_config": (),
    "text_config": (),
    "partial_rotary_factor": (1,),
}

# What transformers takes for an absent key, by family; "" is any other family.
ABSENT: Mapping[str, Mapping[str, Any]] = {
    "rms_norm_eps": {"": 1e-6, "mixtral": 1e-5, "olmoe": 1e-5},
    "rope_theta": {"": 10000.0, "mixtral": 1000000.0},
    "max_position_embeddings": {"": 32768, "llama": 2048, "olmoe": 4096, "mistral": 131072, "mixtral": 131072},
}

# Families with experts that are not computed here, and their features that are not.
UNLIKE: Mapping[str, str] = {
    "deepseek_v2": "multi-head latent attention, groups of experts and a scaled router",
    "deepseek_v3": "multi-head latent attention, groups of experts and a biased router",
    "gpt_oss": "biased experts, a softmax after the choice and attention sinks",
    "granitemoe": "a softmax after the choice and scaled residuals",
    "phimoe": "a sparse mixer in place of the softmax",
    "qwen3_next": "linear attention beside softmax attention",
    "llama4_text": "chunked attention and a sigmoid router",
    "dbrx": "fused projections and LayerNorm",
}


@dataclass(frozen=True)
class RopeScaling:
    """The scaling of rotary frequencies; `kind` is transformers' `rope_type`, positions are in tokens.

    The constructor raises ConfigError for an unknown kind or an impossible number.
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192  # llama3, yarn and dynamic
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        check_supported("rope_scaling", "rope_type", self.kind)
        for number in fields(self):
            value = getattr(self, number.name)
            if number.name not in ("kind", "truncate") and (value is not None or number.default is not None):
                check_positive("rope_scaling", number.name, value)
        if not self.low_freq_factor < self.high_freq_factor:
            raise ConfigError(
                f"rope_scaling: low_freq_factor = {self.low_freq_factor} must be below "
                f"high_freq_factor = {self.high_freq_factor}"
            )

    def context(self, positions: int) -> int:
        """Return the most tokens of a text of a model with `max_position_embeddings` = `positions`.

        Files with "llama3" name the stretched length already; `factor` stretches what the other kinds were trained on.
        """
        if self.kind == "llama3":
            return positions
        trained = self.original_max_position_embeddings if self.kind == "yarn" else positions
        return max(positions, int(self.factor * trained))


def features(name: str, values: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Return the base and the scaling of rotary frequencies; ConfigError for a feature that is not computed here.

    An absent key has the default of transformers, an absent model_type is "llama".
    """
    _causal(name, values.get("architectures"))
    for key, absent in (("model_type", "llama"), ("hidden_act", "silu")):
        check_supported(name, key, values.get(key, absent))
    mixture = values.get("model_type") in MIXTURES
    for key, harmless in REFUSED.items():
        if mixture and key in EXPERTS:
            continue
        if values.get(key) is not None and values[key] not in harmless:
            only = (
                "price it without, by dtype int8 or fp8" if key == "quantization_config" else "only models without it"
            )
            raise ConfigError(f"{name}: {key} = {short(values[key])} is not computed here; {only}")
    if not values.get("is_causal", True):  # null, too
        raise ConfigError(f"{name}: is_causal = {short(values['is_causal'])} is not computed here; only true")
    theta, scaling = _rope(name, values)
    _refuse_sliding_window(name, values.get("model_type", "llama"), values, context(name, values, scaling))
    return theta, scaling


def given_or_absent(values: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key of `ABSENT`, or what transformers takes where it is absent."""
    default = ABSENT[key]
    return values.get(key, default.get(values.get("model_type", "llama"), default[""]))


def context(name: str, values: Mapping[str, Any], scaling: RopeScaling | None) -> int:
    """Return the most tokens of a text by the keys of a `config.json`; ConfigError for an impossible number."""
    most = given_or_absent(values, "max_position_embeddings")
    check_size(name, "max_position_embeddings", most)
    return most if scaling is None else scaling.context(most)


def _causal(name: str, architectures: Any) -> None:
    """Raise ConfigError for a model without the head of a language model."""
    named = [] if architectures is None else architectures
    if not isinstance(named, list) or not all(isinstance(text, str) for text in named):
        raise ConfigError(f"{name}: architectures = {short(architectures)} must be a list of words")
    other = [text for text in named if not text.endswith(("ForCausalLM", "Model"))]
    if other:
        raise ConfigError(
            f"{name}: architectures = {short(other)} is not computed here; only decoders that end in ForCausalLM"
        )


def check_supported(where: str, key: str, value: Any) -> None:
    """Raise ConfigError unless a feature is in `SUPPORTED`."""
    if value not in SUPPORTED[key]:
        reason = f" ({UNLIKE[value]})" if key == "model_type" and isinstance(value, str) and value in UNLIKE else ""
        known = ", ".join(repr(choice) for choice in SUPPORTED[key])
        raise ConfigError(f"{where}: {key} = {short(value)} is not computed here{reason}; supported: {known}")


def check_size(where: str, key: str, value: Any, least: int = 1, most: int = MOST) -> None:
    """Raise ConfigError unless the value of a key is a whole number from `least` to `most`."""
    if type(value) is not int or value < least:
        raise ConfigError(f"{where}: {key} = {short(value)} must be a positive integer")
    if value > most:
        raise ConfigError(f"{where}: {key} = {short(value)} is more than the {most:,} that are taken here")


def check_positive(where: str, key: str, value: Any) -> None:
    """Raise ConfigError unless the value of a key is a finite number above 0."""
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ConfigError(f"{where}: {key} = {short(value)} must be a positive number")


def required(where: str, values: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key; ConfigError if it is missing or null."""
    if values.get(key) is None:
        raise ConfigError(f"{where}: {key} is missing{' (null)' if key in values else ''}; add it")
    return values[key]


def check_flag(where: str, values: Mapping[str, Any], key: str) -> bool:
    """Return the value of a key that is true, false or absent (false); ConfigError for any other."""
    value = values.get(key)
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"{where}: {key} = {short(value)} must be true or false")
    return bool(value)


def short(value: Any) -> str:
    """Return a value as a message shows it, cut after 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def read_json(path: Path, of: str = "a table of settings") -> dict[str, Any]:
    """Return the table in a JSON file; ConfigError for anything else, which says that it is not `of`."""
    values = parse_json(read_text(path), path)
    if not isinstance(values, dict):
        kind = {list: "a list", str: "a text", type(None): "null", bool: "true or false"}.get(type(values), "a number")
        raise ConfigError(f"{path}: holds {kind}, not {of}")
    return values


def _rope(name: str, values: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    rope = values.get("rope_scaling") or values.get("rope_parameters") or {}
    if not isinstance(rope, Mapping) or any(isinstance(value, Mapping) for value in rope.values()):
        raise ConfigError(f"{name}: rope settings {short(rope)} must be one flat table for all layers")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(
            f"{name}: partial_rotary_factor = {rope['partial_rotary_factor']} is not computed here; only whole heads"
        )
    theta = rope.get("rope_theta", given_or_absent(values, "rope_theta"))
    kind = rope.get("rope_type", rope.get("type", "default"))
    check_supported(name, "rope_type", kind)
    check_positive(name, "rope_theta", theta)
    if kind == "default":
        return theta, None
    where = f"{name}: rope {kind!r}"
    scaling: dict[str, Any] = {key: required(where, rope, key) for key in _ROPE_NEEDS.get(kind, ("factor",))}
    if kind == "yarn":
        scaling |= {key: rope[key] for key in ("attention_factor", "truncate") if rope.get(key) is not None}
        # transformers takes 0 for absent
        scaling |= {key: rope[key] for key in _ROPE_NUMBERS if rope.get(key) not in (None, 0)}
    if kind != "linear":
        # dynamic starts to stretch at the end of the context that the config names
        key = "original_max_position_embeddings"
        trained = None if kind == "dynamic" else values.get(key) or rope.get(key)
        scaling[key] = trained or given_or_absent(values, "max_position_embeddings")
    try:
        return theta, RopeScaling(kind, **scaling)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


_ROPE_NEEDS = {"llama3": ("factor", "low_freq_factor", "high_freq_factor")}
_ROPE_NUMBERS = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")


def _refuse_sliding_window(name: str, model_type: str, values: Mapping[str, Any], most: int) -> None:
    """Raise ConfigError for layers with a window that is shorter than a text of `most` tokens."""
    # for Mistral, the default of transformers is 4096.
    window = values.get("sliding_window", 4096 if model_type == "mistral" else None)
    used = window is not None and values.get("use_sliding_window", not model_type.startswith("qwen")) is not False
    layers = values.get("layer_types") or []
    if not isinstance(layers, list) or not all(isinstance(layer, str) for layer in layers):
        raise ConfigError(f"{name}: layer_types = {short(layers)} must be a list of words")
    kinds = set(layers) - {"full_attention"}
    if used and model_type in ("qwen2", "qwen3", "qwen2_moe"):  # where only some layers have a window
        first, count = values.get("max_window_layers", 28), required(name, values, "num_hidden_layers")
        check_size(name, "max_window_layers", first, least=0)
        check_size(name, "num_hidden_layers", count)
        used = not layers and (first > 0 if model_type == "qwen2_moe" else first < count)
    if model_type == "llama":  # which reads no window
        used = False
    if type(window) is int and window >= most:
        used, kinds = False, kinds - {"sliding_attention"}
    if used or kinds:
        what = f"sliding_window = {window}" if used else f"layer_types with {', '.join(sorted(kinds))}"
        raise ConfigError(f"{name}: {what} is not computed here; only full attention (sliding_window = null)")
