"""A decoder on a virtual wafer: prefill by MeshGEMM and GEMM-T, decode by MeshGEMV, an even KV cache.

Every matrix product runs on a mesh, and so does the lookup of embeddings. In decode the activation moves from region
to region as it lies, tile by tile. Between the phases weights and cache are re-placed. `account` counts
both moves, `predicted` prices both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import Any, overload

import torch
from typing_extensions import Unpack

from wafer_triton.device.dtype import BYTES, STORED, DtypeLike, storage_name, tile_dtype, torch_dtype
from wafer_triton.device.modes import untraced
from wafer_triton.models.checkpoint.checkpoint import Checkpoint
from wafer_triton.models.checkpoint.weights import complete
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.generate import Prompt, SamplingOptions, TokenStream, each_forward, stream, token_rows
from wafer_triton.models.options import PlaceOptions, RunOptions, split
from wafer_triton.models.place.choice import place
from wafer_triton.models.place.cuts import PlacedWeights, Weights
from wafer_triton.models.place.moves import Phases
from wafer_triton.models.random import RandomWeights, config_of
from wafer_triton.models.run.decode import Decode
from wafer_triton.models.run.head import Embedding, Head
from wafer_triton.models.run.pipeline import PipelineStage
from wafer_triton.models.run.prefill import PrefillRun
from wafer_triton.models.run.session import Session
from wafer_triton.ops import described
from wafer_triton.place.need import decode_need
from wafer_triton.place.regions import Region
from wafer_triton.text.progress import Progress, silent

PLACED, RUN = PlaceOptions(), RunOptions()


class WaferForCausalLM(Session):
    """A decoder whose matrix products run on a mesh of virtual cores; parameters have their Hugging Face names.

    `placement` are the cores that hold it, `run` the options of its runs; the class methods take both kinds by name.
    `passes` iterates over the forward passes since `reset`: predicted seconds, and the tokens that each expert got.

    Raises BackendError for a missing torch device, SramError or MeshError if the model does not fit the mesh or the
    device. Raises MeshError for head groups that do not fit the model, ShapeError for a size below 1, and
    CheckpointError for a missing weight.
    """

    def __init__(
        self, config: DecoderConfig, weights: Weights, placement: PlaceOptions = PLACED, run: RunOptions = RUN
    ) -> None:
        super().__init__()
        self.running = RLock()
        stored = storage_name(placement.dtype)
        if stored in STORED:
            config = replace(config, weights=stored)
        weights, chosen, dtype = complete(weights, config), run.chosen(), tile_dtype(stored)
        self.placement = place(config, replace(placement, dtype=dtype), run.progress)
        if run.placed is not None:
            run.placed(self.placement)
        self.config, self.max_length, self.batch = config, placement.max_length, placement.batch
        own = decode_need(self.placement.head, "head").workspace
        self.pipeline = here = PipelineStage.of_this_rank(
            config, chosen, dtype, self.batch * self.max_length,
            sum(own.values()) * self.placement.head.mesh.cores // BYTES[dtype],
        )  # fmt: skip
        self.executor = here.executor
        self.block = block = self.placement.decode
        here.agree(dtype=stored, mesh=str(block.mesh), max_length=self.max_length, batch=self.batch)
        here.agree_on_weights(weights)
        self.head = Head(self.placement.head, self.executor, weights if here.has_head else None)
        self.embedding = Embedding(self.head, weights if here.has_embedding else None)
        self.layers = Decode(
            block, self.executor, weights, run.progress, self.head if here.has_head else None,
            self.embedding if here.has_embedding and here.number == 0 else None, here.layers,
        )  # fmt: skip
        layers = zip(here.layers, self.layers.layers, strict=True)
        self.weights = PlacedWeights(
            block, {number: layer.tiles for number, layer in layers},
            self.placement.head, self.head.tiles, self.embedding.tiles, self.executor.all_gather,
        )  # fmt: skip
        self.phases = Phases(self.placement, self.weights, self.executor)
        self._prefill = PrefillRun(self.placement.prefill, self.executor, self.phases.fill, here.layers)
        self.reset()

    @classmethod
    def from_pretrained(
        cls, checkpoint: str | PathLike[str] | Checkpoint, *, dtype: DtypeLike = "fp32", **options: Any
    ) -> WaferForCausalLM:
        """Make a model from an open checkpoint, a folder in Hugging Face layout, or a name (see `resolve`).

        `options` are the fields of `PlaceOptions` and `RunOptions` of `wafer_triton.models.options`, such as `mesh`,
        `device`, `max_length`, `batch` and `emulate_on`; TypeError for any other.
        """
        opened, name = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint), storage_name(dtype)
        weights = opened.weights(torch_dtype(name))
        model = cls.from_weights(opened.config, weights, dtype=name, **options)
        model.checkpoint = opened
        return model

    @classmethod
    def from_config(
        cls, config: Any, *, dtype: DtypeLike = "fp32", random_weights: bool = True, seed: int = 0, **options: Any
    ) -> WaferForCausalLM:
        """Make a model of a shape alone, by name, folder, table of a config.json or DecoderConfig; zeros unless random.

        `options` are as in `from_pretrained`.
        """
        shape, name = config_of(config), storage_name(dtype)
        weights = RandomWeights(shape, torch_dtype(name), seed if random_weights else None)
        return cls.from_weights(shape, weights, dtype=name, **options)

    @classmethod
    def from_weights(cls, config: DecoderConfig, weights: Weights, **options: Any) -> WaferForCausalLM:
        """Make a model of weights by their Hugging Face names; `options` are as in `from_pretrained`."""
        return cls(config, weights, *split(options))

    def extra_repr(self) -> str:
        """Return the model's name, its mesh, and the device and exchange of the emulation."""
        return f"{self.config.name} on {self.block.mesh} cores, emulated {described(self.executor)}"

    checkpoint: Checkpoint | None = None

    @property
    def folder(self) -> Path | None:
        """The folder of the model's checkpoint, or None."""
        return None if self.checkpoint is None else self.checkpoint.folder

    @property
    def regions(self) -> list[Region]:
        """The regions that hold the blocks for decode."""
        return list(self.placement.regions)

    def forward(self, input_ids: torch.Tensor, progress: Progress = silent) -> torch.Tensor:
        """Return logits [batch, length, vocab] of input_ids [batch, length], by prefill without a cache."""
        if torch.compiler.is_dynamo_compiling():
            return untraced(self.forward, input_ids, progress)
        return torch.stack(list(each_forward(self, token_rows(input_ids), progress)))

    @overload
    def generate(
        self, tokens: Prompt, max_new_tokens: int, progress: Progress = ..., **options: Unpack[SamplingOptions]
    ) -> TokenStream[int]: ...

    @overload
    def generate(
        self, tokens: Sequence[Prompt], max_new_tokens: int, progress: Progress = ...,
        **options: Unpack[SamplingOptions],
    ) -> TokenStream[list[int | None]]: ...  # fmt: skip

    def generate(
        self, tokens: Any, max_new_tokens: Any, progress: Progress = silent, **options: Unpack[SamplingOptions]
    ) -> Any:
        """Return a stream of the token ids after a prompt of ids, greedy unless `options` say otherwise.

        With a list of `batch` prompts each step has a token of each, None once its sequence ended. `options` are those
        of `Sampling`, and `stop`, ids that end a sequence, see `TokenStream` in `wafer_triton.models.generate`. Raises
        CacheError at once if a prompt and its new tokens do not fit the cache.
        """
        return stream(self, tokens, max_new_tokens, progress, **options)

    def _place(self, weights: Weights) -> None:
        self.layers.place(weights)
        if self.pipeline.has_head:
            self.head.place(weights)
        if self.pipeline.has_embedding:
            self.embedding.place(weights)
        self.phases.forget()
        self._prefill.forget()
        dropped = any(self.counts)
        self.reset()
        self._dropped = dropped
