"""All CPU cases of two checkouts in turns: python bench/paired.py ../other

Each checkout runs each case in a process of its own, with one thread, so that no case meets what others left in memory:
a step of a model took up to 1.4 times as long there. For each case, both run it the same number of times in turns. CPU
time excludes waiting for other processes; turns expose both checkouts to the same load. A ratio is this checkout's
time over the other's, the median over the turns; below 1 this one is faster. `--peers` compares MeshGEMM and MeshGEMV
with the hand-written PyTorch code of harness/peers.py, in this checkout alone. Emulation times, never a wafer's.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TURNS = 9  # of each case
SECONDS = 0.1  # CPU seconds of a turn, at least
STEPS = 400  # of a model before its prompt is prefilled anew
# (side of the mesh, m, k, n)
GEMM = ((8, 256, 256, 256), (16, 256, 256, 256), (16, 512, 512, 512), (32, 256, 256, 256), (6, 100, 70, 50))
GEMV = ((8, 1, 256, 256), (32, 1, 512, 1024), (64, 1, 512, 512), (16, 16, 256, 512))
EXCHANGES = ("explicit", "elided")
LLAMA = {
    "model_type": "llama", "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3, "vocab_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
}  # fmt: skip
MIXTURE = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
Run = Callable[[], object]


def cases() -> Iterator[tuple[str, Callable[[], Run]]]:
    """Yield each case's name with a function that prepares it; its imports exist in both checkouts."""
    import torch

    from wafer_triton import Mesh, estimate, mesh_gemm, mesh_gemv, ops, scatter
    from wafer_triton.algorithms.product import recipe
    from wafer_triton.algorithms.reduce import all_reduce
    from wafer_triton.algorithms.ring import ring_step
    from wafer_triton.models.decoder import WaferForCausalLM
    from wafer_triton.schedule.builder import Builder

    roomy = _roomy()

    def program(op: str, exchange: str, side: int, m: int, k: int, n: int) -> Run:
        made = recipe(op, Mesh(side, side, roomy), "fp32", ((m, k), (k, n)), ())
        pairs = zip(made.inputs, (torch.randn(m, k), torch.randn(k, n)), strict=True)
        tiles = {name: scatter(whole, made.schedule.mesh, pattern).tiles for (name, pattern), whole in pairs}
        return ops.executor("torch", exchange, "cpu").bind(made.schedule, tiles).execute

    def call(op: Any, exchange: str, m: int, size: int, side: int) -> Run:
        a, b = torch.randn(m, size), torch.randn(size, size)
        return lambda: op(a, b, mesh=Mesh(side, side, roomy), exchange=exchange)

    def shifts(side: int, tile: int, exchange: str) -> Run:
        b = Builder(Mesh(side, side, roomy), "shifts")
        buffers = [b.buffer(name, (tile, tile), "fp32", "state") for name in ("here", "there")]
        for step in range(8):
            b.round(ring_step(b, "x", buffers[step % 2], buffers[1 - step % 2]))
        tiles = {name: torch.randn(side, side, tile, tile) for name in ("here", "there")}
        return ops.executor("torch", exchange, "cpu").bind(b.build(), tiles).execute

    def tree(hops: int) -> Run:
        b = Builder(Mesh(64, 2 * hops + 1, roomy), "tree")
        b.buffer("x", (64,), "fp32", "state")
        all_reduce(b, "x", "x", groups=())
        tiles = {"x": torch.zeros(64, 2 * hops + 1, 64)}
        return ops.executor("torch", "explicit", "cpu").bind(b.build(), tiles).execute

    def model(config: Any, exchange: str, side: int, tokens: int, phase: str, **options: Any) -> Run:
        placed = WaferForCausalLM.from_config(
            config, mesh=Mesh(side, side, roomy), dtype="fp32", max_length=tokens + STEPS, max_prompt=tokens,
            executor=ops.executor("torch", exchange, "cpu"), **options,
        )  # fmt: skip

        def prefill() -> None:
            placed.reset()
            placed.prefill([7] * tokens)

        def step() -> None:
            if placed.counts[0] == tokens + STEPS:
                prefill()
            placed.step(7)

        prefill()
        if phase == "step":
            step()
        return step if phase == "step" else prefill

    def named(name: str, make: Callable[..., Run], *args: Any, **options: Any) -> tuple[str, Callable[[], Run]]:
        return name, lambda: make(*args, **options)

    for op, sizes in (("gemm", GEMM), ("gemv", GEMV)):
        for side, m, k, n in sizes:
            for exchange in EXCHANGES:
                yield named(f"{op} {m}x{k}x{n} on {side}, {exchange}", program, op, exchange, side, m, k, n)
    for op, m in ((mesh_gemm, 64), (mesh_gemm, 256), (mesh_gemv, 1)):
        for exchange in EXCHANGES:
            size = 64 if m == 64 else 256
            yield named(
                f"{op.__name__}, a public call, {m}x{size}x{size} on 8, {exchange}", call, op, exchange, m, size, 8
            )
    for side, tile in ((8, 32), (16, 32), (64, 8)):
        for exchange in EXCHANGES:
            yield named(f"8 ring shifts of {tile}x{tile} on {side}, {exchange}", shifts, side, tile, exchange)
    for hops in (1, 4):
        yield named(f"a reduce tree of {hops} hops, 64 mesh rows", tree, hops)
    for phase in ("prefill", "step"):
        for exchange in EXCHANGES:
            yield named(f"{phase}, small Llama on 8, {exchange}", model, LLAMA, exchange, 8, 20, phase)
            yield named(f"{phase}, small mixture on 8, {exchange}", model, MIXTURE, exchange, 8, 20, phase)
        options = {"experts": "regions"}
        yield named(f"{phase}, small mixture on 8, regions", model, MIXTURE, "explicit", 8, 20, phase, **options)
        for exchange in EXCHANGES:
            yield named(f"{phase}, SmolLM2-135M on 24, {exchange}", model, "smollm2-135m", exchange, 24, 48, phase)
    decode = {"model": "llama3-8b", "device": "wse2", "mesh": 360, "context": 4096}
    yield named("estimate of a decode step, Llama-3-8B on 360", lambda: lambda: estimate.decode(**decode))


