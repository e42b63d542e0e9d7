"""Models known by name as shapes, each from its own config.json, and weights that are drawn, not trained."""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from wafer_triton.errors import ConfigError
from wafer_triton.models.config import DecoderConfig, param_shapes

_KEYS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings",
)  # fmt: skip
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3 |= {"original_max_position_embeddings": 8192}
_ROWS: dict[str, tuple[Any, ...]] = {
    "smollm2-135m": ("llama", 576, 1536, 30, 9, 3, 64, 49152, 8192, 1e-5, 100000.0, True),
    "llama2-7b": ("llama", 4096, 11008, 32, 32, 32, 128, 32000, 4096, 1e-5, 10000.0, False),
    "codellama-7b": ("llama", 4096, 11008, 32, 32, 32, 128, 32016, 16384, 1e-5, 1000000.0, False),
    "llama3-8b": ("llama", 4096, 14336, 32, 32, 8, 128, 128256, 8192, 1e-5, 500000.0, False),
    "llama3.1-8b": ("llama", 4096, 14336, 32, 32, 8, 128, 128256, 131072, 1e-5, 500000.0, False),
    "llama3.2-1b": ("llama", 2048, 8192, 16, 32, 8, 64, 128256, 131072, 1e-5, 500000.0, True),
    "mistral-7b": ("mistral", 4096, 14336, 32, 32, 8, 128, 32768, 32768, 1e-5, 1000000.0, False),
    "qwen2.5-0.5b": ("qwen2", 896, 4864, 24, 14, 2, 64, 151936, 32768, 1e-6, 1000000.0, True),
    "qwen2.5-7b": ("qwen2", 3584, 18944, 28, 28, 4, 128, 152064, 131072, 1e-6, 1000000.0, False),
    "qwen3-0.6b": ("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, 40960, 1e-6, 1000000.0, True),
    "qwen3-8b": ("qwen3", 4096, 12288, 36, 32, 8, 128, 151936, 40960, 1e-6, 1000000.0, False),
}
SHAPES: dict[str, dict[str, Any]] = {
    name: dict(zip(_KEYS, row, strict=True)) | ({"sliding_window": None} if row[0] == "mistral" else {})
    for name, row in _ROWS.items()
}
SHAPES["llama3.1-8b"]["rope_scaling"] = _LLAMA3
SHAPES["llama3.2-1b"]["rope_scaling"] = _LLAMA3 | {"factor": 32.0}


def config_of(given: Any) -> DecoderConfig:
    """A configuration from itself, a table of a config.json, a folder, or a name in `SHAPES`; ConfigError otherwise."""
    if isinstance(given, DecoderConfig):
        return given
    if isinstance(given, Mapping):
        return DecoderConfig.from_dict(given)
    if given in SHAPES:
        return DecoderConfig.from_dict(SHAPES[given], name=given)
    if Path(given).is_dir():
        return DecoderConfig.from_folder(given)
    near = difflib.get_close_matches(str(given), SHAPES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known shapes: {', '.join(SHAPES)}"
    raise ConfigError(f"{given}: neither a folder nor a known shape; {hint}")


_DRAWN = 2**22  # numbers drawn at once, in fp32, so that a table of 16-bit numbers is never held in 32 bits


class RandomWeights(Mapping[str, torch.Tensor]):
    """Parameters of a configuration, each drawn when it is asked for: ones for norms, else normal(0, 0.02).

    The same seed gives the same weights, whatever the order; without a seed all but the norms are zeros.
    """

    def __init__(self, config: DecoderConfig, dtype: torch.dtype = torch.float32, seed: int | None = 0) -> None:
        self.shapes, self.dtype, self.seed = param_shapes(config), dtype, seed

    def __getitem__(self, name: str) -> torch.Tensor:
        shape = self.shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=self.dtype)
        if self.seed is None:
            return torch.zeros(shape, dtype=self.dtype)
        source = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        weight = torch.empty(shape, dtype=self.dtype)
        for part in weight.view(-1).split(_DRAWN):
            part.copy_(torch.randn(len(part), generator=source).mul_(0.02))
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)
