"""A decoder of a few kilobytes in Hugging Face layout, whose tokens are bytes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from wafer_triton.models.config import DecoderConfig
from wafer_triton.place.need import param_shapes

CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 256,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}

MIXTURE = CONFIG | {
    "model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
    "mlp_only_layers": [0],
}  # fmt: skip


# As narrow, with all that projections may have beside their products.
BIASED = DecoderConfig(
    hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
    vocab_size=31, max_position_embeddings=64, tie_word_embeddings=True, qkv_bias=True, qk_norm=True,
)  # fmt: skip


# Deeper, with a head of its own and heads wider than its width over their number.
DEEP = replace(BIASED, num_hidden_layers=3, head_dim=10, tie_word_embeddings=False, qkv_bias=False, name="tiny")


def drawn(config: DecoderConfig, scale: float = 1.0) -> dict[str, torch.Tensor]:
    """Return random weights, the same ones in every call."""
    random = torch.Generator().manual_seed(0)
    return {name: scale * torch.randn(*shape, generator=random) for name, shape in param_shapes(config).items()}


def checkpoint(
    path: Path, config: dict[str, Any] | None = None, weights: dict[str, torch.Tensor] | None = None,
    base: dict[str, Any] = CONFIG,
) -> Path:  # fmt: skip
    """Write a random checkpoint of `base` into a folder, with other settings and weights where they are given."""
    path.mkdir(exist_ok=True)
    save_file(drawn(DecoderConfig.from_dict(base)) | (weights or {}), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(base | (config or {})))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: number for number, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return path
