"""Every kernel as Triton's launcher hands it to the CUDA driver: arguments, grid and threads.

Run as a script, `python test_launches.py gcc`, it launches all of them on a stub of the driver and prints their
arguments, tensors by name. Every operand has an offset and a stride of its own, so none passes for another.
"""

import importlib
import json
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
COMPILER = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")  # the compilers that Triton tries
HEADER = Path(sysconfig.get_path("include")) / "Python.h"


@pytest.fixture(scope="module")
def launched(compiling) -> dict[str, list[dict]]:
    if COMPILER is None or not HEADER.exists():
        pytest.skip("Triton's launcher takes a C compiler and Python's headers, which are not here")
    return json.loads(compiling(__file__, COMPILER))


def test_every_kernel_is_launched_here(launched):
    sources = Path(importlib.import_module("wafer_triton.kernels").__file__).parent.glob("*.py")
    kernels = {name for source in sources for name in re.findall(r"^def (_\w+_kernel)\(", source.read_text(), re.M)}
    assert kernels == {launch["kernel"] for launches in launched.values() for launch in launches}


def shape(launch: dict) -> tuple:
    return launch["kernel"], launch["grid"], launch["threads"]


SIZES = ["constexpr[16]"] * 3  # m, k, n
A, B, C, OUT, NEXT_A = (
    [name, number, 1000 + number, None] for number, name in enumerate(("a", "b", "c", "out", "next_a"), start=5)
)


def test_exchange(launched):
    single, steps = launched["exchange"]
    assert shape(single) == ("_exchange_kernel", [4, 2, 1], 128), "2 lines, of which tiles of 2,000 are 2 slices"
    moves = [
        [[[NEXT_A, A], "cores", "sends", "table", 1, 3, 2, 3, 2], [[B], "others", "sends", "table", 1, 3, 2, 7, 5]]
    ]
    assert [single["args"]["moves"]] == moves
    assert [one[:4] for one in single["args"]["sizes"]] == [
        [f"constexpr[{value}]" for value in values] for values in ((2000, 1024, 4, True), (64, 64, 4, True))
    ]
    assert shape(steps) == ("_exchange_kernel", [132, 2, 1], 128), "more slices than programs"
    assert steps["args"]["moves"][0][4:6] == [9, 3]


def test_products(launched):
    (launch,) = launched["products"]
    assert shape(launch) == ("_products_kernel", [6 * 4, 1, 1], 128), "6 cores, 4 blocks of C on each"
    assert launch["args"].pop("P")[:3] == ["constexpr[128]", "constexpr[16]", "constexpr[128]"]
    assert launch["args"] == {"c": C, "out": OUT, "a": A, "b": B, "cores_ptr": "cores", "programs": 24}
    assert launch["known"] == {"ROWS": 2, "COLUMNS": 2, "LOOPS": 1}


def test_elided(launched):
    dots, rows = launched["elided"]
    assert shape(dots) == ("_elided_kernel", [16, 1, 1], 64), "a core a program"
    assert shape(rows) == ("_elided_kernel", [16, 1, 1], 32)
    for launch, step in ((dots, 0), (rows, 4)):
        assert launch["args"].pop("P")[5] == "constexpr[False]", "sums begin with zeros"
        assert launch["args"] == {
            "c": C, "out": OUT, "a": A, "b": B, "rows_ptr": "cores", "cols_ptr": "sends",
            "a_labels": ["others", "table", step], "b_labels": ["table", "others", step], "SIDE": 4,
            "programs": 16,
        }  # fmt: skip


def test_warp_groups(launched):
    (launch,) = launched["warp groups"]
    assert shape(launch) == ("_groups_kernel", [4, 1, 1], 384), "two groups of 4 warps, 4 for one that fetches"
    args = launch["args"]
    assert args.pop("S")[-2:] == ["constexpr[6]", "constexpr[2]"], "slots of the ring, labels between cores"
    for name, lie in (("out", "tiles of c"), ("a", "tiles of a"), ("b", "tiles of b")):
        assert args.pop(name) == [lie, 64, 16 * 64, 64, 64, [16 * 64, 64, 64, 1]]
    assert args == {
        "rows_ptr": "cores", "cols_ptr": "sends", "a_labels": ["others", "table", 0],
        "b_labels": ["table", "others", 0], "P": 4, "programs": 4,
    }  # fmt: skip


