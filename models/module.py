"""A placed model as an `nn.Module`: parameters have their Hugging Face names and shapes, and are held as tiles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from wafer_triton.errors import CheckpointError, DtypeError
from wafer_triton.models.checkpoint.weights import is_finite, same
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.experts import by_expert
from wafer_triton.models.place.cuts import PlacedWeights, Weights
from wafer_triton.schedule.weights import EMBEDDING


class PlacedModule(nn.Module, ABC):
    """A module whose parameters are put together from their tiles on access."""

    config: DecoderConfig
    weights: PlacedWeights

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Return parameters under their Hugging Face names, as copies of the tiles."""
        start = f"{prefix}." if prefix else ""
        return ((start + name, nn.Parameter(weight, requires_grad=False)) for name, weight in self.weights.items())

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Return all parameters as transformers has them, a tied head under both its names."""
        state = {} if destination is None else destination
        state |= {prefix + name: weight for name, weight in self.weights.items()}
        if self.config.tie_word_embeddings:
            state[f"{prefix}lm_head.weight"] = state[prefix + EMBEDDING]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Place other weights and forget all caches; CheckpointError for names or shapes that are not this model's."""
        if not isinstance(state_dict, Mapping):
            raise CheckpointError(f"state_dict is of type {type(state_dict).__name__}; give names with tensors")
        shapes, state_dict = self.weights.shapes, by_expert(state_dict, self.config)
        given = set(state_dict) - ({"lm_head.weight"} if self.config.tie_word_embeddings else set())
        if odd := sorted(set(shapes) ^ given):
            raise CheckpointError(f"state_dict: {len(odd)} names missing or not this model's: {', '.join(odd[:4])}")
        for name, shape in shapes.items():
            if not isinstance(state_dict[name], Tensor):
                raise CheckpointError(f"state_dict: {name} is of type {type(state_dict[name]).__name__}, not a tensor")
            if tuple(state_dict[name].shape) != shape:
                raise CheckpointError(f"state_dict: {name} has shape {tuple(state_dict[name].shape)}, not {shape}")
            if not is_finite(state_dict[name]):
                raise CheckpointError(f"state_dict: {name} holds NaN or infinity; give the weights of another model")
        head = state_dict.get("lm_head.weight") if self.config.tie_word_embeddings else None
        if head is not None and not same(head, state_dict[EMBEDDING]):
            raise CheckpointError(f"state_dict: lm_head.weight differs from {EMBEDDING}, but this model ties them")
        self._place(state_dict)
        return nn.modules.module._IncompatibleKeys([], [])

    @abstractmethod
    def _place(self, weights: Weights) -> None:
        """Place other weights and forget all caches."""

    def _apply(self, fn: Any, recurse: bool = True) -> PlacedModule:
        raise DtypeError("a placed model stays where it is and as it is; give dtype= and emulate_on= when it is placed")
