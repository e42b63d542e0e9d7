"""MoE-CAP's measures of sparse models (arXiv 2412.07067): bandwidth and operations of the experts in use.

The weights of layers count: attention with its norms and biases, routers, experts, dense feed-forward blocks. The
embedding and the head do not. S-MBU counts the bytes of the experts that at least one token of a pass took, MBU of all
experts; both with the keys and values of the caches. S-MFU counts the operations of the experts that each token took,
MFU of all experts. Peaks are the whole device's: cores times SRAM bytes, or multiply-adds, a cycle. Seconds are
predicted on the wafer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wafer_triton.cost.bands import SEVERAL, layer_basis
from wafer_triton.cost.constants import constants
from wafer_triton.cost.inference import batch_placed, between_regions, ends
from wafer_triton.cost.layers import decode_blocks, decode_steps, total
from wafer_triton.cost.results import Layered
from wafer_triton.device import Device, DeviceLike
from wafer_triton.device import device as find_device
from wafer_triton.device.dtype import BYTES, DtypeLike
from wafer_triton.device.mesh import as_mesh
from wafer_triton.errors import ShapeError, check_counts, shown
from wafer_triton.place.regions import decode_regions
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.read import Model, shape_of
from wafer_triton.shape.routing import DRAWN, Trace, drawn, of_experts, read_trace, steps
from wafer_triton.text.quantity import unit
from wafer_triton.text.table import Result

MOST_BATCH = 1024  # sequences of a step; each is priced alone
Hits = Mapping[int, int]  # by expert, the tokens that took it; experts without a token are left out


@dataclass(frozen=True)
class Pass:
    """A forward pass of `batch` sequences with `tokens` new tokens, after which their caches hold `kv_tokens`.

    `mode` is "prefill" or "decode", and `pairs` is the number of query-key pairs of a head. `seconds` is time on the
    wafer. `experts` has, for each layer with experts, the tokens that took each one. If experts live in regions,
    `region_passes` is the number of passes that took rows of tokens to them, over all layers and chunks.
    `overflow_rows` is the number of rows that did not fit in the first pass.
    """

    mode: str
    batch: int
    tokens: int
    kv_tokens: int
    pairs: int
    seconds: float
    experts: tuple[Hits, ...] = ()
    region_passes: int | None = None
    overflow_rows: int | None = None

    @classmethod
    def decode(cls, contexts: Sequence[int], seconds: float, experts: Sequence[Hits] = ()) -> Pass:
        """Return one token of each sequence, whose cache then holds `contexts` tokens."""
        count = len(contexts)
        return cls("decode", count, count, sum(contexts), sum(contexts), seconds, tuple(experts))

    @classmethod
    def prefill(cls, tokens: int, seconds: float, experts: Sequence[Hits] = ()) -> Pass:
        """Return a prompt of `tokens`, each of which attends to itself and the tokens before it."""
        return cls("prefill", 1, tokens, tokens, tokens * (tokens + 1) // 2, seconds, tuple(experts))

    @property
    def distinct(self) -> tuple[int, ...]:
        """Distinct experts of each layer that has some."""
        return tuple(map(len, self.experts))

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values; experts that no token took are left out."""
        experts = [{str(number): hits for number, hits in sorted(layer.items())} for layer in self.experts]
        own = {name: getattr(self, name) for name in ("mode", "batch", "tokens", "kv_tokens", "seconds")}
        if self.region_passes is not None:
            own |= {"region_passes": self.region_passes, "overflow_rows": self.overflow_rows}
        return own | {"distinct_experts": list(self.distinct), "tokens_per_expert": experts}