def _roomy() -> Any:
    from dataclasses import replace

    from wafer_triton.device import PRESETS

    return replace(PRESETS["wse2"], name="wse2 with 64 MiB a core", sram_bytes=64 * 2**20)


def work(name: str) -> None:
    """Answer each number of runs of stdin with the CPU seconds of one; 0 with the number of runs of a turn."""
    import torch

    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout, sys.stderr
    run: Run | None = None
    for line in sys.stdin:
        runs = int(line)
        try:
            if run is None:
                torch.manual_seed(0)
                run = dict(cases())[name]()
                for _ in range(2):
                    run()
            begun = process_time()
            if not runs:
                while process_time() - begun < SECONDS:
                    run()
                    runs += 1
                answer: Any = runs
            else:
                for _ in range(runs):
                    run()
                answer = (process_time() - begun) / runs
        except Exception as error:  # one checkout may lack a case
            answer = f"{type(error).__name__}: {error}"[:200]
        print(json.dumps(answer), file=answers, flush=True)


class Worker:
    """A process that runs one case of a checkout, by the Python of its environment if it has one."""

    def __init__(self, root: Path, package: Path, name: str) -> None:
        own = root / ".venv" / "bin" / "python"
        path = {"PYTHONPATH": str(package), "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
        self.process = subprocess.Popen(
            [str(own) if own.exists() else sys.executable, str(Path(__file__).resolve()), "--work", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **path},
        )  # fmt: skip

    def ask(self, runs: int) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{runs}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def _laid_out(root: Path) -> Path:
    """Return a folder with the checkout's package as it installs."""
    from tempfile import mkdtemp

    folder = Path(mkdtemp())
    package = folder / "wafer_triton"
    package.mkdir()
    sources = (*(root / "wafer_triton").iterdir(), root / "kernels", root / "models")
    for name, source in {each.name: each for each in sources}.items():  # the last two are links in a newer checkout
        (package / name).symlink_to(source.resolve())
    return folder


def compared(here: Worker, other: Worker, name: str) -> str:
    """Return a row of the table."""
    runs = here.ask(0)
    if not isinstance(runs, int):
        return f"| {name} | {runs} | | |"
    turns = []
    for turn in range(TURNS):
        pair = (here, other) if turn % 2 else (other, here)
        times = {worker: worker.ask(runs) for worker in pair}
        if not all(isinstance(seconds, float) for seconds in times.values()):
            return f"| {name} | {times[here]} | {times[other]} | |"
        turns.append((times[here], times[other]))
    ours, theirs = (median(seconds) * 1e3 for seconds in zip(*turns, strict=True))
    return f"| {name} | {ours:.3g} | {theirs:.3g} | {median(one / two for one, two in turns):.2f} |"


def beside_peers() -> Iterator[str]:
    """Return rows of MeshGEMM and MeshGEMV beside the hand-written PyTorch code."""
    import torch

    sys.path.insert(0, str(ROOT / "bench" / "harness"))
    from cases import OnMesh, Shape, executor

    torch.set_num_threads(1)
    for op, sizes in (("gemm", GEMM), ("gemv", GEMV)):
        for side, m, k, n in sizes:
            shape = Shape(op, side, m, k, n, "fp32")
            given = shape.operands("cpu", integers=False)
            runs = {row: OnMesh(shape, executor(row, "cpu"), *given).run for row in (*EXCHANGES, "emulation")}
            times: dict[str, list[float]] = {row: [] for row in runs}
            number = 0
            for turn in range(TURNS + 1):
                for row, run in runs.items():
                    begun, done = process_time(), 0
                    while done < number or process_time() - begun < SECONDS * (not number):
                        run()
                        done += 1
                    if turn:
                        times[row].append((process_time() - begun) / done)
                    number = number or done
            peer = times.pop("emulation")
            for row, seconds in times.items():
                ratio = median(one / two for one, two in zip(seconds, peer, strict=True))
                ours, theirs = (median(each) * 1e3 for each in (seconds, peer))
                yield f"| {op} {m}x{k}x{n} on {side}, {row} | {ours:.3g} | {theirs:.3g} | {ratio:.2f} |"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="the CPU cases of two checkouts in turns")
    parser.add_argument("other", type=Path, nargs="?", help="the other checkout")
    parser.add_argument("--only", default="", help="cases with this in their names")
    parser.add_argument("--peers", action="store_true", help="beside hand-written PyTorch, in this checkout alone")
    parser.add_argument("--work", metavar="CASE", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.work:
        work(args.work)
        return
    other = "plain PyTorch" if args.peers else "other"
    print(f"| case | here (ms of CPU) | {other} (ms of CPU) | ratio |\n| --- | ---: | ---: | ---: |", flush=True)
    if args.peers:
        for row in beside_peers():
            print(row, flush=True)
        return
    if args.other is None:
        parser.error("give the folder of the other checkout, or --peers")
    checkouts = [(root, _laid_out(root)) for root in (ROOT, args.other)]
    for name, _ in cases():
        if args.only in name:
            here, other = (Worker(root, package, name) for root, package in checkouts)
            print(compared(here, other, name), flush=True)
            for worker in (here, other):
                worker.process.communicate()  # closes its input, at whose end it ends


if __name__ == "__main__":
    main()
