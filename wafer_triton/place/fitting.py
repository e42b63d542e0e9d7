"""Remedies for a model that does not fit a device: a mesh that holds it, other changes, a larger device for prices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from math import gcd
from time import process_time
from typing import Any, TypeVar

from wafer_triton.device.dtype import STORED
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import MeshError, SramError, WaferError
from wafer_triton.place.layouts import endless
from wafer_triton.place.regions import FullError, LargeError
from wafer_triton.schedule import sram
from wafer_triton.shape.decoder import DecoderShape

T = TypeVar("T")
Way = tuple[Callable[..., Any], Mesh]  # a function that places a model, or one of its phases, and the mesh for it
AS_IF = "as_if=True (--as-if) prices it all the same"
MOST_SRAM = 2**22  # bytes of a core up to which a remedy is sought
_TRIED = 24  # meshes that are tried if a device is too small for one
_HINTED = ContextVar("hinted", default=True)


@contextmanager
def without_hints() -> Iterator[None]:
    """Switch off the search for a mesh that fits, within a `with` block: a sweep tries many meshes anyway."""
    token = _HINTED.set(False)
    try:
        yield
    finally:
        _HINTED.reset(token)


def fitted(
    place: Callable[..., Any], mesh: Mesh, as_if: bool | None, shape: DecoderShape | None = None
) -> tuple[Mesh, str | None]:
    """Return the mesh to place a model on, and the reason if the model does not fit, else None.

    A model that does not fit is refused with a mesh that would hold it. With `as_if` it gets a device of more cores,
    or, if a core does not hold a block, of more SRAM; `as_if` None leaves this choice out of the error. `place` raises
    SramError or FullError for a mesh that does not hold the model. With a `shape`, `place` takes a shape after the
    mesh. The refusal then names changes of model and device that make it fit, see `remedies`.
    """
    try:
        place(mesh)
        return mesh, None
    except (SramError, FullError) as error:
        if as_if:
            return as_if_held(place, mesh)[0][0], str(error)
        raise refusal(error, place, mesh, shape, offer=as_if is not None) from None


def refusal(
    reason: SramError | FullError, place: Callable[..., Any], mesh: Mesh, shape: DecoderShape | None = None,
    offer: bool = True,
) -> SramError | FullError:  # fmt: skip
    """Return the error of a model that does not fit: the reason, a mesh that holds it, and `remedies`, as in `fitted`.

    `offer` adds that it can be priced all the same.
    """
    if not _HINTED.get():
        return reason
    with sram.one_search():
        try:
            said = with_hint(place, mesh, reason)
        except MeshError:  # other meshes are refused for their sides, as by regions of experts: no hint
            said = str(reason)
        more = "" if shape is None else remedies(place, mesh, shape)
    return type(reason)(said + more + f"; {AS_IF}" * offer)


def failing(ways: Iterable[Way]) -> Way | None:
    """Return the first way of placing, with its mesh, that does not fit; None if each fits alone."""
    for place, mesh in ways:
        try:
            place(mesh)
        except (SramError, FullError):
            return place, mesh
    return None


def remedies(place: Callable[[Mesh, DecoderShape], Any], mesh: Mesh, shape: DecoderShape) -> str:
    """Return the end of a refusal: fewer layers a device, more devices, weights of a byte, and the least SRAM.

    Each is tried by placing the model, so each named change does make it fit. The search ends after some CPU
    seconds (`sram.HINT_SECONDS`) with the remedies up to then. Every device of several holds the embedding and the
    head; time between devices is not modelled.
    """
    end = sram.deadline()

    def fits(own: DecoderShape, sram_bytes: int = mesh.device.sram_bytes) -> bool:
        if process_time() > end:
            raise _LateError
        try:
            place(replace(mesh, device=replace(mesh.device, sram_bytes=sram_bytes)), own)
        except WaferError:
            return False
        return True

    every, byte = shape.num_hidden_layers, replace(shape, weights=STORED[0])
    found: list[str] = []
    with suppress(_LateError):
        if kept := _most(lambda count: fits(replace(shape, num_hidden_layers=count)), every - 1):
            found.append(_split(kept, every))
        if shape.weights not in STORED:
            if fits(byte):
                found.append(f"{' or '.join(STORED)} weights")
            elif (fewer := _most(lambda count: fits(replace(byte, num_hidden_layers=count)), every - 1)) > kept:
                found.append(f"{' or '.join(STORED)} weights and {_split(fewer, every)}")
        if size := _least_sram(partial(fits, shape), mesh.device.sram_bytes):
            found.append(f"{size:,} KiB of SRAM a core")
    return f"; it would fit with {', or with '.join(found)}" if found else ""


class _LateError(Exception):
    """The end of a search for remedies that takes too long."""


def _split(kept: int, every: int) -> str:
    return f"{kept:,} of its {every:,} layers a device, so on {-(-every // kept):,} such devices"


def _most(holds: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to `most` that holds; every smaller one must hold, too; 0 if none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _least_sram(fits: Callable[[int], bool], size: int) -> int | None:
    """Return the least SRAM of a core above `size`, in whole KiB, that fits; None above `MOST_SRAM`, in bytes."""
    low = high = max(1, size // 1024)
    while not fits(1024 * high):
        low, high = high, 2 * high
        if 1024 * high > MOST_SRAM:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(1024 * middle) else (middle, high)
    return high


def as_if_held(place: Callable[..., T], *meshes: Mesh) -> tuple[tuple[Mesh, ...], T]:
    """Return the meshes on a device of enough cores, if needed of more SRAM too, and the model's placement there."""
    larger = tuple(replace(mesh, device=endless(mesh.device)) for mesh in meshes)
    try:
        return larger, place(*larger)
    except (SramError, FullError):
        larger = tuple(replace(mesh, device=mesh.device.unbounded()) for mesh in larger)
        return larger, place(*larger)


def with_hint(place: Callable[[Mesh], Any], mesh: Mesh, reason: SramError | FullError) -> str:
    """Return the reason why a mesh does not fit, and one of its proportions that does, unless `without_hints`."""

    def fits(candidate: Mesh) -> None:
        try:
            place(candidate)
        except FullError as full:
            raise SramError(str(full)) from None

    if isinstance(reason, LargeError) or not _HINTED.get():
        return str(reason)
    if isinstance(reason, SramError):
        try:
            sram.fitting(fits, mesh)
        except SramError as error:
            return str(error)
    end = sram.deadline()
    for candidate in _alike(mesh):
        if process_time() > end:
            found = f"no mesh was found to hold it in {sram.HINT_SECONDS:g} s of search"
            return f"{reason}; {found}; give a much larger one, or smaller sizes"
        try:
            fits(candidate)
        except SramError:
            continue
        return f"{reason}; mesh {candidate} holds it"
    return f"{reason}; no mesh of these proportions holds it"


def _alike(mesh: Mesh) -> list[Mesh]:
    """Return some meshes of the same proportions over the whole device, the one next in size first."""
    common = gcd(mesh.rows, mesh.cols)
    rows, cols = mesh.rows // common, mesh.cols // common
    most = min(mesh.device.rows // rows, mesh.device.cols // cols)
    step = max(1, most // _TRIED)
    meshes = [Mesh(times * rows, times * cols, mesh.device) for times in range(step, most + 1, step) if times != common]
    return sorted(meshes, key=lambda candidate: abs(candidate.rows - mesh.rows))
