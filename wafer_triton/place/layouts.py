"""How regions lie on a device.

"rectangles" fill the device in rows, alternately from left to right and from right to left, so that consecutive regions
are neighbours. "area" adds up their cores, as the paper does, and takes them to lie in one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wafer_triton.device import MOST, Device
from wafer_triton.device.mesh import Mesh

LAYOUTS = ("rectangles", "area")


def lay_out(meshes: Sequence[Mesh], layout: str) -> list[Mesh]:
    """Return the meshes with their positions on the device, as many as there is room for."""
    return _in_rows(meshes) if layout == "rectangles" else _in_one_row(meshes)


def _in_rows(meshes: Sequence[Mesh]) -> list[Mesh]:
    """Return the meshes, as many as there is room for, in rows from the top, every second row from right to left."""
    device = meshes[0].device
    laid: list[Mesh] = []
    top, height, used, leftwards = 0, 0, 0, False
    for mesh in meshes:
        if used + mesh.cols > device.cols:
            top, height, used, leftwards = top + height, 0, 0, not leftwards
        if top + mesh.rows > device.rows or mesh.cols > device.cols:
            break
        laid.append(replace(mesh, origin=(top, device.cols - used - mesh.cols if leftwards else used)))
        used, height = used + mesh.cols, max(height, mesh.rows)
    return laid


def _in_one_row(meshes: Sequence[Mesh]) -> list[Mesh]:
    """Return the meshes, as many as the device has cores for, beside each other."""
    device, area, used = meshes[0].device, 0, 0
    laid: list[Mesh] = []
    for mesh in meshes:
        area += mesh.rows * mesh.cols
        if area > device.wafer_cores:
            break
        row = replace(device, cols=max(device.cols, used + mesh.cols)) if used + mesh.cols <= MOST["cols"] else None
        used = used if row is not None else 0
        laid.append(replace(mesh, device=row or device, origin=(0, used)))
        used += mesh.cols
    return laid


def unbounded_cores(device: Device) -> Device:
    """Return the device with as many cores as any can have, to price layers that do not fit the device."""
    return replace(device, rows=int(MOST["rows"]), cols=int(MOST["cols"]))


def region_count(mesh: Mesh, layout: str) -> int:
    """Return how many regions of the size of a mesh its device has."""
    device = mesh.device
    if layout == "area":
        return device.wafer_cores // (mesh.rows * mesh.cols)
    return (device.rows // mesh.rows) * (device.cols // mesh.cols)
