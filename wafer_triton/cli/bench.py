"""`bench`: a product on a mesh beside torch.matmul, timed on this machine."""

from __future__ import annotations

import argparse

from wafer_triton.cli.options import DEVICE, DTYPE, EMULATE_ON, MESH, Command, number, option, size, tell
from wafer_triton.text.quantity import EMULATED
from wafer_triton.text.table import Table


def bench(args: argparse.Namespace) -> int:
    """time a product on a mesh, explicit and elided, beside torch.matmul, on this machine's CPU or GPU"""
    import torch

    from wafer_triton.compare.library import bench_gemm, bench_gemv
    from wafer_triton.draw.progress import Progress
    from wafer_triton.ops import described, executor

    own = {name: getattr(args, name) for name in ("dtype", "device", "emulate_on", "backend", "seconds")}
    if args.algorithm is not None:
        own["algorithm"] = args.algorithm
    with Progress(brief=args.seconds <= 1) as progress:
        if args.kind == "gemm":
            rows = bench_gemm(args.mesh, args.m, args.k, args.n, **own, progress=progress)
        else:
            rows = bench_gemv(args.mesh, args.k, args.n, **own, progress=progress)
    where = described(executor(args.backend, "explicit", args.emulate_on)).partition(", exchange")[0]
    sizes = f"[{args.m if args.kind == 'gemm' else 1}, {args.k}] x [{args.k}, {args.n}]"
    title = f"{args.kind} {sizes} in {args.dtype} on mesh {args.mesh}, {EMULATED}"
    table = Table.of(rows, title=title)
    threads = torch.get_num_threads()
    answer = {"emulated": where, "threads": threads, "torch": torch.__version__, "rows": table}
    note = f"{where}; torch {torch.__version__}, threads of a CPU: {threads}; operands lie on the cores before"
    return tell(args.json, answer, table, note, WAFER)


WAFER = "no time of a wafer: `wafer-triton estimate` predicts cycles of the same product"
SHARED = (
    MESH,
    DEVICE,
    option("--dtype", **{**DTYPE[1], "default": "fp32"}),
    option("--algorithm", help="as in `compare` (default: mesh of a GEMM, ktree of a GEMV)"),
    *EMULATE_ON,
    option("--seconds", type=number, default=1.0, metavar="S", help="of each row, about (default: %(default)s)"),
)
COMMANDS = (
    Command(
        "bench",
        bench,
        kinds=tuple(
            Command(
                kind,
                bench,
                (*(size(f"--{name}", "size of the whole matrices") for name in sizes), *SHARED),
                f"time a {kind.upper()}",
            )
            for kind, sizes in (("gemm", "mkn"), ("gemv", "kn"))
        ),
    ),
)
