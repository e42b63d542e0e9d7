"""A configuration by name, path or table, and weights that are drawn, not trained."""

from __future__ import annotations

import zlib
from typing import Any

import torch

from wafer_triton.models.checkpoint.weights import NamedWeights
from wafer_triton.models.config import DecoderConfig
from wafer_triton.place.need import param_shapes
from wafer_triton.shape.read import located, settings_of, table_of


def config_of(given: Any) -> DecoderConfig:
    """Return a configuration from itself, one of transformers, a config.json, its table or folder, a name in `MODELS`.

    Raises ConfigError otherwise.
    """
    if isinstance(given, DecoderConfig):
        return given
    if table_of(given) is None and (path := located(given)) is not None:
        return DecoderConfig.from_file(path)
    name, _, values = settings_of(given)
    return DecoderConfig.from_dict(values, name=name)


_DRAWN = 2**22  # numbers drawn at once, in fp32, so that a table of 16-bit numbers is never held in 32 bits


class RandomWeights(NamedWeights):
    """Parameters of a configuration, each drawn on access: ones for norms, else normal(0, 0.02).

    The same seed gives the same weights in any order of access; without a seed all but the norms are zeros.
    """

    def __init__(self, config: DecoderConfig, dtype: torch.dtype = torch.float32, seed: int | None = 0) -> None:
        self.shapes, self.dtype, self.seed = param_shapes(config), dtype, seed

    def __getitem__(self, name: str) -> torch.Tensor:
        shape = self.shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=self.dtype, device="cpu")
        if self.seed is None:
            return torch.zeros(shape, dtype=self.dtype, device="cpu")
        source = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        weight = torch.empty(shape, dtype=self.dtype, device="cpu")
        for part in weight.view(-1).split(_DRAWN):
            part.copy_(torch.randn(len(part), generator=source, device="cpu").mul_(0.02))
        return weight
