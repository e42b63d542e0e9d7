"""What judges by PLMR, and the devices it judges for: `compare`, `check` and `devices`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from wafer_triton.cli.options import DEVICE, DTYPE, HEADS, MESH, Command, count, option, size, tell
from wafer_triton.count.verdict import PLMR
from wafer_triton.device import PRESETS

LABELS = {"name": "operation", "verdict": "PLMR", "cycles": "predicted cycles"}


def compare(args: argparse.Namespace) -> int:
    """all algorithms for one product: rounds, hops, routes, links, SRAM, error, PLMR verdict"""
    from wafer_triton import compare
    from wafer_triton.draw import tables

    common = {"device": args.device, "dtype": args.dtype, "values": args.values}
    if args.kind == "gemm":
        rows = compare.compare_gemm(args.mesh, args.m, args.k, args.n, **common)
    else:
        rows = compare.compare_gemv(args.mesh, args.k, args.n, **common)
    records = [asdict(row) for row in rows]
    notes = [PLMR]
    if any(row.error is None for row in rows):
        notes.append("largest error -: values were not computed, on so large a mesh --values does")
    answer = {"mesh": args.mesh, "device": args.device, "rows": records}
    return tell(args, answer, tables.records(records, labels=LABELS), *notes)


def check(args: argparse.Namespace) -> int:
    """a PLMR verdict for every operation of a decoder layer on a device"""
    from wafer_triton.compare import decoder_layer
    from wafer_triton.cost.constants import constants
    from wafer_triton.cost.layers import with_head_groups
    from wafer_triton.draw import tables
    from wafer_triton.mesh import as_mesh
    from wafer_triton.schedule.block import Block
    from wafer_triton.shapes import shape_of

    mesh = as_mesh(args.mesh, args.device)
    block = Block(shape_of(args.model), mesh, args.dtype, entries=-(-args.context // mesh.rows))
    block = with_head_groups(block, constants(mesh.device), args.head_groups)
    operations = decoder_layer(block, -(-args.prompt // mesh.square().shape[0]) if args.prompt else 0)
    records = [asdict(operation) for operation in operations]
    answer = {"model": args.model, "mesh": str(mesh), "head_groups": block.head_groups, "operations": records}
    return tell(args, answer, tables.records(records, labels=LABELS), PLMR)


def devices(args: argparse.Namespace) -> int:
    """list the devices that --device knows"""
    if args.json:
        print(json.dumps([asdict(device) for device in PRESETS.values()]))
        return 0
    from wafer_triton.draw import tables

    print(tables.devices_table(PRESETS.values()), file=sys.stdout)
    return 0


VALUES = option(
    "--values",
    action=argparse.BooleanOptionalAction,
    help="compute the product as well, for the error (default: on meshes of up to 64 x 64 cores)",
)
COMMANDS = (
    Command("devices", devices),
    Command(
        "compare",
        compare,
        kinds=tuple(
            Command(
                kind,
                compare,
                (*(size(f"--{name}", "size of the whole matrices") for name in sizes), MESH, DEVICE, DTYPE, VALUES),
                f"compare the algorithms of {kind.upper()}",
            )
            for kind, sizes in (("gemm", "mkn"), ("gemv", "kn"))
        ),
    ),
    Command(
        "check",
        check,
        (
            option("--model", required=True, metavar="NAME|PATH", help="a known shape or a Hugging Face folder"),
            option("--mesh", default="16", metavar="P|RxC", help="virtual cores (default: %(default)s)"),
            DEVICE,
            HEADS,
            DTYPE,
            option(
                "--context", type=count, default=512, metavar="N", help="tokens in the cache (default: %(default)s)"
            ),
            option("--prompt", type=count, metavar="N", help="judge prefill of N tokens as well"),
        ),
    ),
)
