"""Measurements on silicon that the constants are fitted on and the validation table compares with (see README.md)."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wafer_triton.algorithms.product import Recipe, recipe
from wafer_triton.cost import layers
from wafer_triton.cost.bands import FOLDER, Sizes, layer_sizes, product_sizes
from wafer_triton.cost.constants import Constants
from wafer_triton.cost.price import Cost, price
from wafer_triton.device import Device, device
from wafer_triton.device.mesh import Mesh
from wafer_triton.shape.read import of_sizes, shape_of

_MEASURED = (("skew", "host"), ("sums", "fp16"))  # as the kernels on silicon


@dataclass(frozen=True)
class Measurement:
    """A measured number in `unit` and the model's prediction of it; rows that share a value of `groups` are related.

    A size in `sizes` outside of the range over all rows is beyond the measurements.
    """

    family: str
    name: str
    measured: float
    unit: str
    predict: Callable[[Constants], float]
    groups: dict[str, str]
    sizes: Sizes


Record = Mapping[str, str]


def rows(family: str) -> list[Measurement]:
    """Return the rows of a family of measurements; `FAMILIES` has their names."""
    file, read, name = FAMILIES[family]
    return [row for record in records(file) for row in read(record, device(name))]


def records(file: str) -> list[dict[str, str]]:
    """Return the rows of a file of measurements, by the names of its columns."""
    with (FOLDER / file).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _meshgemm(record: Record, on: Device) -> list[Measurement]:
    side, m, k, n = (int(record[key]) for key in ("mesh", "tile_m", "tile_k", "tile_n"))
    sizes = ((side * m, side * k), (side * k, side * n))
    product = recipe("gemm", Mesh(side, side, on), "fp16", sizes, _MEASURED)
    groups = {"mesh": str(side), "tile": f"{m} x {k} x {n}"}
    return [_of_product("MeshGEMM", f"{side}, {m} x {k} x {n}", record, product, groups, (m, k, n))]


def _meshgemv(record: Record, on: Device) -> list[Measurement]:
    side, k, n, count = (int(record[key]) for key in ("mesh", "tile_k", "tile_n", "group_num"))
    sizes = ((1, side * k), (side * k, side * n))
    options = (("groups", (count,)), ("sums", "fp16"))
    product = recipe("gemv", Mesh(side, side, on), "fp16", sizes, options)
    groups = {"mesh": str(side), "tile": f"{k} x {n}", "group_num": str(count)}
    return [_of_product("MeshGEMV", f"{side}, {k} x {n}, {count} groups", record, product, groups, (k, n))]


def _of_product(
    family: str, name: str, record: Record, product: Recipe, groups: dict[str, str], tile: tuple[int, ...]
) -> Measurement:  # fmt: skip
    def predict(c: Constants) -> float:
        return c.kernel_cycles + price(product.schedule, c).cycles

    spans = product_sizes(product.schedule.mesh, *tile)
    return Measurement(family, name, float(record["cycles"]), "cycles", predict, groups, spans)


def _decode_layer(record: Record, on: Device) -> list[Measurement]:
    side, dim, ffn, context = (int(record[key]) for key in ("mesh", "dim", "ffn_dim", "sequence"))
    shape, mesh = of_sizes(dim, ffn, 1, 1, 1), Mesh(side, side, on)
    groups = (int(record["group_num"]),)

    def layer(c: Constants) -> Cost:
        block = layers.decode_block(shape, mesh, context, c, groups, "paper-benchmark")
        return layers.total(layers.decode_steps(block, context, c))

    predictions: dict[str, Callable[[Constants], float]] = {
        "total": lambda c: layer(c).cycles,
        "communication": lambda c: layer(c).communication_cycles,
    }
    spans = layer_sizes(shape, mesh, context)
    return [
        Measurement(
            "WSE-3 decode layer", f"{side}, {name}", float(record[f"{name}_cycles"]), "cycles", predict,
            {"quantity": name}, spans,
        )
        for name, predict in predictions.items()
    ]  # fmt: skip


def _llm(phase: str) -> Callable[[Record, Device], list[Measurement]]:
    def read(record: Record, on: Device) -> list[Measurement]:
        if record["phase"] != phase:
            return []
        shape, side, tokens = shape_of(record["model"]), int(record["mesh"]), int(record["tokens"])
        mesh = Mesh(side, side, on)

        def predict(c: Constants) -> float:
            if phase == "decode":
                block = layers.decode_block(shape, mesh, tokens, c, program="paper-benchmark")
                steps, count = layers.decode_steps(block, tokens, c), 1
            else:
                block = layers.prefill_block(shape, mesh, c, "paper-benchmark")
                steps, count = layers.prefill_steps(block, -(-tokens // side), c), tokens
            return on.clock_hz * count / shape.num_hidden_layers / layers.total(steps).cycles

        groups = {"row": f"{shape.name} {side}", "mesh": str(side), "model": shape.name}
        name = f"{shape.name}, {side}"
        spans = layer_sizes(shape, mesh, tokens)
        return [
            Measurement(f"WSE-2 {phase}", name, float(record["tokens_per_second"]), "tokens/s", predict, groups, spans)
        ]

    return read


# Each family's file, the function that reads a row of it, and the measured device.
FAMILIES: dict[str, tuple[str, Callable[[Record, Device], list[Measurement]], str]] = {
    "MeshGEMM": ("wse3_meshgemm.csv", _meshgemm, "wse3"),
    "MeshGEMV": ("wse3_meshgemv.csv", _meshgemv, "wse3"),
    "WSE-3 decode layer": ("wse3_decode_layer.csv", _decode_layer, "wse3"),
    "WSE-2 decode": ("wse2_llm.csv", _llm("decode"), "wse2"),
    "WSE-2 prefill": ("wse2_llm.csv", _llm("prefill"), "wse2"),
}
