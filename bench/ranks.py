"""Meshes and models over all ranks, compared with one process; times are emulation times.

    torchrun --nproc-per-node 2 bench/ranks.py [--only WORD] [--json FILE]

The first rank alone and all ranks take turns, so that other load on the machine falls on both. A ratio is the median
over turns of one process's time over the ranks'. With strong scaling both do the same work: N ranks are at best N times
as fast. With weak scaling each rank has as much work as the one process: 1 is the best. On GPUs each rank has one, and
NCCL is between them.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist

from wafer_triton import distributed, ops
from wafer_triton.algorithms.product import recipe
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.executor import Executor
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.generate import prefills
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.shape.published import MODELS

ROOMY = device("wse2").unbounded()


@dataclass(frozen=True)
class Sizes:
    """Sides of meshes, tiles and a decoder in cores, elements and layers; how often each case is timed."""

    gemm: int = 48
    gemv: int = 64
    tile: int = 32
    mesh: int = 24
    layers: int = 4
    prompt: int = 256
    requests: int = 4
    turns: int = 7


@dataclass(frozen=True)
class Row:
    """A case: median milliseconds of one process and of all ranks, their ratio, and the bytes between ranks.

    `cpu_ratio` is the ratio by the processor time of the busiest rank, as if no rank ever waited. `rank_bytes` is None
    for a model in pipeline stages, which send activations.
    """

    what: str
    scaling: str
    exchange: str
    ranks: int
    one_ms: float
    ranks_ms: float
    ratio: float
    cpu_ratio: float
    rank_bytes: int | None


Case = tuple[str, str, str, Callable[[Executor, int], tuple[Callable[[], object], int | None]]]


def cases(sizes: Sizes) -> list[Case]:
    """Return cases: name, scaling, exchange, and a function (executor, times) that makes the run and its bytes."""
    tile = sizes.tile

    def gemm(on: Executor, times: int) -> tuple[Callable[[], object], int | None]:
        size = sizes.gemm * tile
        made = recipe("gemm", Mesh(sizes.gemm, sizes.gemm, ROOMY), "fp32", ((size, size), (size, size)), ())
        return bound(on, made.schedule)

    def gemv(on: Executor, times: int) -> tuple[Callable[[], object], int | None]:
        mesh = Mesh(sizes.gemv * times, sizes.gemv, ROOMY)
        shapes = (1, mesh.rows * tile), (mesh.rows * tile, mesh.cols * tile)
        return bound(on, recipe("gemv", mesh, "fp32", shapes, ()).schedule)

    def prefill(on: Executor, times: int) -> tuple[Callable[[], object], int | None]:
        config = dict(MODELS["smollm2-135m"]) | {"num_hidden_layers": sizes.layers, "vocab_size": 2048}
        count = sizes.requests * times
        model = WaferForCausalLM.from_config(
            config, mesh=Mesh(sizes.mesh, sizes.mesh, ROOMY), dtype="fp32", max_length=sizes.prompt + 1,
            max_prompt=sizes.prompt, batch=count, executor=on,
        )  # fmt: skip
        tokens = [[number * 7 % 2048 for number in range(sizes.prompt)]] * count

        def run() -> None:
            model.reset()
            list(prefills(model, tokens))

        return run, None

    requests = f"prefill of {sizes.prompt} tokens, {sizes.layers} layers, {sizes.requests} requests"
    return [
        *((f"MeshGEMM {sizes.gemm}x{sizes.gemm}", "strong", exchange, gemm) for exchange in ("explicit", "elided")),
        (f"MeshGEMV {sizes.gemv}x{sizes.gemv}", "strong", "explicit", gemv),
        (f"MeshGEMV {sizes.gemv}x{sizes.gemv}", "weak", "explicit", gemv),
        *((requests, "strong", exchange, prefill) for exchange in ("explicit", "elided")),
        (requests, "weak", "elided", prefill),
    ]


def bound(on: Executor, schedule: Schedule) -> tuple[Callable[[], object], int | None]:
    """Return the run of a product of ones, of which each rank makes its own, and the bytes between ranks."""
    down, along = on.rectangle(schedule.mesh)
    shape = down.stop - down.start, along.stop - along.start
    given = {
        name: torch.ones(*shape, buffer.slots * buffer.numel)
        for name, buffer in schedule.buffers.items() if buffer.role == "input"
    }  # fmt: skip
    program = on.bind(schedule, given)
    return program.execute, sum(program.rank_bytes)


def measured(case: Case, turns: int) -> Row:
    """Time a case on all ranks, and on the first alone."""
    what, scaling, exchange, make = case
    every = distributed.executor(exchange=exchange)
    ranks, first = dist.get_world_size(), dist.get_rank() == 0
    run, crossed = make(every, ranks if scaling == "weak" else 1)
    alone, _ = make(ops.executor(None, exchange, every.device), 1) if first else (lambda: None, 0)
    turn = [(timed(alone, every), timed(run, every)) for _ in range(turns + 1)][1:]  # the first warms up
    one, all_ranks = (median(seconds for seconds, _ in times) for times in zip(*turn, strict=True))
    ratio, cpu = (median(before[kind] / after[kind] for before, after in turn) for kind in (0, 1))
    return Row(what, scaling, exchange, ranks, one * 1e3, all_ranks * 1e3, ratio, cpu, crossed)


def timed(run: Callable[[], object], on: Executor) -> tuple[float, float]:
    """Return the seconds until all ranks have ended the run, and the processor seconds of the busiest one."""
    wait(on)
    begun, busy = perf_counter(), process_time()
    run()
    spent = torch.tensor(process_time() - busy, device=on.device)
    wait(on)
    seconds = perf_counter() - begun
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return seconds, float(spent)


def wait(on: Executor) -> None:
    """Wait until all ranks call this function and their GPUs have finished."""
    if torch.device(on.device).type == "cuda":
        torch.cuda.synchronize(on.device)
    dist.barrier()


def table(rows: list[Row]) -> str:
    """Return the rows in Markdown."""
    head = ["case", "scaling", "exchange", "ranks", "one process (ms)", "ranks (ms)", "times as fast", "by CPU time"]
    lines = [f"| {' | '.join(head)} | bytes between ranks |", f"| {'--- | ' * 3}{'---: | ' * 5}---: |"]
    for row in rows:
        times = f"{row.one_ms:.3g} | {row.ranks_ms:.3g} | {row.ratio:.2f}x | {row.cpu_ratio:.2f}x"
        sent = "activations" if row.rank_bytes is None else f"{row.rank_bytes:,}"
        lines.append(f"| {row.what} | {row.scaling} | {row.exchange} | {row.ranks} | {times} | {sent} |")
    return "\n".join(lines)


def main() -> int:
    """Measure all cases; the first rank prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    parser.add_argument("--turns", type=int, default=Sizes.turns, metavar="N", help="default: %(default)s")
    parser.add_argument("--only", default="", metavar="WORD", help="cases with this word in their row, such as prefill")
    args = parser.parse_args()
    torch.set_num_threads(1)
    distributed.join(ops.emulation_device())
    sizes = replace(Sizes(), turns=args.turns)
    rows = [measured(case, sizes.turns) for case in cases(sizes) if args.only in " ".join(case[:3])]
    if dist.get_rank() == 0:
        facts: dict[str, Any] = {"backend": dist.get_backend(), "torch": torch.__version__, "machine": platform.node()}
        print(f"{table(rows)}\n\nEmulation time of one thread a rank over {facts['backend']}, torch {facts['torch']}.")
        if args.json:
            args.json.write_text(json.dumps(facts | {"rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
