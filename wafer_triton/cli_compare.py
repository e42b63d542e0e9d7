"""`wafer-triton compare`: every algorithm for one product, side by side."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wafer_triton.compare import Row


def register(commands: Any) -> None:
    """Add `compare gemm` and `compare gemv` to the parser's commands."""
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


def _show(rows: list[Row], stream: Any) -> None:
    from wafer_triton import report

    head = ("algorithm", "rounds", "hops", "routes", "busiest link (B)", "SRAM peak (B)", "error", "PLMR")
    table = report.table(*head)
    for row in rows:
        table.add_row(
            row.algorithm,
            f"{row.rounds:,}",
            f"{row.hops:,}",
            f"{row.routes:,}",
            f"{row.busiest_link_bytes:,}",
            f"{row.sram_peak_bytes:,}",
            "-" if row.error is None else f"{row.error:.1e}",
            " ".join(letter if kept else "-" for letter, kept in row.verdict.items()),
        )
    report.show(table, stream)


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
