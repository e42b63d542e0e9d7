"""Functions on several gloo ranks, each a process, and their results."""

import io
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import schedules
import tiny
from wafer_triton import distributed, mesh_gemm, rms_norm
from wafer_triton.cli.main import main
from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.emulate.ranks.executor import DistributedExecutor
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.errors import WaferError
from wafer_triton.models import demo
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.generate import prefills

TIMEOUT = timedelta(seconds=60)  # of the process group
KNOWN = schedules.SUMS | schedules.MOVES | schedules.LAYERS
# installed modules alone: the server leaves out other modules in silence
PRELOADED = [
    "wafer_triton.models.decoder",
    "wafer_triton.ops.distributed",
    "transformers.models.auto.tokenization_auto",
]


def on_ranks(count: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """Return the results of `work(rank, *args)` on `count` ranks."""
    results, codes = ended(count, work, *args)
    assert codes == [0] * count
    return results


def ended(count: int, work: Callable[..., Any], *args: Any, lost: int | None = None) -> tuple[list[Any], list[int]]:
    """Return the results of `work(rank, *args)` on `count` ranks, None of a rank that failed, and their exit codes.

    A rank that is to be `lost` ends no other.
    """
    context = mp.get_context("forkserver")  # which imports torch once for all
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(rank, count, folder, work, args), daemon=True) for rank in range(count)
        ]
        for rank in ranks:
            rank.start()
        left = {rank.sentinel: rank for rank in ranks}
        while left:
            for sentinel in wait(list(left)):
                if left.pop(sentinel).exitcode and lost is None:  # the others would wait until the time is over
                    for other in left.values():
                        other.terminate()
        files = [Path(folder) / f"{rank}.pt" for rank in range(count)]
        results = [torch.load(file, weights_only=False) if file.exists() else None for file in files]
        return results, [rank.exitcode for rank in ranks]


def _rank(rank: int, count: int, folder: str, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count), STORE=f"{folder}/store")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count, timeout=TIMEOUT)
    result = work(rank, *args)
    torch.save(result, Path(folder) / f"{rank}.pt")
    if dist.is_initialized() and not isinstance(result, Cut):  # a command leaves it by itself
        dist.barrier()
        dist.destroy_process_group()


def given(schedule: Any) -> dict[str, torch.Tensor]:
    """Return the same random tiles on every rank."""
    torch.manual_seed(0)
    return schedules.given(schedule)


def wrong(
    rank: int, mesh: str, shards: tuple[int, int] | None, names: list[str], dtype: str,
    executor: type[TorchExecutor | TritonExecutor] = TorchExecutor,
) -> list[str]:  # fmt: skip
    """Return the names of the schedules whose bits on ranks differ from one process."""
    failed = []
    for exchange in EXCHANGES:
        one, inside = (executor(device="cpu", exchange=exchange, poison=True) for _ in range(2))
        ranks = DistributedExecutor(inside, shards=shards)
        for name in names:
            schedule = schedules.build(KNOWN[name], mesh, dtype)
            tiles = given(schedule)
            got = schedules.results(ranks.bind(schedule, tiles))
            want = schedules.results(one.bind(schedule, tiles)) if rank == 0 else got  # which once is enough
            if not all(torch.equal(got[buffer], want[buffer]) for buffer in want):
                failed.append(f"{exchange} {name}")
    return failed


def sent(rank: int, mesh: str, name: str) -> dict[str, Any]:
    """Return the bytes between ranks by exchange, and the rank of every core."""
    schedule = schedules.build(KNOWN[name], mesh, "fp32")
    answer: dict[str, Any] = {}
    for exchange in EXCHANGES:
        ranks = DistributedExecutor(TorchExecutor(exchange=exchange))
        answer[exchange] = ranks.bind(schedule, given(schedule)).rank_bytes
        answer["owner"] = ranks.shard(schedule.mesh).partition.owner
    return answer


def product(rank: int) -> tuple[torch.Tensor, Any]:
    """Return a product by the public functions, and its record."""
    torch.manual_seed(0)
    a, b = torch.randn(7, 5), torch.randn(5, 6)
    return mesh_gemm(a, b, mesh="2x3", executor=distributed.executor(shards="1x2"), record=True)


