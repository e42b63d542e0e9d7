"""The commands that judge by PLMR: `compare` and `check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.answer import tell
from wafer_triton.cli.app import given, is_reference, made, need, refuse
from wafer_triton.count.verdict import PLMR
from wafer_triton.device import dtype as dtypes
from wafer_triton.errors import ConfigError
from wafer_triton.text.quantity import EMULATED, ENDS
from wafer_triton.text.table import Results, Table

if TYPE_CHECKING:
    from wafer_triton.compare.algorithms import AlgorithmRow
    from wafer_triton.verify.faults import Finding

PRODUCTS = {"gemm": "mkn", "gemv": "kn"}  # with their sizes
REFERENCE = "FILE.py:FUNCTION"
MANY_CORES = 200 * 200  # of a mesh, from which on `check` of a model reports how far it is
UNCOUNTABLE = frozenset(("malformed", "off-mesh", "two-writers", "deadlock"))


def _compare(
    subject: str, /, *beside: str, m: int | None = None, k: int | None = None, n: int | None = None,
    mesh: str | None = None, device: str | None = None, dtype: str | None = None, values: bool | None = None,
    time: float | None = None, algorithm: str | None = None, emulate_on: str | None = None, backend: str | None = None,
    json: bool = False,
) -> int:  # fmt: skip
    from wafer_triton.compare import algorithms
    from wafer_triton.draw.progress import Progress

    if subject not in PRODUCTS and not is_reference(subject):
        raise ConfigError(f"compare {subject}: give {', '.join(PRODUCTS)} or {REFERENCE}")
    timed = given(algorithm=algorithm, emulate_on=emulate_on, backend=backend)
    if subject not in PRODUCTS:
        refuse(
            "only for gemm and gemv; your schedule has its own", m=m, k=k, n=n, mesh=mesh, device=device, dtype=dtype
        )
        refuse("only for gemm and gemv, whose algorithms are timed", time=time, **timed)
        return _compare_own((subject, *beside), values, json)
    if beside:
        raise ConfigError(f"compare {subject} {beside[0]}: give {subject} alone, or {REFERENCE} once or more")
    sizes = sizes_of(subject, mesh, m=m, k=k, n=n)
    options = given(device=device, dtype=dtype)
    if time is not None:
        refuse("beside --time the product is always computed, for its error", values=values is not None)
        return _time(subject, mesh, sizes, options | timed | {"seconds": time}, json)
    refuse("only for --time, which times one algorithm", **timed)
    with Progress(brief=not values) as progress:
        shown = {"values": values, "progress": progress}
        rows = getattr(algorithms, f"compare_{subject}")(mesh, *sizes, **options, **shown)
    return _tell_rows({"mesh": mesh, "device": device or "wse2"}, rows, json)


def sizes_of(product: str, mesh: str | None, **given: int | None) -> tuple[int, ...]:
    """Return m, k and n of a gemm, or k and n of a gemv; ConfigError for one that it lacks or does not have."""
    need(product, **{name: given[name] for name in PRODUCTS[product]}, mesh=mesh)
    refuse(
        "only for gemm; a gemv has one vector", **{name: given[name] for name in given.keys() - set(PRODUCTS[product])}
    )
    return tuple(given[name] or 0 for name in PRODUCTS[product])


def _compare_own(references: Sequence[str], values: bool | None, json: bool) -> int:
    from wafer_triton.cli.own import load
    from wafer_triton.compare import algorithms
    from wafer_triton.draw.progress import Progress

    every = {}
    for reference in references:
        own = load(reference)
        own.demand()
        name = own.function if own.function not in every else reference
        every[name] = own.schedule, own.intent
    with Progress(brief=True) as progress:
        rows = algorithms.compare_own(every, values=values, progress=progress)
    schedule, _ = next(iter(every.values()))
    mesh = schedule.mesh
    return _tell_rows({"schedule": schedule.name, "mesh": str(mesh), "device": mesh.device.name}, rows, json)


def _tell_rows(about: dict[str, Any], rows: Results[AlgorithmRow], json: bool) -> int:
    table, notes = rows.table, [PLMR, ENDS]
    if any(row.error is None for row in rows):
        notes.append("largest error -: values were not computed; --values does, for products")
    return tell(json, about | {"rows": table}, table, *notes)


def _time(subject: str, mesh: Any, sizes: Sequence[Any], options: dict[str, Any], json: bool) -> int:
    """Time a product on a mesh, explicit and elided, beside torch.matmul, on this machine."""
    import torch

    from wafer_triton.compare import library
    from wafer_triton.draw.progress import Progress
    from wafer_triton.ops import described, executor

    with Progress(brief=options["seconds"] <= 1) as progress:
        rows = getattr(library, f"bench_{subject}")(mesh, *sizes, **options, progress=progress)
    on = executor(options.get("backend"), "explicit", options.get("emulate_on", "auto"))
    where = described(on).partition(", exchange")[0]
    m, k, n = (1, *sizes)[-3:]  # a gemv has one vector
    shapes = f"[{m}, {k}] x [{k}, {n}] in {options.get('dtype', 'fp32')}"
    table = Table.of(rows, title=f"{subject} {shapes} on mesh {mesh}, {EMULATED}")
    threads = torch.get_num_threads()
    answer = {"emulated": where, "threads": threads, "torch": torch.__version__, "rows": table}
    note = f"{where}; torch {torch.__version__}, threads of a CPU: {threads}; operands lie on the cores before"
    wafer = "no time of a wafer: `wafer-triton estimate` predicts cycles of the same product"
    return tell(json, answer, table, note, wafer)


compare = made(
    _compare,
    words={
        "beside": (str, "FILE.py:FUNCTION, other schedules of your own for the same operation"),
        "m": (int, "rows of the first matrix, of gemm"),
        "dtype": (str, "of tiles (default: fp16; with --time fp32, of the arithmetic here)"),
    },
)


def _check(
    schedule: str | None = None, /, *, model: str | None = None, mesh: str | None = None, device: str | None = None,
    dtype: str | None = None, context: int | None = None, tokens: int | None = None, head_groups: int | None = None,
    json: bool = False,
) -> int:  # fmt: skip
    if (model is None) == (schedule is None):
        raise ConfigError("give one of them: --model NAME|PATH for a decoder, or FILE.py:FUNCTION for your schedule")
    options = given(mesh=mesh, device=device, dtype=dtype, context=context, tokens=tokens, head_groups=head_groups)
    if schedule is not None:
        refuse("only for --model; a schedule has a mesh, a device and dtypes of its own", **options)
        return _check_own(schedule, json)
    assert model is not None
    return _check_model(model, json, **options)


check = made(
    _check,
    words={
        "mesh": (str, "rows x columns of cores, 48x64, or 64 for 64x64 (default: 16)"),
        "context": (int, "tokens in a sequence's cache (default: 512)"),
        "tokens": (int, "tokens of a prompt, of which prefill is judged as well"),
    },
)


def _check_model(
    model: str, json: bool, *, mesh: str = "16", device: str = "wse2", dtype: str = "fp16", context: int = 512,
    tokens: int | None = None, head_groups: int | None = None,
) -> int:  # fmt: skip
    from wafer_triton.compare.operations import decoder_layer
    from wafer_triton.cost.constants import constants
    from wafer_triton.cost.layers import decode_block
    from wafer_triton.decoder.decode import head_block
    from wafer_triton.device.mesh import as_mesh
    from wafer_triton.draw.progress import Progress
    from wafer_triton.shape.read import shape_of

    on = as_mesh(mesh, device)
    shape = shape_of(model, dtype if dtype in dtypes.STORED else None)
    block = decode_block(shape, on, context, constants(on.device), head_groups=head_groups)
    if (tile := dtypes.tile_dtype(dtype)) != block.dtype:
        block = replace(block, dtype=tile, accumulate="fp32")
    each = 0 if tokens is None else -(-tokens // on.square().shape[0])
    with Progress(brief=on.cores < MANY_CORES) as progress:
        operations = decoder_layer(block, each, head_groups, progress)
    tokens_held = on.rows * block.entries
    title = f"{model} on {on.device.name}: a decoder layer on mesh {on}, {tokens_held:,} tokens in the cache"
    if shape.vocab_size:
        title += f"; embedding and head on mesh {head_block(block).mesh}"
    table = Table.of(operations, title=title)
    answer = {"model": model, "mesh": str(on), "head_groups": block.head_groups, "operations": table}
    return tell(json, answer, table, PLMR, ENDS)


def _check_own(reference: str, json: bool) -> int:
    from wafer_triton.cli.own import load
    from wafer_triton.compare.operations import operations
    from wafer_triton.verify.faults import check

    own = load(reference, drafts=True)
    judged, mesh = check(own.schedule, own.intent), own.schedule.mesh
    subject = f"{own.schedule.name} on mesh {mesh} of {mesh.device.name}"
    texts: list[Table | str] = [f"{subject}: {judged.summary}", *map(str, judged.findings)]
    if not judged.intended:
        texts.append("no intent: the results were not judged; return (Schedule, Intent) for that")
    counted: Table | list[Any] = []
    if judged.names & UNCOUNTABLE:
        texts.append("not counted and not priced, as its rounds cannot be run")
    else:
        counted = Table.of(operations(own.schedule))
        texts += [counted, PLMR, ENDS]
    answer = {
        "schedule": own.schedule.name,
        "mesh": str(mesh),
        "device": mesh.device.name,
        "ok": judged.ok,
        "intended": judged.intended,
        "findings": [_plain(finding) for finding in judged.findings],
        "operations": counted,
    }
    return tell(json, answer, *texts) or int(not judged.ok)


def _plain(finding: Finding) -> dict[str, Any]:
    """Return a finding with its core as a list of plain numbers."""
    import numpy as np

    return vars(finding) | {"core": None if finding.core is None else np.atleast_1d(finding.core).tolist()}
