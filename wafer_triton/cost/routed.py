"""MoE-CAP's measures of decode at a given routing, with nothing run: what `estimate cap` prints."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wafer_triton.cost import layers
from wafer_triton.cost.bands import layer_basis
from wafer_triton.cost.cap import Cap, Pass, measured
from wafer_triton.cost.constants import constants
from wafer_triton.cost.inference import batch_placed
from wafer_triton.cost.results import Layered
from wafer_triton.device import DeviceLike
from wafer_triton.device import device as find_device
from wafer_triton.errors import ShapeError, check_counts
from wafer_triton.mesh import Mesh, as_mesh
from wafer_triton.place.fitting import fitted
from wafer_triton.schedule.block import Block
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.read import Model, shape_of
from wafer_triton.shape.routing import DRAWN, Trace, drawn, of_experts, read_trace, steps
from wafer_triton.text.quantity import as_in, unit

MOST_BATCH = 1024  # sequences of a step, each of which is priced by itself


@dataclass(frozen=True)
class Routed(Cap):
    """The measures of decode steps of `batch` sequences, by a routing, and what the prediction rests on."""

    batch: int = field(default=1, metadata=unit("tokens"))
    routing: str | None = None
    head_groups: int | None = field(default=None, metadata=as_in(Layered, "head_groups"))
    constants: str | None = None
    error_band: float | None = field(default=None, metadata=as_in(Layered, "error_band"))
    outside: str | None = field(default=None, metadata=as_in(Layered, "outside"))
    as_if: str | None = field(default=None, metadata=as_in(Layered, "as_if"))


def cap(
    *, device: DeviceLike = "wse2", model: Model, mesh: Any, context: int, batch: int = 1,
    routing: str | float | Path = "uniform", as_if: bool = False, head_groups: int | None = None,
    dtype: str | None = None,
) -> Routed:  # fmt: skip
    """Decode steps of `batch` sequences, after which the cache of each holds `context` tokens.

    `routing` is "uniform", a skew (see `routing.drawn`), or a JSON file of a trace, whose tokens go `batch` at a time;
    a dense model has none. How long a step takes does not depend on it. `dtype` is as of `estimate.decode`.
    """
    on, shape = as_mesh(mesh, find_device(device)), shape_of(model, dtype)
    check_counts(context=context, batch=batch)
    if batch > MOST_BATCH:
        raise ShapeError(f"batch = {batch:,} is more than the {MOST_BATCH:,} sequences of a step that are taken here")
    if not isinstance(routing, str | int | float | Path) or isinstance(routing, bool):
        raise ShapeError(f"routing {routing!r}: give uniform, a skew such as 1.2, or a JSON file")
    if shape.experts is None and routing != "uniform":
        of_experts(shape)  # raises

    c = constants(on.device)

    def place(candidate: Mesh, own: DecoderShape = shape) -> Block:
        return batch_placed(candidate, own, context, c, batch, head_groups)

    on, why = fitted(place, on, as_if, shape)
    hits = [] if shape.experts is None else steps(_trace(routing, shape, batch), batch)
    own = place(on)
    whole = layers.total(layers.decode_steps(own, context, c)) * shape.num_hidden_layers
    if shape.vocab_size:
        for end in (layers.embedding_steps(own, batch, c), layers.head_steps(own, batch, c)):
            whole += layers.total(end)
    seconds = whole.cycles / on.device.clock_hz
    passes = [Pass.decode([context] * batch, seconds, each) for each in hits or [[]]]
    measures = measured(shape, own.dtype, find_device(device), passes)
    return Routed(
        **asdict(measures),
        batch=batch,
        routing=str(routing) if hits else None,
        head_groups=own.head_groups,
        as_if=why,
        **layer_basis("decode", on, shape, context, "full").fields(),
    )


def _trace(routing: str | float | Path, shape: DecoderShape, batch: int) -> Trace:
    """Return the trace that a routing stands for."""
    tokens = max(DRAWN, batch)
    if routing == "uniform":
        return drawn(shape, tokens)
    try:
        skew = float(str(routing))
    except ValueError:
        path = Path(routing)  # type: ignore[arg-type]
        if not path.is_file():
            raise ShapeError(f"routing {str(routing)!r}: give uniform, a skew such as 1.2, or a JSON file") from None
        return read_trace(path, shape)
    return drawn(shape, tokens, skew)