def disagreements(rank: int) -> list[str]:
    """Return the errors of ranks that do not agree, one after another."""
    one = TorchExecutor()
    tree = schedules.MOVES["all-reduce-ktree-x"]
    other, small, thin = (schedules.build(tree, mesh, "fp32") for mesh in (f"{2 + rank}x2", "1x1", "1x3"))
    return [
        raised(lambda: DistributedExecutor(TorchExecutor(exchange=EXCHANGES[rank]))),
        raised(lambda: distributed.executor(shards=("1x2", "2x1")[rank])),
        raised(lambda: DistributedExecutor(one, shards=(2, 3)).bind(small, given(small))),
        raised(lambda: DistributedExecutor(one).bind(other, given(other))),
        raised(lambda: DistributedExecutor(one).bind(small, given(small))),
        raised(lambda: DistributedExecutor(one, shards=(2, 1)).bind(thin, given(thin))),
        raised(
            lambda: rms_norm(torch.ones(4, 4), torch.ones(4), eps=1.0 + rank, mesh=2, executor=DistributedExecutor(one))
        ),
        raised(lambda: mesh_gemm(torch.ones(4, 4), torch.ones(4, 4) + rank, mesh=2, executor=DistributedExecutor(one))),
        raised(
            lambda: mesh_gemm(
                torch.full((4, 4), torch.nan), torch.ones(4, 4), mesh=2, executor=DistributedExecutor(one)
            )
        ),
    ]


Case = tuple[Any, ...]  # a configuration, a mesh, its shards, an exchange; and where experts live in prefill


def model_of(config: dict[str, Any], mesh: str, executor: Any, **options: Any) -> WaferForCausalLM:
    """Return a random tiny model for two sequences."""
    return WaferForCausalLM.from_config(
        config, dtype="fp32", mesh=mesh, max_length=24, max_prompt=12, batch=2, executor=executor, **options
    )


def spoken(model: WaferForCausalLM) -> tuple[Any, ...]:
    """Return a model's tokens after prompts of two lengths, its logits in both phases, and its counts."""
    tokens = list(model.generate([[1, 2, 3, 4, 5], [7, 8, 9]], 2))
    logits = model.advance([5, 6])
    counted = model.account(), {phase: one.cycles for phase, one in model.predicted().items()}
    took = model.passes.trace(), [each.as_json() for each in model.passes]
    return (
        tokens,
        counted,
        took,
        logits.tolist(),
        model(torch.tensor([[1, 2, 3, 4], [4, 5, 6, 7], [2, 2, 2, 2]])).tolist(),
    )


def models_wrong(rank: int, cases: list[Case]) -> list[Case]:
    """Return the cases in which a model on ranks differs from one process."""
    failed = []
    for case in cases:
        config, mesh, shards, exchange, *experts = case
        options = dict(zip(("experts",), experts, strict=False))
        got = spoken(
            model_of(config, mesh, DistributedExecutor(TorchExecutor(exchange=exchange), shards=shards), **options)
        )
        want = spoken(model_of(config, mesh, TorchExecutor(exchange=exchange), **options)) if rank == 0 else got
        failed += [case] * (got != want)
    return failed


def refused(rank: int) -> list[Any]:
    """Return the errors of prompts that cannot run, and whether the next prompts get their own logits."""
    model, prompt = (
        model_of(tiny.CONFIG | {"tie_word_embeddings": True}, "2", DistributedExecutor(TorchExecutor())),
        [1, 2],
    )
    answers: list[Any] = [raised(lambda: list(prefills(model, [prompt, [999]])))]
    want = model.prefill(prompt)
    for tokens, sequence in (([3], 0), ([3], 2), (range(99), 1), ([], 1)):
        answers.append(raised(lambda tokens=tokens, sequence=sequence: model.prefill(tokens, sequence=sequence)))
    return [*answers, torch.equal(model.prefill(prompt, sequence=1), want)]


