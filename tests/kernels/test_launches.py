"""Every kernel as Triton's launcher hands it to the CUDA driver: arguments, grid, threads, and whether cooperative.

Run as a script, `python test_launches.py gcc`, it launches all of them on a stub of the driver and prints their
arguments, tensors by name. Every operand has an offset and a stride of its own, so none passes for another.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
COMPILER = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")  # the compilers that Triton tries
HEADER = Path(sysconfig.get_path("include")) / "Python.h"


@pytest.fixture(scope="module")
def launched() -> dict[str, list[dict]]:
    if COMPILER is None or not HEADER.exists():
        pytest.skip("Triton's launcher takes a C compiler and Python's headers, which are not here")
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    child = subprocess.run([sys.executable, "-P", __file__, COMPILER], env=env, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def test_every_kernel_is_launched_here(launched):
    sources = Path(importlib.import_module("wafer_triton.kernels").__file__).parent.glob("*.py")
    kernels = {name for source in sources for name in re.findall(r"^def (_\w+_kernel)\(", source.read_text(), re.M)}
    assert kernels == {launch["kernel"] for launches in launched.values() for launch in launches}


def shape(launch: dict) -> tuple:
    return launch["kernel"], launch["grid"], launch["threads"], launch["cooperative"]


SIZES = ["constexpr[16]"] * 3  # m, k, n
A, B, C, OUT, NEXT_A, NEXT_B = (
    [name, number, 1000 + number, None]
    for number, name in enumerate(("a", "b", "c", "out", "next_a", "next_b"), start=5)
)


def test_exchange(launched):
    (launch,) = launched["exchange"]
    assert shape(launch) == ("_exchange_kernel", [2, 2, 1], 32, False), "4 messages of 256 elements in a program"
    moves = [[NEXT_A, A, "cores", "sends", None, 0, 3, 2, 3, 2], [NEXT_B, B, "others", "sends", "table", 3, 3, 2, 7, 5]]
    assert launch["args"] == {"moves": moves} and launch["known"]["SIZES"] == [256, 64]


def test_one_round(launched):
    (launch,) = launched["one_round"]
    assert shape(launch) == ("_round_kernel", [6, 1, 1], 32, False)
    assert launch["args"].pop("P")[:3] == SIZES
    assert launch["args"] == {
        "c": C, "a": A, "b": B, "next_a": NEXT_A, "next_b": NEXT_B, "send_a_ptr": "sends",
        "send_b_ptr": None, "cores_ptr": "cores", "cores": 6,
    }  # fmt: skip


def test_all_rounds_are_cooperative(launched):
    (launch,) = launched["all_rounds"]
    assert shape(launch) == ("_rounds_kernel", [6, 1, 1], 32, True)
    assert launch["args"].pop("P")[:3] == SIZES
    assert launch["args"] == {
        "c": C, "out": OUT, "a": A, "spare_a": NEXT_A, "b": B, "spare_b": NEXT_B, "neighbours_ptr": "neighbours",
        "counters_ptr": "counters", "cores_ptr": "cores", "cores": 6, "alarm_ptr": "word", "launch": 3, "rounds": 7,
    }  # fmt: skip


def test_elided(launched):
    dots, rows = launched["elided"]
    assert shape(dots) == ("_elided_kernel", [16, 1, 1], 64, False), "a core a program"
    assert shape(rows) == ("_elided_kernel", [16, 1, 1], 32, False)
    for launch, step in ((dots, 0), (rows, 4)):
        assert launch["args"].pop("P")[6] == "constexpr[False]", "sums begin with zeros"
        assert launch["args"] == {
            "c": C, "out": OUT, "a": A, "b": B, "rows_ptr": "cores", "cols_ptr": "sends",
            "a_labels": ["others", "table", step], "b_labels": ["table", "others", step], "SIDE": 4,
            "programs": 16,
        }  # fmt: skip


def test_warp_groups(launched):
    (launch,) = launched["warp groups"]
    assert shape(launch) == ("_groups_kernel", [4, 1, 1], 384, False), "two groups of 4 warps, 4 for one that fetches"
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
    assert shape(launch) == ("_tree_kernel", [2, 1, 1], 32, False), "a program is 3 cores, one after another"
    given = launch["args"]
    tables = ["cores", "children", "parents", "slots"]
    assert given["acc"] == C and given["mailbox"] == ["mailbox", 11, 1011, None] and given["tables"] == tables
    assert given["args"] == [[C, A, B]] and given["receivers"] == ["sends", "others", 2]
    assert (given["blocks"], given["alarm_ptr"], given["launch"]) == (6, "word", 3)


def test_a_local_operation(launched):
    (launch,) = launched["ops"]
    assert shape(launch) == ("_ops_kernel", [6, 1, 1], 32, False)
    args = launch["args"]
    assert args["cores_ptr"] == "cores" and args["blocks"] == 6 and args["args"] == [[C, A, [*B[:3], "others"]]], (
        "b from where it lies"
    )


def test_launches_follow_the_driver_s_limit(launched):
    """MeshGEMM on 4 x 4 cores: a GPU with room for all, one with room for 13, and one without cooperative launches."""
    *moves, rounds = launched["executor 16"]
    assert {launch["kernel"] for launch in moves} == {"_exchange_kernel", "_ops_kernel"}, "which copies tiles back"
    assert shape(rounds) == ("_rounds_kernel", [16, 1, 1], 32, True)
    assert (rounds["args"]["rounds"], rounds["args"]["cores"]) == (4, 16)
    for gpu in ("executor 13", "executor 16, no cooperative launches"):
        alone = [launch for launch in launched[gpu] if launch["kernel"] == "_round_kernel"]
        assert "_rounds_kernel" not in {launch["kernel"] for launch in launched[gpu]}
        adds = [launch["args"]["P"][6] for launch in alone]
        assert adds == ["constexpr[False]", *["constexpr[True]"] * 3]


def launch_all(compiler: str) -> dict[str, list[dict]]:
    """Launch every kernel, and return the driver's arguments with the names of tensors in place of addresses."""
    from stub_driver import Stub

    stub = Stub(compiler, tempfile.mkdtemp())

    import torch

    from wafer_triton.kernels import Copies, Operand, compute_shift, find
    from wafer_triton.kernels.compute_shift import all_rounds, one_round
    from wafer_triton.kernels.elided import Labels, elided
    from wafer_triton.kernels.exchange import exchange
    from wafer_triton.kernels.fused import Grid
    from wafer_triton.kernels.tree import Receivers, TreeTables, reduce_tree
    from wafer_triton.kernels.waiting import Alarm

    bf16, fp32 = torch.bfloat16, torch.float32
    kinds = {"a": bf16, "b": bf16, "c": fp32, "out": bf16, "next_a": bf16, "next_b": bf16}
    lie = {name: torch.zeros(16 * 1024, dtype=dtype) for name, dtype in kinds.items()}
    names = ("cores", "sends", "others", "table", "counters", "neighbours", "children", "parents", "slots")
    tables = {name: torch.zeros(6 if name == "cores" else 8, dtype=torch.int32) for name in names}
    tables |= {"mailbox": torch.zeros(16 * 1024).int(), "word": torch.zeros(1).long()}
    named = {tensor.data_ptr(): name for name, tensor in (lie | tables).items()}
    a, b, c, out, next_a, next_b = (
        Operand(tensor, number, 1000 + number) for number, tensor in enumerate(lie.values(), start=5)
    )
    cores, sends, others, table, counters, neighbours, children, parents, slots = map(tables.get, names)
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
    moves = Copies(next_a, a, cores, sends, None, 0, 3, 2, 3, 2), Copies(next_b, b, others, sends, table, 3, 3, 2, 7, 5)
    exchange(moves, [256, 64])
    done["exchange"] = since(named)
    tile = {"m": 16, "k": 16, "n": 16}
    one_round(c, a, b, next_a, next_b, sends, None, cores, **tile)
    done["one_round"] = since(named)
    hands, waiting = ((a, next_a), (b, next_b)), (neighbours, counters[None, :6], cores, alarm)
    all_rounds(c, out, *hands, *waiting, rounds=7, **tile)
    done["all_rounds"] = since(named)
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
    return done | by_executor(stub, compute_shift, since)


