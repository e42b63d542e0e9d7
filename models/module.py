"""A placed model as an `nn.Module`: parameters have their Hugging Face names and shapes, and are held as tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from wafer_triton.decoder.weights import EMBEDDING
from wafer_triton.errors import CheckpointError, DtypeError
from wafer_triton.models.checkpoint.weights import is_finite, same
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.experts import by_expert
from wafer_triton.models.place.cuts import PlacedWeights, Weights


class PlacedParameter(nn.Parameter):
    """A copy of a parameter that is held as tiles; CheckpointError for a change in place, which tiles would lack."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, unless it writes into a parameter."""
        named = kwargs or {}
        first = next(iter((*args, *named.values())), None) if _is_write(func) else named.get("out")
        if any(isinstance(operand, cls) for operand in (first if isinstance(first, list | tuple) else [first])):
            raise CheckpointError(  # no TypeError, in place of which Python computes p * 2 for p *= 2
                f"{func.__name__} writes into a parameter of a placed model, which is a copy of its tiles; change "
                f"state_dict() and give it to load_state_dict"
            )
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **named)
        return result.as_subclass(cls) if func in (Tensor.detach, _DATA.__get__) else result

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a plain parameter."""
        return nn.Parameter, (self.clone(), False)


_DATA: Any = Tensor.data


def _is_write(func: Callable[..., Any]) -> bool:
    """Return whether a function of torch writes into its first argument, by its name."""
    name = func.__name__
    if name.startswith("__"):
        return name == "__setitem__" or func == _DATA.__set__ or (name.startswith("__i") and name[3:-2] in _OPERATORS)
    return name.endswith("_") and name != "requires_grad_"


_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")


class PlacedModule(nn.Module):
    """A module whose parameters are put together from their tiles on access."""

    config: DecoderConfig
    weights: PlacedWeights
    _place: Callable[[Weights], None]  # which places other weights and forgets all caches

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Return parameters under their Hugging Face names, as copies of the tiles; see `PlacedParameter`."""
        start = f"{prefix}." if prefix else ""
        return ((start + name, PlacedParameter(weight, requires_grad=False)) for name, weight in self.weights.items())

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Return all parameters as transformers has them, a tied head under both its names."""
        state = {} if destination is None else destination
        state |= {prefix + name: weight for name, weight in self.weights.items()}
        if self.config.tie_word_embeddings:
            state[f"{prefix}lm_head.weight"] = state[prefix + EMBEDDING]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Place other weights and forget all caches; CheckpointError for names or shapes that are not this model's.

        Unless `strict`, parameters that are not given stay, and others' names are returned as unexpected. `assign` has
        no effect, since weights are copied into tiles.
        """
        shapes, state_dict = self.weights.shapes, by_expert(state_dict, self.config)
        given = set(state_dict) - ({"lm_head.weight"} if self.config.tie_word_embeddings else set())
        missing, unexpected = sorted(set(shapes) - given), sorted(given - set(shapes))
        if strict and (odd := sorted(missing + unexpected)):
            raise CheckpointError(f"state_dict: {len(odd)} names missing or not this model's: {', '.join(odd[:4])}")
        if missing:
            state_dict = {**state_dict, **{name: self.weights[name] for name in missing}}
        for name, shape in shapes.items():
            if tuple(state_dict[name].shape) != shape:
                raise CheckpointError(f"state_dict: {name} has shape {tuple(state_dict[name].shape)}, not {shape}")
            if not is_finite(state_dict[name]):
                raise CheckpointError(f"state_dict: {name} holds NaN or infinity; give the weights of another model")
        head = state_dict.get("lm_head.weight") if self.config.tie_word_embeddings else None
        if head is not None and not same(head, state_dict[EMBEDDING]):
            raise CheckpointError(f"state_dict: lm_head.weight differs from {EMBEDDING}, but this model ties them")
        self._place(state_dict)
        return nn.modules.module._IncompatibleKeys(missing, unexpected)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse copies and pickles: programs hold addresses of the memory that they run on."""
        raise CheckpointError(
            "a placed model is neither copied nor pickled; make another by from_pretrained, or of its parameters by "
            "from_weights(model.config, model.state_dict(), ...)"
        )

    def _apply(self, fn: Any, recurse: bool = True) -> PlacedModule:
        raise DtypeError("a placed model stays where it is and as it is; give dtype= and emulate_on= when it is placed")