@dataclass(frozen=True, repr=False)
class Cap(Result):
    """The measures of some passes; bytes are of all of them, `distinct_experts` the mean over passes and layers."""

    main = ("tokens_per_second", "seconds_per_pass", "distinct_experts", "s_mbu", "s_mfu")
    units_of = (Layered,)

    passes: int = field(metadata=unit("steps"))
    tokens: int = field(metadata=unit("tokens"))
    seconds: float
    tokens_per_second: float
    seconds_per_pass: float = field(metadata=unit("s", "time of a pass"))  # in decode the time per output token (TPOT)
    activated_bytes: int = field(metadata=unit("B", "weights in use, all passes"))
    kv_bytes: int = field(metadata=unit("B", "keys and values, all passes"))
    # None of a dense model
    distinct_experts: float | None = field(metadata=unit("experts", "distinct experts a layer"))
    # the mean over experts with a token
    tokens_per_expert: float | None = field(metadata=unit("tokens", "tokens of an expert that is hit"))
    most_tokens_per_expert: int | None = field(metadata=unit("tokens", "most tokens of an expert"))
    s_mbu: float = field(metadata=unit("%", "S-MBU"))
    mbu: float = field(metadata=unit("%", "MBU"))
    s_mfu: float = field(metadata=unit("%", "S-MFU"))
    mfu: float = field(metadata=unit("%", "MFU"))


def weight_bytes(shape: DecoderShape, dtype: str, experts: Sequence[Hits] | None = None) -> int:
    """Return bytes of the weights of all layers; given `experts`, only experts with a token count."""
    numbers, layers = shape.weights_of, shape.layers_of
    held, stored = sum(numbers[kind] * count for kind, count in layers.items()), shape.matrices
    e = shape.experts
    if e is not None:
        stored -= shape.hidden_size * e.logits * layers["experts"]  # routers stay in the dtype of tiles
    if e is not None and experts is not None:
        resting = (layers["experts"] * e.count - sum(map(len, experts))) * 3 * shape.hidden_size * e.width
        held, stored = held - resting, stored - resting
    return (held - stored) * BYTES[dtype] + stored * BYTES[shape.weights or dtype]


def kv_bytes(shape: DecoderShape, dtype: str, tokens: int) -> int:
    """Return bytes of the keys and values of `tokens` in all layers."""
    return 2 * shape.kv_width * shape.num_hidden_layers * tokens * BYTES[dtype]


def operations(shape: DecoderShape, tokens: int, pairs: int, every: bool = False) -> int:
    """Return operations (two a multiply-add) of tokens in all layers, with the experts they take or `every` one."""
    through = sum(number * shape.layers_of[kind] for kind, number in shape.decode_macs(0, every).items())
    return 2 * (tokens * through + 2 * shape.q_width * shape.num_hidden_layers * pairs)


def peaks(device: Device, dtype: str) -> tuple[float, float]:
    """Return bytes and operations a second of all cores of a device."""
    c = constants(device)
    cycles = device.cores * device.clock_hz
    return cycles * c.sram_bytes_per_cycle, 2 * cycles * device.macs_per_cycle(dtype)


def measured(shape: DecoderShape, dtype: str, device: Device, passes: Sequence[Pass]) -> Cap:
    """Return the measures of some passes: bytes and operations over seconds, each summed (MoE-CAP, equation 6).

    Raises ShapeError without a pass.
    """
    if not passes:
        raise ShapeError(f"{shape.name}: no forward pass to measure; give at least one")
    tokens, seconds = sum(each.tokens for each in passes), sum(each.seconds for each in passes)
    activated = sum(weight_bytes(shape, dtype, each.experts) for each in passes)
    cached = sum(kv_bytes(shape, dtype, each.kv_tokens) for each in passes)
    whole = weight_bytes(shape, dtype) * len(passes)
    own, every = (sum(operations(shape, each.tokens, each.pairs, every) for each in passes) for every in (False, True))
    layers = [layer for each in passes for layer in each.experts]
    hits = sum(map(len, layers))
    bandwidth, rate = peaks(device, dtype)
    return Cap(
        passes=len(passes),
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        seconds_per_pass=seconds / len(passes),
        activated_bytes=activated,
        kv_bytes=cached,
        distinct_experts=hits / len(layers) if layers else None,
        tokens_per_expert=sum(sum(layer.values()) for layer in layers) / hits if layers else None,
        most_tokens_per_expert=max(max(layer.values()) for layer in layers) if layers else None,
        s_mbu=(activated + cached) / seconds / bandwidth,
        mbu=(whole + cached) / seconds / bandwidth,
        s_mfu=own / seconds / rate,
        mfu=every / seconds / rate,
    )


