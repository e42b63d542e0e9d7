"""Arguments of a wrong kind in Python, and their relatives on the command line: one line names argument and remedy."""

import json

import pytest
import torch

from wafer_triton import Device, Mesh, distributed, estimate, executor
from wafer_triton import rms_norm as rms_norm_of
from wafer_triton.cli.main import main
from wafer_triton.compare.sweep import own
from wafer_triton.device import sources
from wafer_triton.errors import WaferError
from wafer_triton.schedule import sram
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.collectives import broadcast
from wafer_triton.schedule.kv_cache import KvCache
from wafer_triton.schedule.norm import rms_norm
from wafer_triton.shape.read import shape_of
from wafer_triton.shape.routing import drawn


def own_builder(*tile):
    b = Builder(Mesh(4, 4), "own")
    b.buffer("x", tile, "fp32", "input")
    return b


def norm_of(*tile):
    rms_norm(own_builder(*tile), "x", "g", "o", "x", width=16, eps=1e-5)


X = torch.ones(4, 4)

CALLS = {
    "a device's file": (lambda: Device.from_file(5), "a device's file is given as int; give its path"),
    "a mesh without a device": (lambda: Mesh(3, 3, device=None), "device None is of type NoneType; give a Device"),
    "a function of a schedule": (
        lambda: own("f.py:f"),
        "own: the function of a schedule is of type str",
    ),
    "tokens of a routing": (lambda: drawn(shape_of("olmoe-1b-7b"), -5), "tokens = -5 must be a whole number"),
    "a routing's seed": (lambda: drawn(shape_of("olmoe-1b-7b"), 5, seed=-1), "seed -1: give a whole number of at"),
    "an undeclared buffer": (lambda: broadcast(Builder(Mesh(4, 4), "own"), "y", "x", 0), "buffer 'y' is not declared"),
    "the root of a broadcast": (
        lambda: broadcast(own_builder(3), "x", "x", 1.5),
        "own: root = 1.5 of a broadcast must be",
    ),
    "the number of an entry": (lambda: KvCache(3, 2).append(own_builder(3), {"x": "y"}, -1), "entry number -1 is app"),
    "a tile of a norm": (lambda: norm_of(4), "own: buffer 'x' has tiles (4,); give tiles [m, n]"),
    "an operation's keyword": (
        lambda: rms_norm_of(X, X[0], epsilon=1e-5, mesh=2),
        "unknown keyword 'epsilon'; did you mean 'eps'?; choose from eps, mesh",
    ),
    "an option of ranks": (lambda: distributed.executor(shard="2x2"), "no option 'shard'; did you mean 'shards'?"),
    "an executor's option": (
        lambda: executor("torch", exchang="elided"),
        "did you mean 'exchange'?; options: emulate_on",
    ),
    "a device's numbers": (lambda: sources("wse9"), "unknown device 'wse9'; did you mean"),
    "seconds": (lambda: estimate.energy(seconds=True, against_seconds=1), "seconds = True must be a number from"),
}


@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=CALLS)
def test_an_argument_of_a_wrong_kind_is_named(call, message):
    with pytest.raises(WaferError) as error:
        call()
    assert message in str(error.value)


def test_routes_of_packets_are_offered(tmp_path, capsys):
    (tmp_path / "d.toml").write_text('like = "wse2"\nroutes = "packet"\n')
    assert main(["devices", "--show", str(tmp_path / "d.toml")]) == 2
    assert (
        "routes = 'packet' is a text; give a number, its unit in the key (routes), or 'packets' for routed packets"
        in capsys.readouterr().err
    )


def test_a_list_is_no_trace_of_experts(tmp_path, capsys):
    (tmp_path / "r.json").write_text(json.dumps([]))
    line = f"estimate cap --model olmoe-1b-7b --mesh 360 --context 8 --routing {tmp_path}/r.json"
    assert main(line.split()) == 2
    assert 'holds a list, not a trace {"experts": [...]}' in capsys.readouterr().err


def test_a_device_that_is_swept_twice_is_named(tmp_path, capsys):
    sizes = "--set m=64 --set k=64 --set n=64 --device wse2 --device wse2"
    line = f"sweep gemm {sizes} --over mesh=4,8 --out {tmp_path}/s.csv"
    assert main(line.split()) == 2
    assert "sweep over device: wse2 comes twice; give each value once" in capsys.readouterr().err


LINES = {
    "estimate gemm --m 8 --k 8 --n 8 --mesh 2 --mesh 3": "argument --mesh: is given twice; give it once; see",
    "estimate gemm --m 8 --k 8 --n 8 --mehs 2": "unrecognized arguments: --mehs 2; did you mean --mesh?; see",
    "check schedule own.py:f": "unrecognized arguments: own.py:f; write `wafer-triton check own.py:f` without a word",
    "estimate decode --model loop --mesh 2 --context 8": "loop: Too many levels of symbolic links; give another path",
    "devices --show wse2,link_bytes_per_cycle=1e-300": "link_bytes_per_cycle = 1e-300 must be a number from 1e-09 to",
    "serve --model smollm2-135m --rate 3 --input 8 --output 8 --policy split --columns 993": "993 of them for prefill",
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_command_line_ends_in_a_remedy(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    assert main(line.split()) == 2
    assert LINES[line] in capsys.readouterr().err


def test_a_rank_beyond_their_number_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "5")
    assert main(["estimate", "gemv", "--k", "8", "--n", "8", "--mesh", "2"]) == 2
    assert "RANK = 5 of WORLD_SIZE = 2 in the environment: ranks count from 0" in capsys.readouterr().err


def test_searches_of_one_refusal_end_together(monkeypatch):
    now = iter(range(0, 10**6, 2))
    monkeypatch.setattr(sram, "process_time", lambda: float(next(now)))
    with sram.one_search():
        assert sram.deadline() == sram.deadline() == 5.0
    assert sram.deadline() > 5.0
