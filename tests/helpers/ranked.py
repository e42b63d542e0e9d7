"""Functions on several gloo ranks, each a process, and what each returned."""

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import schedules
from wafer_triton import distributed, mesh_gemm
from wafer_triton.emulate.distributed import DistributedExecutor
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import WaferError

TIMEOUT = timedelta(seconds=60)  # of the process group
EXCHANGES = ("explicit", "elided")


def on_ranks(count: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What `work(rank, *args)` returned on each of `count` ranks."""
    context = mp.get_context("forkserver")  # which imports torch once for all
    context.set_forkserver_preload(["ranked", "wafer_triton.models.decoder", "wafer_triton.distributed"])
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(rank, count, folder, work, args), daemon=True) for rank in range(count)
        ]
        for rank in ranks:
            rank.start()
        left = {rank.sentinel: rank for rank in ranks}
        while left:
            for sentinel in wait(list(left)):
                if left.pop(sentinel).exitcode:  # the others would wait for it until the time is over
                    for other in left.values():
                        other.terminate()
        assert [rank.exitcode for rank in ranks] == [0] * count
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(count)]


def _rank(rank: int, count: int, folder: str, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count))
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count, timeout=TIMEOUT)
    torch.save(work(rank, *args), Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def given(schedule: Any) -> dict[str, torch.Tensor]:
    """The same random tiles on every rank."""
    torch.manual_seed(0)
    return schedules.given(schedule)


def results(program: Any) -> dict[str, torch.Tensor]:
    """What a program leaves in the buffers that live to the end, as bits."""
    program.run()
    kept = [buffer.name for buffer in program.schedule.buffers.values() if buffer.role in ("output", "resident")]
    return {name: program.read(name).view(torch.uint8) for name in kept}


def wrong(rank: int, mesh: str, cut: tuple[int, int] | None, names: list[str], dtype: str) -> list[str]:
    """The schedules by name whose bits on ranks are not those of one process."""
    known, failed = schedules.SUMS | schedules.MOVES | schedules.LAYERS, []
    for exchange in EXCHANGES:
        one = TorchExecutor(exchange=exchange, poison=True)
        ranks = DistributedExecutor(TorchExecutor(exchange=exchange, poison=True), cut=cut)
        for name in names:
            schedule = schedules.build(known[name], mesh, dtype)
            tiles = given(schedule)
            got = results(ranks.bind(schedule, tiles))
            want = results(one.bind(schedule, tiles)) if rank == 0 else got  # which once is enough
            if not all(torch.equal(got[buffer], want[buffer]) for buffer in want):
                failed.append(f"{exchange} {name}")
    return failed


def sent(rank: int, mesh: str, name: str) -> dict[str, Any]:
    """Of a schedule the bytes between ranks by exchange, and the rank of every core."""
    schedule = schedules.build(schedules.SUMS[name], mesh, "fp32")
    answer: dict[str, Any] = {}
    for exchange in EXCHANGES:
        ranks = DistributedExecutor(TorchExecutor(exchange=exchange))
        answer[exchange] = ranks.bind(schedule, given(schedule)).rank_bytes
        answer["owner"] = ranks.share(schedule.mesh).partition.owner
    return answer


def product(rank: int) -> tuple[torch.Tensor, Any]:
    """A product by the public functions, and its record."""
    torch.manual_seed(0)
    a, b = torch.randn(7, 5), torch.randn(5, 6)
    return mesh_gemm(a, b, mesh="2x3", executor=distributed.executor(cut="1x2"), record=True)


def triton_wrong(rank: int) -> list[str]:
    """As `wrong`, of the Triton executor on each rank's rectangle."""
    from wafer_triton.emulate.triton import TritonExecutor

    failed = []
    for exchange in EXCHANGES:
        ranks = DistributedExecutor(TritonExecutor(device="cpu", exchange=exchange, poison=True))
        for name in ("gemm-mesh", "gemv-ktree-y", "rms-norm"):
            schedule = schedules.build((schedules.SUMS | schedules.LAYERS)[name], "2x2", "fp32")
            tiles = given(schedule)
            got = results(ranks.bind(schedule, tiles))
            one = TritonExecutor(device="cpu", exchange=exchange, poison=True)
            want = results(one.bind(schedule, tiles)) if rank == 0 else got
            failed += [f"{exchange} {name}" for buffer in want if not torch.equal(got[buffer], want[buffer])]
    return failed


def disagreements(rank: int) -> list[str]:
    """What ranks that do not agree are told, each in its turn."""
    one = TorchExecutor()
    vector = schedules.build(schedules.SUMS["gemv-ktree-y"], f"{2 + rank}x2", "fp32")
    small = schedules.build(schedules.SUMS["gemv-ktree-y"], "1x1", "fp32")
    thin = schedules.build(schedules.SUMS["gemv-ktree-y"], "1x3", "fp32")
    return [
        raised(lambda: DistributedExecutor(TorchExecutor(exchange=EXCHANGES[rank]))),
        raised(lambda: distributed.executor(cut=("1x2", "2x1")[rank])),
        raised(lambda: DistributedExecutor(one, cut=(2, 3))),
        raised(lambda: DistributedExecutor(one).bind(vector, given(vector))),
        raised(lambda: DistributedExecutor(one).bind(small, given(small))),
        raised(lambda: DistributedExecutor(one, cut=(2, 1)).bind(thin, given(thin))),
    ]


def raised(work: Callable[[], Any]) -> str:
    """The message of the WaferError that a function raises."""
    try:
        work()
    except WaferError as error:
        return str(error)
    return "nothing"