def test_tree(launched):
    (launch,) = launched["tree"]
    assert shape(launch) == ("_tree_kernel", [2, 1, 1], 32), "a program is 3 cores, one after another"
    given = launch["args"]
    tables = ["cores", "children", "parents", "slots"]
    assert given["tree"][:-1] == [C, ["mailbox", 11, 1011, None], *tables, "constexpr[2]", "constexpr[64]"]
    assert given["args"] == [[C, A, B]] and given["receivers"] == [C, "sends", "others", 2]
    assert (given["blocks"], given["alarm_ptr"], given["launch"]) == (6, "word", 3)


def test_a_local_operation(launched):
    (launch,) = launched["ops"]
    assert shape(launch) == ("_ops_kernel", [6, 1, 1], 32)
    args = launch["args"]
    assert args["cores_ptr"] == "cores" and args["blocks"] == 6 and args["args"] == [[C, A, [*B[:3], "others"]]], (
        "b from where it lies"
    )


def launch_all(compiler: str) -> dict[str, list[dict]]:
    """Launch every kernel, and return the driver's arguments with the names of tensors in place of addresses."""
    from stub_driver import Stub

    stub = Stub(compiler, tempfile.mkdtemp())

    import torch

    from wafer_triton.kernels import Copies, Operand, find
    from wafer_triton.kernels.compute_shift import products
    from wafer_triton.kernels.elided import Labels, elided
    from wafer_triton.kernels.exchange import exchange
    from wafer_triton.kernels.fused import Grid
    from wafer_triton.kernels.tree import Receivers, TreeTables, reduce_tree
    from wafer_triton.kernels.waiting import Alarm

    bf16, fp32 = torch.bfloat16, torch.float32
    kinds = {"a": bf16, "b": bf16, "c": fp32, "out": bf16, "next_a": bf16}
    lie = {name: torch.zeros(16 * 1024, dtype=dtype) for name, dtype in kinds.items()}
    names = ("cores", "sends", "others", "table", "children", "parents", "slots")
    tables = {name: torch.zeros(6 if name == "cores" else 8, dtype=torch.int32) for name in names}
    tables |= {"mailbox": torch.zeros(16 * 1024).int(), "word": torch.zeros(1).long()}
    named = {tensor.data_ptr(): name for name, tensor in (lie | tables).items()}
    a, b, c, out, next_a = (
        Operand(tensor, number, 1000 + number) for number, tensor in enumerate(lie.values(), start=5)
    )
    cores, sends, others, table, children, parents, slots = map(tables.get, names)
    alarm = Alarm(tables["word"], 3)

    def since(names: dict[int, str]) -> list[dict]:
        def readable(value):
            if isinstance(value, list | tuple):
                return [readable(one) for one in value]
            return names.get(value, value) if isinstance(value, int) else None if value is None else str(value)

        launches = [
            one._asdict()
            | {
                part: {name: readable(value) for name, value in getattr(one, part).items()}
                for part in ("args", "known")
            }
            for one in stub.launches
        ]
        stub.launches.clear()
        return launches

    done = {}
    for steps, size in ((1, 2000), (9, 200_000)):
        rows = (cores, sends, table, steps, 3, 2, 3, 2), (others, sends, table, steps, 3, 2, 7, 5)
        exchange([Copies((next_a, a), *rows[0]), Copies((b,), *rows[1])], [size, 64])
    done["exchange"] = since(named)
    products(c, out, a, b, cores, rounds=7, m=128, k=16, n=128)
    done["products"] = since(named)
    side = (cores[:4], sends[:4])
    for step, sizes in ((0, {"m": 32, "k": 32, "n": 32}), (4, {"m": 1, "k": 8, "n": 8})):
        labels = Labels(others, table, step), Labels(table, others, step)
        elided(c, out, a, b, *side, *labels, **sizes)
    done["elided"] = since(named)
    tiles = [Operand(torch.zeros(16 * 64 * 64, dtype=bf16), 0, 64 * 64) for _ in "abc"]
    named |= {one.tensor.data_ptr(): f"tiles of {name}" for one, name in zip(tiles, "abc", strict=True)}
    labels = Labels(others, table, 0), Labels(table, others, 0)
    elided(c, tiles[2], *tiles[:2], *side, *labels, m=64, k=64, n=64)
    done["warp groups"] = since(named)
    vector = {"m": 1, "k": 16, "n": 64}
    tree = TreeTables(c, Operand(tables["mailbox"], 11, 1011), cores, children, parents, slots, 2, 64)
    ops = [find("gemm").fused((c,), (a, b), **vector)]
    reduce_tree(tree, ops, alarm, Receivers(c, sends, others, 2), (), Grid(1, 3))
    done["tree"] = since(named)
    find("add")((c,), (a, b._replace(index=others)), cores, size=48)
    done["ops"] = since(named)
    return done


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
    json.dump(launch_all(sys.argv[1]), sys.stdout)
