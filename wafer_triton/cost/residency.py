"""What a layer keeps in every core's SRAM, and the smallest mesh that can hold it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wafer_triton.cost.layers import kv_entry, weights
from wafer_triton.cost.model_presets import ModelSizes
from wafer_triton.cost.programs import tiles
from wafer_triton.errors import SramError
from wafer_triton.mesh import Mesh


@dataclass(frozen=True)
class Residency:
    """Bytes per core by buffer; `again` builds the same for another mesh, to find the smallest that fits."""

    what: str
    buffers: dict[str, int]
    again: Callable[[Mesh], Residency] | None = None

    @property
    def bytes(self) -> int:
        """All buffers together."""
        return sum(self.buffers.values())

    def check(self, mesh: Mesh) -> None:
        """Raise SramError naming the largest buffer and the smallest mesh that fits."""
        limit = mesh.device.sram_bytes
        if self.bytes <= limit:
            return
        largest = max(self.buffers, key=lambda name: self.buffers[name])
        message = (
            f"{self.what} on mesh {mesh}: every core needs {self.bytes:,} B, {self.bytes - limit:,} B over the "
            f"{limit:,} B of SRAM on {mesh.device.name}; the largest buffer is {largest} with "
            f"{self.buffers[largest]:,} B"
        )
        raise SramError(f"{message}; {self._smallest(mesh)}")

    def _smallest(self, mesh: Mesh) -> str:
        if self.again is not None:
            for side in range(min(mesh.rows, mesh.cols) + 1, min(mesh.device.rows, mesh.device.cols) + 1):
                if self.again(Mesh(side, side, mesh.device)).bytes <= mesh.device.sram_bytes:
                    return f"the smallest square mesh that can hold it is {side}"
        return f"no mesh on {mesh.device.name} can hold it"


def decode_residency(model: ModelSizes, mesh: Mesh, context: int) -> Residency:
    """One layer in decode: weights, the cache of `context` tokens, and vectors."""

    def build(on: Mesh) -> Residency:
        (d, s), (a, f) = tiles(on.shape[0], model.dim, context), tiles(on.shape[1], model.width, model.ffn)
        held = weights(model, on) | {"kv_cache": s * kv_entry(model, on)}
        return Residency(f"{model.name}, decode", held | {"vectors": 2 * (3 * d + 5 * a + 3 * s + 3 * f)}, build)

    return build(mesh)


def prefill_residency(model: ModelSizes, mesh: Mesh, tokens: int) -> Residency:
    """One layer in prefill: weights, the residual stream, and the operands of its largest product, double-buffered."""

    def build(on: Mesh) -> Residency:
        square = on.square()
        fold = square.fold[0] * square.fold[1]
        d, a, f, t = tiles(square.shape[0], model.dim, model.width, model.ffn, tokens)
        held = {
            "x": t * d,
            "kv_cache": 2 * t * a,
            "scores": 2 * t * t,
            "activations": max(2 * t * d + 2 * t * f, 2 * t * f + t * d, 2 * t * d + 3 * t * a),
            "double buffers of weights": max(d * f, d * a),
        }
        sizes = {name: 2 * size * fold for name, size in held.items()}
        own = {name: size * fold for name, size in weights(model, square).items()}
        return Residency(f"{model.name}, prefill of {tokens} tokens", own | sizes, build)

    return build(mesh)


def layers_per_region(held: Residency, mesh: Mesh) -> int:
    """How many layers with these buffers one region holds; they share their vectors."""
    shared = held.buffers["vectors"]
    return (mesh.device.sram_bytes - shared) // (held.bytes - shared)
