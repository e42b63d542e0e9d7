"""What to say where a model does not fit a device: the mesh that would hold it, or a device on which it is priced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from math import gcd
from typing import Any, TypeVar

from wafer_triton.errors import MeshError, ShapeError, SramError
from wafer_triton.mesh import Mesh
from wafer_triton.place.layouts import endless
from wafer_triton.place.regions import FullError, LargeError
from wafer_triton.schedule import sram

T = TypeVar("T")
AS_IF = "as_if=True (--as-if) prices it all the same"
_TRIED = 24  # meshes that are tried where a device is too small for one
_HINTED = ContextVar("hinted", default=True)


@contextmanager
def without_hints() -> Iterator[None]:
    """Leave out the search for a mesh that fits, within the block: a sweep has many points and tries others anyway."""
    token = _HINTED.set(False)
    try:
        yield
    finally:
        _HINTED.reset(token)


def fitted(place: Callable[[Mesh], Any], mesh: Mesh, as_if: bool | None) -> tuple[Mesh, str | None]:
    """Return the mesh to place a model on, and why it does not fit; None where it does.

    A model that does not fit is refused with a mesh that would hold it. With `as_if` it is given a device of more
    cores, or, where a core does not hold a block, of more SRAM; None says that this is not on offer. `place` raises
    SramError or FullError for a mesh that does not hold the model.
    """
    if as_if not in (None, True, False):
        raise ShapeError(f"as_if = {as_if!r} must be true or false")
    try:
        place(mesh)
        return mesh, None
    except (SramError, FullError) as error:
        reason = error
    if not as_if and not _HINTED.get():
        raise reason
    if not as_if:
        offer = "" if as_if is None else f"; {AS_IF}"
        try:
            said = with_hint(place, mesh, reason)
        except MeshError:  # other meshes are refused for their sides, as by regions of experts: no hint
            said = str(reason)
        raise type(reason)(said + offer) from None
    return as_if_held(place, mesh)[0][0], str(reason)


def as_if_held(place: Callable[..., T], *meshes: Mesh) -> tuple[tuple[Mesh, ...], T]:
    """Meshes on a device of as many cores as any, or if that is too little of any SRAM as well, and what lies there."""
    larger = tuple(replace(mesh, device=endless(mesh.device)) for mesh in meshes)
    try:
        return larger, place(*larger)
    except (SramError, FullError):
        larger = tuple(replace(mesh, device=mesh.device.unbounded()) for mesh in larger)
        return larger, place(*larger)


def with_hint(place: Callable[[Mesh], Any], mesh: Mesh, reason: SramError | FullError) -> str:
    """Return the reason why a mesh does not fit, and one of its proportions that does."""

    def fits(candidate: Mesh) -> None:
        try:
            place(candidate)
        except FullError as full:
            raise SramError(str(full)) from None

    if isinstance(reason, LargeError):
        return str(reason)
    if isinstance(reason, SramError):
        try:
            sram.fitting(fits, mesh)
        except SramError as error:
            return str(error)
    for candidate in _alike(mesh):
        try:
            fits(candidate)
        except SramError:
            continue
        return f"{reason}; mesh {candidate} holds it"
    return f"{reason}; no mesh of these proportions holds it"


def _alike(mesh: Mesh) -> list[Mesh]:
    """Some meshes of the same proportions over the whole device, the one next in size first."""
    common = gcd(mesh.rows, mesh.cols)
    rows, cols = mesh.rows // common, mesh.cols // common
    most = min(mesh.device.rows // rows, mesh.device.cols // cols)
    step = max(1, most // _TRIED)
    meshes = [Mesh(times * rows, times * cols, mesh.device) for times in range(step, most + 1, step) if times != common]
    return sorted(meshes, key=lambda candidate: abs(candidate.rows - mesh.rows))
