"""Launches with the same bits that no GPU has timed as they are now, all behind one function, `fastest`.

A way is a launch's parameters by name, such as the sizes of its blocks. A trial times every way. It is repeated until
two successive trials agree, as the clock of a GPU that wakes up favours the later ways. The choice is kept in a file,
one per GPU and Triton version, in `$WAFER_TRITON_CACHE` (default ~/.cache/wafer_triton). With WAFER_TRITON_TUNE=0,
under the interpreter, and while a CUDA graph is recorded, the first way is taken and nothing is tried.

A measurement that finds all this no faster than the plain launches deletes in one commit:
- this file, `warp_groups.py`, tests/kernels/test_untimed.py, tests/emulate/test_warp_groups.py,
  tests/helpers/gluon_machine.py, tests/gpu/test_ways.py, and the warp groups of tests/kernels/test_launches.py;
- the calls of `fastest` in `elided.py` (with its `by`), `fused.py` and `tree.py`; `BOX`, `on_hopper` and the GROUP
  sizes of `placed` in `_common.py`;
- the rows "by warp groups" and "by loads" of bench/harness (`cases.TILES`, `static_gate`), and WAFER_TRITON_TUNE in
  tests/conftest.py.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from wafer_triton.errors import BackendError
from wafer_triton.kernels._common import BOX, COMPILING, FEW, INTERPRET, Operand, block, on_hopper

RING = 192 * 1024  # bytes of shared memory for tiles that wait to be multiplied there
Way = dict[str, Any]
TRIALS = (20, 20, 40, 80)  # milliseconds for which each way runs, trial by trial
_REFUSED = (
    triton.CompilationError, triton.runtime.errors.OutOfResources, triton.runtime.errors.PTXASError,
    torch.cuda.OutOfMemoryError,
)  # fmt: skip


def fastest(plain: Any, case: Any, by: str = "", alone: Callable[[Any, Tensor], None] | None = None) -> Any:
    """Return the launch that is fastest on this GPU: `plain`, or another with the same bits.

    `plain` is a `fused.FusedOp`, `case` the table of its cores, and `alone` launches it; or a launch of `elided`, and
    `case` its (out, a, b, rows, cols, a_labels, b_labels, sizes). `by` asks for ways of elided products by "loads" or
    "warps", or for one, as "warps, 2 x 4 cores"; BackendError if there is none.
    """
    if alone is not None:
        return _product(plain, case, alone)
    _, a, b, rows, *_, sizes = case
    ways = elided_ways(*case)
    asked = [way for way in ways if named(way).startswith(by)]
    if not asked:
        raise BackendError(f"elided MeshGEMM cannot be launched by {by}; here it can by {'; '.join(map(named, ways))}")
    launches: dict[str, Callable[[], None]] = {named(way): partial(_by_warps, case, way) for way in asked}
    launches[named(ways[-1])] = plain
    if len(asked) == 1:
        return launches[named(asked[0])]
    key = ("elided", rows.numel(), *(sizes[size] for size in "MKN"), str(a.tensor.dtype), str(b.tensor.dtype))
    key += (by,) if by else ()
    return launches[named(best(key, asked, lambda way: launches[named(way)](), a.tensor.device))]


def named(way: Way) -> str:
    """Return what tells a way of elided products from the others."""
    return f"{way['by']}, {way['GROUP_M']} x {way['GROUP_N']} cores, blocks {way['BLOCK_M']} x {way['BLOCK_N']}"


def elided_ways(
    out: Operand, a: Operand, b: Operand, rows: Tensor, cols: Tensor, a_labels: Any, b_labels: Any, sizes: Way
) -> list[Way]:
    """Return ways to cut an elided product into programs of GROUP_M x GROUP_N cores, the likeliest first.

    The last is by loads, which is the plain launch. The others are by warps: Hopper's unit for tensors (TMA) copies
    blocks for a warp of its own, see `warp_groups`. Cores share a program only if one table of labels serves all.
    """
    side, shared = rows.numel(), a_labels.step == b_labels.step == 0
    blocks = {name: sizes[name] for name in ("BLOCK_M", "BLOCK_N")}
    ways: list[Way] = [{"GROUP_M": 1, "GROUP_N": 1, **blocks, "by": "loads"}]
    m, k, n = (sizes[size] for size in "MKN")
    dtypes = {x.tensor.dtype for x in (a, b, out)}
    boxed = m % BOX == n % BOX == k % BOX == 0 and len(dtypes) == 1 and torch.float32 not in dtypes
    boxed = boxed and sizes["MODE"] == "dot" and not sizes["ADD"]
    if not boxed or not on_hopper() or not all(map(_copied, (a, b, out), (m * k, k * n, m * n))):
        return ways
    for block_m, block_n in ((128, 128), (128, 256)):
        group = max(1, block_m // m), max(1, block_n // n)
        whole = all(
            (one > 1 and one * size == block_size and side % one == 0) or (one == 1 and size % block_size == 0)
            for one, size, block_size in zip(group, (m, n), (block_m, block_n), strict=True)
        )
        if whole and (shared or group == (1, 1)) and sum(group) - 2 < side:
            depth = RING // (BOX * (block_m + block_n) * a.tensor.itemsize)
            way = {"GROUP_M": group[0], "GROUP_N": group[1], "BLOCK_M": block_m, "BLOCK_N": block_n, "by": "warps"}
            ways.insert(0, way | {"DEPTH": depth, "SWIZZLE": 8})
    return ways


def _copied(x: Operand, numel: int) -> bool:
    """Return whether the tiles of an operand lie one after another, on 16 bytes, as TMA asks."""
    return x.stride == numel and x.tensor[x.offset :].data_ptr() % 16 == 0


def _by_warps(case: tuple[Any, ...], way: Way) -> None:
    from wafer_triton.kernels.warp_groups import (
        warp_groups,
    )  # Gluon is experimental: other launches may not fail for it

    out, a, b, rows, cols, a_labels, b_labels, sizes = case
    side, programs = rows.numel(), 1
    for size in "MN":
        group = way[f"GROUP_{size}"]
        programs *= side // group * (-(-sizes[size] // way[f"BLOCK_{size}"]) if group == 1 else 1)
    warp_groups(out, a, b, rows, cols, a_labels, b_labels, side, programs, sizes | way)


def product_ways(k: int, n: int, lanes: int) -> list[Way]:
    """Return blocks for one vector by a tile: whole rows of the tile, or columns without masks; all add alike."""
    ways: list[Way] = []
    for wide in (block(n, 512), min(n & -n, 512)):
        for elements, num_warps in ((1024, 1), (2048, 2), (2048, 1)):
            unroll = block(k, max(lanes, elements // wide)) // lanes
            way = {"BLOCK_N": wide, "UNROLL": unroll, "num_warps": num_warps}
            if wide >= 32 and lanes * wide <= elements and way not in ways:
                ways.append(way)
    return ways


def _product(op: Any, cores: Tensor, alone: Callable[[Any, Tensor], None]) -> Any:
    """Return a product of one vector with the sizes and warps that are fastest; any other op as it is."""
    sizes = {name: size.value for name, size in op.sizes._asdict().items()}
    if sizes.get("MODE") != "rows" or sizes["M"] > 1 or sizes["HEADS"] > 1 or cores.numel() > FEW:
        return op
    ways = product_ways(sizes["K"], sizes["N"], sizes["BLOCK_K"])
    if not ways:
        return op

    def trial(way: Way) -> None:
        out, *others = op.args
        if not spare:
            spare.append(torch.empty_like(out.tensor))
        alone(with_way(op._replace(args=(out._replace(tensor=spare[0]), *others)), way), cores)

    spare: list[Tensor] = []  # a trial leaves the op's own output as it is
    numbers = [f"{name}{size}" for name, size in sizes.items() if name in "MKN"]
    key = ("product", cores.numel(), *numbers, *(str(x.tensor.dtype) for x in op.args if isinstance(x, Operand)))
    return with_way(op, best(key, ways, trial, cores.device))


def with_way(op: Any, way: Way) -> Any:
    """Return a fused op with the sizes and warps of a way."""
    blocks = {name: size for name, size in way.items() if name != "num_warps"}
    return op.sized(**blocks)._replace(num_warps=way["num_warps"])


def best(key: tuple[Any, ...], ways: Sequence[Way], launch: Callable[[Way], None], device: torch.device) -> Way:
    """Return the fastest of `ways` for this key; a way that does not compile or fit on this GPU is passed over."""
    if INTERPRET or device.type != "cuda" or os.environ.get("WAFER_TRITON_TUNE") == "0":
        return ways[0]
    name = " ".join(map(str, key))
    path = _path(torch.cuda.get_device_name(device))
    known = _read(path)
    if name in known and known[name] in ways:
        return known[name]
    if COMPILING.get():  # so that a later trial finds all ways compiled
        for way in ways[1:]:
            launch(way)
        return ways[0]
    if torch.cuda.is_current_stream_capturing():
        return ways[0]
    found = stable(ways, lambda way, rep: triton.testing.do_bench(lambda: launch(way), warmup=rep / 4, rep=rep))
    known[name] = found
    with suppress(OSError):  # a home that cannot be written to: known for this process only
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")  # no other process reads half a file
        beside.write_text(json.dumps(known, indent=1, sort_keys=True))
        beside.replace(path)
    return found


def stable(ways: Sequence[Way], milliseconds: Callable[[Way, int], float]) -> Way:
    """Return the way that is fastest in two successive trials; if there is none, the fastest of the last trial.

    `milliseconds` times a way that runs for a number of milliseconds of `TRIALS`. Passes over ways that fail; if all
    fail, raises the last failure.
    """
    found: Way | None = None
    for rep in TRIALS:
        times, failure = list[tuple[float, int]](), Exception()
        for number, way in enumerate(ways):
            try:
                times.append((milliseconds(way, rep), number))
            except _REFUSED as error:
                failure = error
        if not times:
            raise failure
        before, found = found, ways[min(times)[1]]
        if found == before:
            break
    assert found is not None
    return found


def _path(gpu: str) -> Path:
    folder = os.environ.get("WAFER_TRITON_CACHE") or Path.home() / ".cache" / "wafer_triton"
    return Path(folder) / f"tuned-{re.sub(r'[^A-Za-z0-9]+', '-', gpu)}-triton-{triton.__version__}.json"


@cache
def _read(path: Path) -> dict[str, Way]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):  # none yet, or half written: it is only a cache
        return {}
    return found if isinstance(found, dict) else {}
