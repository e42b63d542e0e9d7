"""`wafer-triton compare`: every algorithm for one product; `check`: every operation of a decoder; judged by PLMR."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wafer_triton.compare import Row


def register(commands: Any) -> None:
    """Add `compare gemm`, `compare gemv` and `check` to the parser's commands."""
    about = "all algorithms for one product: rounds, hops, routes, links, SRAM, error, PLMR verdict"
    kinds = commands.add_parser("compare", help=about, description=about).add_subparsers(metavar="KIND", required=True)
    for kind, sizes in (("gemm", "mkn"), ("gemv", "kn")):
        one = kinds.add_parser(kind, help=f"compare the algorithms of {kind.upper()}")
        for size in sizes:
            one.add_argument(f"--{size}", type=_size, required=True, metavar=size.upper())
        one.add_argument("--mesh", required=True, metavar="P|RxC", help="virtual cores, 64 or 48x64")
        one.add_argument("--device", default="wse2", help="a preset (default: %(default)s)")
        one.add_argument("--dtype", default="fp16", choices=("fp16", "bf16", "fp32"))
        one.add_argument(
            "--values",
            action=argparse.BooleanOptionalAction,
            help="compute the product as well, for the error (default: on meshes of up to 64 x 64 cores)",
        )
        one.add_argument("--json", action="store_true", help="last line of stdout is one JSON object")
        one.set_defaults(run=_compare, kind=kind)
    about = "a PLMR verdict for every operation of a decoder layer on a device"
    one = commands.add_parser("check", help=about, description=about)
    one.add_argument("--model", required=True, metavar="NAME|PATH", help="a known shape or a Hugging Face folder")
    one.add_argument("--mesh", default="16", metavar="P|RxC", help="virtual cores (default: %(default)s)")
    one.add_argument("--device", default="wse2", help="a preset (default: %(default)s)")
    one.add_argument("--dtype", default="fp16", choices=("fp16", "bf16", "fp32"))
    one.add_argument(
        "--context", type=_size, default=512, metavar="N", help="tokens in the cache (default: %(default)s)"
    )
    one.add_argument("--prompt", type=_size, metavar="N", help="judge prefill of N tokens as well")
    one.add_argument("--json", action="store_true", help="last line of stdout is one JSON object")
    one.set_defaults(run=_check)


def _compare(args: argparse.Namespace) -> int:
    from wafer_triton import compare

    common = {"device": args.device, "dtype": args.dtype, "values": args.values}
    if args.kind == "gemm":
        rows = compare.compare_gemm(args.mesh, args.m, args.k, args.n, **common)
    else:
        rows = compare.compare_gemv(args.mesh, args.k, args.n, **common)
    _show(rows, sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps({"mesh": args.mesh, "device": args.device, "rows": [asdict(row) for row in rows]}))
    return 0


def _check(args: argparse.Namespace) -> int:
    from wafer_triton.compare import PLMR
    from wafer_triton.draw import tables
    from wafer_triton.mesh import as_mesh
    from wafer_triton.models.random import config_of
    from wafer_triton.models.verdict import layer
    from wafer_triton.schedule.block import Block

    mesh = as_mesh(args.mesh, args.device)
    block = Block(config_of(args.model), mesh, args.dtype, entries=-(-args.context // mesh.rows))
    found = layer(block, -(-args.prompt // mesh.square().shape[0]) if args.prompt else 0)
    table = tables.table("phase", "operation", "rounds", "stages", "hops", "routes", "SRAM peak (B)", "PLMR")
    for one in found:
        counts = (one.rounds, one.stages, one.hops, one.routes, one.sram_peak_bytes)
        table.add_row(one.phase, one.name, *(f"{count:,}" for count in counts), _letters(one.verdict))
    tables.show(table, people := sys.stderr if args.json else sys.stdout)
    print(PLMR, file=people)
    if args.json:
        print(json.dumps({"model": args.model, "mesh": str(mesh), "operations": [asdict(one) for one in found]}))
    return 0


def _letters(verdict: dict[str, bool]) -> str:
    return " ".join(letter if kept else "-" for letter, kept in verdict.items())


def _show(rows: list[Row], stream: Any) -> None:
    from wafer_triton.compare import PLMR
    from wafer_triton.draw import tables

    head = ("algorithm", "rounds", "hops", "routes", "busiest link (B)", "SRAM peak (B)", "error", "PLMR")
    table = tables.table(*head)
    for row in rows:
        table.add_row(
            row.algorithm,
            f"{row.rounds:,}",
            f"{row.hops:,}",
            f"{row.routes:,}",
            f"{row.busiest_link_bytes:,}",
            f"{row.sram_peak_bytes:,}",
            "-" if row.error is None else f"{row.error:.1e}",
            _letters(row.verdict),
        )
    tables.show(table, stream)
    print(PLMR, file=stream)
    if any(row.error is None for row in rows):
        print("error -: values were not computed, on so large a mesh --values does", file=stream)


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
