"""A checkpoint: configuration, weights and tokenizer of its folder, each read when it is asked for."""

from __future__ import annotations

from functools import cached_property
from os import PathLike
from typing import Any

import torch

from wafer_triton.models.checkpoint.fetch import resolve
from wafer_triton.models.checkpoint.text import tokenizer_of
from wafer_triton.models.checkpoint.weights import StoredWeights
from wafer_triton.models.config import DecoderConfig


class Checkpoint:
    """The checkpoint in a folder in Hugging Face layout, or one known by name; raises the errors of `resolve`."""

    def __init__(self, name_or_path: str | PathLike[str]) -> None:
        self.folder = resolve(name_or_path)

    @cached_property
    def config(self) -> DecoderConfig:
        """The configuration; raises as `DecoderConfig.from_folder`."""
        return DecoderConfig.from_folder(self.folder)

    def weights(self, dtype: torch.dtype = torch.float32) -> StoredWeights:
        """Return the parameters by name, each read as `dtype` on access; raises as `StoredWeights`."""
        return StoredWeights(self.folder, self.config, dtype)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; CheckpointError without one."""
        return tokenizer_of(self.folder)
