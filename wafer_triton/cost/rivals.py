"""The rivals of the WaferLLM paper, T10 and Ladder, by stated assumptions: their wafer programs are not published.

A rival has phases like a schedule's (see `wafer_triton.cost.phases`); `ASSUMED` states the assumptions. Both rivals
send between distant cores in more directions than pre-set routes allow, so a core relays every hop.
"""

from __future__ import annotations

from math import ceil, log2

from wafer_triton.cost.constants import Constants
from wafer_triton.cost.phases import Phase, Product
from wafer_triton.cost.price import Cost, phase_cost
from wafer_triton.count.traffic import WORD_BYTES
from wafer_triton.device.dtype import BYTES, tile_dtype
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.product import tiles

ASSUMED = {
    "t10": "compute-shift that ignores distance: a shift's partners lie a third of the line apart on average; "
    "a quarter of a line's tiles cross its middle link in each direction; reductions pair cores 1, 2, 4, ... apart",
    "ladder": "shared memory: every core fetches the tiles of its row and column from their home cores by request and "
    "reply, without multicast; reductions write all partial sums to one core",
}


def gemm(mesh: Mesh, m: int, k: int, n: int, dtype: str, algorithm: str, c: Constants) -> Cost:
    """Return the cost of C [m, n] = A [m, k] B [k, n] by the rival `algorithm` (see `ASSUMED`)."""
    square = mesh.square()
    side = square.shape[0]
    tm, tk, tn = tiles(side, m, k, n)
    moved = max(_words(tm * tk, tile_dtype(dtype)), _words(tk * tn, dtype))
    apart, crowd = (ceil(side / 3), ceil(side / 4)) if algorithm == "t10" else (2 * ceil(side / 3), ceil(side / 2))
    stored, dtype = dtype, tile_dtype(dtype)
    own = BYTES[dtype] * tm * tk + BYTES[stored] * tk * tn
    tile_bytes = 2 * own + BYTES[dtype] * tm * tn
    phase = Phase(
        "product",
        times=side,
        stages=1,
        hops=apart,
        busiest_words=moved * crowd,
        mean_words=moved * apart / 2,
        link_bytes=2 * square.cores * moved * WORD_BYTES * apart,
        fold=square.fold[0] * square.fold[1],
        overlaps=algorithm == "t10",
        products=(Product(tm, tk, tn, 1, dtype),),
        macs=tm * tk * tn,
        sram_bytes=own + BYTES[dtype] * tm * tn,
    )
    return phase_cost(phase, c, by_cores=True) + Cost(
        routes=crowd, sram_peak_bytes=tile_bytes * phase.fold, relayed=True
    )


def gemv(mesh: Mesh, k: int, n: int, dtype: str, algorithm: str, c: Constants) -> Cost:
    """Return the cost of y [n] = x [k] W [k, n] by the rival `algorithm`, with x cut along y."""
    length = mesh.shape[0]
    (tk,), (tn,) = tiles(length, k), tiles(mesh.shape[1], n)
    stored, dtype = dtype, tile_dtype(dtype)
    words, weights = _words(tn, dtype), BYTES[stored] * tk * tn
    tile_bytes = BYTES[dtype] * (tk + 2 * tn) + weights
    local = Phase(
        "local",
        products=(Product(1, tk, tn, 1, dtype),),
        macs=tk * tn,
        sram_bytes=BYTES[dtype] * (tk + tn) + weights,
    )
    levels = ceil(log2(length)) if length > 1 else 0
    reduce = Phase(
        "stream",
        stages=levels if algorithm == "t10" else 1,
        hops=length - 1,
        busiest_words=words * (max(1, length // 2) if algorithm == "t10" else max(1, length - 1)),
        mean_words=words * max(1, length / 4 if algorithm == "t10" else length / 2),
        link_bytes=mesh.cores * words * WORD_BYTES * max(1, length // 2),
    )
    back = Phase("circuit", stages=1, hops=length - 1, busiest_words=words, mean_words=words)
    parts = [local] + ([reduce, back] if length > 1 else [])
    priced = sum((phase_cost(part, c, by_cores=True) for part in parts), Cost())
    return priced + Cost(routes=levels or 1, sram_peak_bytes=tile_bytes, relayed=True)


def _words(elements: int, dtype: str) -> int:
    return ceil(elements * BYTES[dtype] / WORD_BYTES)