def apart(rank: int) -> list[str]:
    """Return the errors of a model's ranks that do not agree, one after another."""
    model = model_of(tiny.CONFIG, "2", DistributedExecutor(TorchExecutor()))
    return [
        raised(lambda: model.generate([1, 2 + rank], 2)),
        raised(lambda: model.generate([1, 2], 2 + rank)),
        raised(lambda: model.generate([1, 2], 2, stop=[3 + rank])),
        raised(lambda: model.generate([1, 2], 2, temperature=1.0, seed=rank)),
        raised(lambda: model_of(tiny.CONFIG, f"{2 + rank}", DistributedExecutor(TorchExecutor()))),
        raised(lambda: model_of(tiny.CONFIG, "2", DistributedExecutor(TorchExecutor()), seed=rank)),
        raised(lambda: list(model.generate([1, 2], 2, temperature=1.0))),
    ]


def held(rank: int, config: dict[str, Any]) -> tuple[list[str], int, int | None]:
    """Return the parameters of a rank, the bytes that its programs hold, and a seed that all ranks agree on."""
    model = model_of(config, "3", DistributedExecutor(TorchExecutor()))
    stream = model.generate([1, 2], 2, temperature=1.0)
    return list(model.weights), resident_bytes(model), stream.sampling.seed


def resident_bytes(model: WaferForCausalLM) -> int:
    """Return the bytes that a model's programs for decode hold: weights, caches, the head's sums and all else."""
    tensors = [t for layer in model.layers.layers for part in (layer.project, layer.ffn) for t in part.memory.values()]
    tensors += [*model.head.memory.values(), *model.embedding.memory.values()]
    tensors += [t for program in model.head.programs.values() for t in program.memory.values()]
    return sum({t.data_ptr(): t.nbytes for t in tensors}.values())


def smollm2(rank: int, folder: str, ids: list[int], count: int) -> tuple[list[int], int]:
    """Return SmolLM2's tokens after a prompt, and the bytes that a rank holds of it."""
    model = WaferForCausalLM.from_pretrained(
        folder, mesh=demo.MESH, dtype="fp32", max_length=64, executor=DistributedExecutor(TorchExecutor())
    )
    return list(model.generate(ids, count)), resident_bytes(model)


def commanded(rank: int, *commands: list[str]) -> list[tuple[int, str, str]]:
    """Return the exit code of each command, and the output of this rank: stdout, stderr.

    Rank 0 alone may import a tokenizer.
    """
    answers = []
    if rank:
        sys.modules.update(dict.fromkeys(("tokenizers", "transformers")))
    for number, command in enumerate(commands):
        if not dist.is_initialized():  # each command leaves the process group
            size = int(os.environ["WORLD_SIZE"])
            store = dist.FileStore(f"{os.environ['STORE']}{number}", size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            code = main(command)
        answers.append((code, out.getvalue(), err.getvalue()))
    return answers


class Cut(tuple[int, str, str]):
    """The exit code of a command that did not end well, and its output: stdout, stderr."""


def cut_off(rank: int, command: list[str], lost: int, kill: int) -> Cut:
    """Run a command in whose second decode step rank `lost`, or every rank if it is -1, gets the signal `kill`."""
    # which a shell's background command, and so the tests in one, start out without
    signal.signal(signal.SIGINT, signal.default_int_handler)
    steps, advance = [0], WaferForCausalLM.advance

    def advancing(model: WaferForCausalLM, tokens: Any) -> torch.Tensor:
        steps[0] += 1
        if steps[0] == 2 and lost in (rank, -1):
            os.kill(os.getpid(), kill)
        return advance(model, tokens)

    WaferForCausalLM.advance = advancing
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(command)
    return Cut((code, out.getvalue(), err.getvalue()))


def raised(work: Callable[[], Any]) -> str:
    """Return the message of the WaferError that a function raises."""
    try:
        work()
    except WaferError as error:
        return str(error)
    return "nothing"


def benched(rank: int) -> tuple[list[Any], str]:
    """Return the rows of `bench/ranks.py` at small sizes, and their table."""
    import ranks

    sizes = ranks.Sizes(gemm=4, gemv=4, tile=2, mesh=2, layers=2, prompt=3, requests=1, turns=1)
    rows = [ranks.measured(case, sizes.turns) for case in ranks.cases(sizes)]
    return rows, ranks.table(rows)
