"""The configuration of a decoder, read from a Hugging Face `config.json` and checked (see `shape.config`)."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from wafer_triton.errors import CacheError, CheckpointError, ConfigError, ShapeError
from wafer_triton.models import rotary
from wafer_triton.shape.config import (
    RopeScaling,
    check_positive,
    check_size,
    check_supported,
    features,
    given_or_absent,
    read_json,
    required,
    short,
)
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.read import check_keys, name_of, shape_values


@dataclass(frozen=True)
class DecoderConfig(DecoderShape):
    """A decoder shape with the settings of a run, under Hugging Face's names; ConfigError for bad ones."""

    max_position_embeddings: int
    rope_theta: float = field(default=10000.0, kw_only=True)
    rope_scaling: RopeScaling | None = field(default=None, kw_only=True)
    eos_token_ids: tuple[int, ...] = field(default=(), kw_only=True)
    model_type: str = field(default="llama", kw_only=True)
    hidden_act: str = field(default="silu", kw_only=True)

    def __post_init__(self) -> None:
        for key in ("model_type", "hidden_act"):
            check_supported(self.name, key, getattr(self, key))
        check_size(self.name, "max_position_embeddings", self.max_position_embeddings)
        super().__post_init__()
        check_positive(self.name, "rope_theta", self.rope_theta)

    @classmethod
    def from_folder(cls, folder: str | Path) -> "DecoderConfig":
        """Return the configuration in `config.json`, with the ids that end a text from `generation_config.json`.

        Raises `CheckpointError` without `config.json`, `ConfigError` for invalid contents.
        """
        path = Path(folder) / "config.json"
        if not path.is_file():
            raise CheckpointError(f"{folder}: no config.json; give a folder in Hugging Face layout")
        return cls.from_file(path)

    @classmethod
    def from_file(cls, path: Path) -> "DecoderConfig":
        """Return the configuration in a `config.json` and the `generation_config.json` beside it; else ConfigError.

        Warns of settings that are not obeyed though they change a greedy text. As in transformers, those of
        `config.json` count where there is no other file.
        """
        values, beside = read_json(path), path.with_name("generation_config.json")
        source = beside if beside.exists() else path
        generation = read_json(source)
        _eos_token_ids(str(source), generation)
        if generation.get("eos_token_id") is not None:
            values = {**values, "eos_token_id": generation["eos_token_id"]}
        if ignored := [key for key, neutral in _CHANGE_TOKENS.items() if generation.get(key) not in (None, neutral)]:
            warnings.warn(
                f"{source}: not obeyed here: {', '.join(ignored)}; transformers obeys them, so its tokens may differ",
                stacklevel=2,
            )
        return replace(cls.from_dict(values, name=str(path)), name=name_of(path))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str = "config") -> "DecoderConfig":
        """Return the configuration of the keys of a `config.json`; absent optional keys have transformers' defaults."""
        model_type = required(name, values, "model_type")
        theta, scaling = features(name, values)
        check_keys(name, values)
        return cls(
            **shape_values(name, values),
            vocab_size=required(name, values, "vocab_size"),
            max_position_embeddings=given_or_absent(values, "max_position_embeddings"),
            rope_theta=theta,
            rope_scaling=scaling,
            eos_token_ids=_eos_token_ids(name, values),
            model_type=model_type,
            hidden_act=values.get("hidden_act", "silu"),
        )

    @property
    def context(self) -> int:
        """The most tokens of a text: `max_position_embeddings`, or the length to which rope scaling stretches it."""
        most = self.max_position_embeddings
        return most if self.rope_scaling is None else self.rope_scaling.context(most)

    def room(self, count: int) -> None:
        """Raise CacheError unless a text may have `count` tokens."""
        if count > self.context:
            raise CacheError(
                f"{count} tokens are more than the {self.context} positions of {self.name} "
                f"(max_position_embeddings in its config.json); give a shorter prompt, or fewer new tokens"
            )

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raise ShapeError for a token id that the embedding table does not have."""
        for bad in (min(tokens, default=0), max(tokens, default=0)):
            if not 0 <= bad < self.vocab_size:
                raise ShapeError(
                    f"token {bad} is outside the vocabulary of {self.vocab_size}; give ids, or text and a "
                    f"tokenizer, of this model"
                )

    def inv_freq(self, length: int | None = None) -> tuple[torch.Tensor, float]:
        """Return rotary inverse frequencies of `length` tokens, and the factor on cos and sin (see `rotary`)."""
        return rotary.inv_freq(self.rope_theta, self.head_dim, self.rope_scaling, length)

    def angles(self, position: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin [positions, head_dim / 2], float32, of positions in a text of `length` tokens so far."""
        frequencies, factor = self.inv_freq(length)
        angle = position[:, None].float() * frequencies[None, :]
        return angle.cos() * factor, angle.sin() * factor


# Settings that change a greedy text of transformers, each with the value, beside null, that does not.
_CHANGE_TOKENS: Mapping[str, Any] = {
    "repetition_penalty": 1, "encoder_repetition_penalty": 1, "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0, "bad_words_ids": None, "sequence_bias": None, "suppress_tokens": [],
    "begin_suppress_tokens": [], "forced_bos_token_id": None, "forced_eos_token_id": None, "min_length": 0,
    "min_new_tokens": 0, "exponential_decay_length_penalty": None, "num_beams": 1, "constraints": None,
    "force_words_ids": None, "penalty_alpha": 0, "dola_layers": None, "guidance_scale": 1, "watermarking_config": None,
    "token_healing": False, "stop_strings": None, "max_time": None,
}  # fmt: skip


def _eos_token_ids(name: str, values: Mapping[str, Any]) -> tuple[int, ...]:
    ids = values.get("eos_token_id")
    listed = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if not all(type(token) is int for token in listed):
        raise ConfigError(f"{name}: eos_token_id = {short(ids)} must be a token id or a list of them")
    return tuple(listed)