def by_executor(stub, compute_shift, since) -> dict[str, list[dict]]:
    """Run MeshGEMM by an executor that takes the CPU's memory for a GPU's, with `multiprocessors` of them."""
    from types import SimpleNamespace

    import torch

    from wafer_triton.algorithms.product import recipe
    from wafer_triton.device.mesh import Mesh
    from wafer_triton.emulate import triton as executor
    from wafer_triton.kernels import _common

    executor.INTERPRET = SimpleNamespace(value=True)  # the executor needs a GPU, or the interpreter
    compute_shift.resident_programs = lambda kernel, device: _common.resident_programs(kernel, torch.device("cuda"))
    torch.version.cuda = "13.0"
    schedule = recipe("gemm", Mesh(4, 4), "bf16", ((64, 64), (64, 64)), ()).schedule
    done = {}
    for has, words in ((16, ""), (13, ""), (16, ", no cooperative launches")):
        stub.cooperates(not words)
        gpu = SimpleNamespace(name="Some GPU", multi_processor_count=has, warp_size=32)
        torch.cuda.get_device_properties = lambda device, gpu=gpu: gpu
        program = executor.TritonExecutor().bind(schedule, {name: torch.ones(4, 4, 16, 16) for name in "ab"})
        program.run()
        done[f"executor {has}{words}"] = since({})
    return done


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
    json.dump(launch_all(sys.argv[1]), sys.stdout)