def sparse(shape: DecoderShape, device: Device, seconds: float, context: int) -> tuple[float | None, float | None]:
    """Return S-MBU of decode steps of one sequence, and the highest possible one with experts in regions.

    A token then takes k of E regions. Both are None for a dense model.
    """
    if shape.experts is None:
        return None, None
    taken = dict.fromkeys(range(shape.experts.top_k), 1)
    step = Pass.decode([context], seconds, [taken] * shape.layers_of["experts"])
    return measured(shape, "fp16", device, [step]).s_mbu, shape.experts.top_k / shape.experts.count


@dataclass(frozen=True, repr=False)
class Routed(Cap):
    """The measures of decode steps of `batch` sequences by a routing, and the basis of the prediction."""

    batch: int = field(default=1, metadata=unit("sequences"))
    routing: str | None = None
    head_groups: int | None = None
    constants: str | None = None
    error_band: float | None = None
    outside: str | None = None


def cap(
    *, device: DeviceLike = "wse2", model: Model, mesh: Any, context: int, batch: int = 1,
    routing: str | float | Path = "uniform", head_groups: int | None = None,
    dtype: DtypeLike | None = None,
) -> Routed:  # fmt: skip
    """Return the measures of decode steps of `batch` sequences, after which each cache holds `context` tokens.

    `routing` is "uniform", a skew (see `routing.drawn`), or a JSON file of a trace, whose tokens are taken `batch` at a
    time; a dense model has none. The time of a step does not depend on it. `dtype` is as in `estimate.decode`.
    """
    on, shape = as_mesh(mesh, find_device(device)), shape_of(model, dtype)
    context, batch = check_counts(context=context, batch=batch)
    if batch > MOST_BATCH:
        raise ShapeError(f"batch = {batch:,} is more than the {MOST_BATCH:,} sequences of a step that are taken here")
    if not isinstance(routing, str | int | float | Path) or isinstance(routing, bool):
        raise ShapeError(f"routing {shown(routing)}: give uniform, a skew such as 1.2, or a JSON file")
    if shape.experts is None and routing != "uniform":
        of_experts(shape)  # raises

    c = constants(on.device)
    own = batch_placed(decode_blocks(shape, on, context, c, head_groups=head_groups), batch)
    hits = [] if shape.experts is None else steps(_trace(routing, shape, batch), batch)
    whole = total(decode_steps(own, context, c)) * shape.num_hidden_layers
    for end in ends(own, batch, c, batch):
        whole += total(end)
    whole += between_regions(own, decode_regions(own), c)
    seconds = whole.cycles / on.device.clock_hz
    passes = [Pass.decode([context] * batch, seconds, each) for each in hits or [[]]]
    measures = measured(shape, own.dtype, on.device, passes)
    return Routed(
        **asdict(measures),
        batch=batch,
        routing=str(routing) if hits else None,
        head_groups=own.head_groups,
        **layer_basis("decode", on, shape, context, "full", SEVERAL * (batch > 1)).fields(),
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
            if path.suffix.lower() == ".json":
                raise ShapeError(
                    f"routing {path}: there is no such file; `generate --routing-out` writes one"
                ) from None
            raise ShapeError(f"routing {str(routing)!r}: give uniform, a skew such as 1.2, or a JSON file") from None
        return read_trace(path, shape)
    return drawn(shape, tokens, skew)
