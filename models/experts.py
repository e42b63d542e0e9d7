"""The parameters of experts under Hugging Face's names, one set an expert, as published checkpoints have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from wafer_triton.errors import CheckpointError
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.moe import names_of


@dataclass(frozen=True)
class Source:
    """The source of a parameter: a stored tensor, or an expert's rows of a tensor with all experts."""

    name: str
    expert: int | None = None
    rows: tuple[int | None, int | None] = (None, None)

    def of(self, stored: Tensor) -> Tensor:
        """Return the parameter in the stored tensor."""
        return stored if self.expert is None else stored[self.expert, slice(*self.rows)]


def sources(stored: Iterable[str], config: DecoderShape) -> dict[str, Source]:
    """Return the source of each parameter among tensors of these names, by its published name.

    Transformers 5 keeps the experts of a layer together in memory: `mlp.experts.gate_up_proj` [experts, 2 expert width,
    width], gates first, and `mlp.experts.down_proj` [experts, width, expert width]. Other parameters keep their names.
    """
    e, names = config.experts, names_of(config)
    if e is None:
        return {name: Source(name) for name in stored}
    found = {}
    for name in stored:
        layer, is_whole, part = name.partition(".mlp.experts.")
        if is_whole and part in WHOLE:
            for number in range(e.count):
                every = [f"{layer}.{weight}" for weight in names.expert(number)]
                if part == "down_proj":
                    found[every[2]] = Source(name, number)
                else:
                    found[every[0]] = Source(name, number, (None, e.width))
                    found[every[1]] = Source(name, number, (e.width, None))
        else:
            found[name.replace(".mlp.gate.", f".{names.block}gate.")] = Source(name)
    return found


WHOLE = ("gate_up_proj", "down_proj")  # parts of all experts of a layer in one tensor


def stored_shape(source: Source, config: DecoderShape) -> tuple[int, ...]:
    """Return the shape of the tensor that holds a parameter of an expert."""
    e = config.experts
    assert e is not None, "a tensor of experts is of a model that has some"
    up = source.name.endswith("gate_up_proj")
    return (e.count, 2 * e.width, config.hidden_size) if up else (e.count, config.hidden_size, e.width)


class ByExpert(Mapping[str, Tensor]):
    """Weights of either layout by their published names.

    Raises CheckpointError for a tensor of all experts with another shape than `config` gives.
    """

    def __init__(self, weights: Mapping[str, Tensor], config: DecoderShape) -> None:
        self.weights, self.sources = weights, sources(weights, config)
        for source in self.sources.values():
            if source.expert == 0:
                held, wanted = tuple(weights[source.name].shape), stored_shape(source, config)
                if held != wanted:
                    raise CheckpointError(f"{source.name} has shape {held}, not {wanted}: all experts of a layer")

    def __getitem__(self, name: str) -> Tensor:
        source = self.sources[name]
        return source.of(self.weights[source.name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)


def by_expert(weights: Mapping[str, Tensor], config: DecoderShape) -> Mapping[str, Tensor]:
    """Return weights of either layout by their published names, themselves if they have these already."""
    together = config.experts is not None and any(name.rpartition(".")[2] in WHOLE for name in weights)
    return ByExpert(weights, config) if together else weights
