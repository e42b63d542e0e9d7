"""Launches of the Triton executor: as many rounds in one as slots have room for; the program lists its launches."""

from collections import Counter
from dataclasses import replace
from weakref import ref

import numpy as np
import pytest
import torch

from schedules import agree, given
from wafer_triton.algorithms.product import Recipe, recipe
from wafer_triton.algorithms.ring import ring_step
from wafer_triton.decoder import decode, prefill
from wafer_triton.decoder.block import Block, schedule
from wafer_triton.device import PRESETS
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.emulate import fuse
from wafer_triton.emulate import triton as triton_executor
from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.errors import BackendError
from wafer_triton.kernels import compute_shift, fused, tree
from wafer_triton.kernels import elided as elided_kernel
from wafer_triton.kernels import exchange as exchange_kernel
from wafer_triton.kernels.waiting import Watch
from wafer_triton.models.random import config_of
from wafer_triton.ops import mesh_gemm, run
from wafer_triton.schedule.builder import Builder

pytestmark = pytest.mark.slow
ROOMY = replace(PRESETS["wse2"], name="roomy", sram_bytes=64 * 2**20)


def of(op: str, mesh: str) -> tuple[Recipe, tuple[torch.Tensor, ...]]:
    """Return a product on a mesh, and its operands."""
    shapes = ((5, 7), (7, 4)) if op == "gemm" else ((1, 7), (7, 5))
    return recipe(op, as_mesh(mesh), "fp32", shapes, ()), tuple(map(torch.randn, shapes))


@pytest.mark.parametrize(
    ("fits", "words"),
    [
        (9, ["exchange, 6 steps", "compute-shift, 4 rounds in a launch"]),
        (3, ["exchange, 2 steps", "exchange, 4 steps", *["compute-shift, 2 rounds in a launch"] * 2]),
    ],
)
def test_meshgemm_is_two_launches_a_window(fits, words, launches, monkeypatch):
    """Alignment is one, and two more for lines that moved an odd number of times, operand by operand."""
    monkeypatch.setattr(triton_executor, "MAX_SLOT_BYTES", fits * 16 * 4 * (2 * 2 + 2 * 1))
    run(*of("gemm", "4"), TritonExecutor())
    assert launches == Counter(["exchange, 2 steps", "copy", "copy", *words]), "the last product rounds the sums"


def test_the_record_of_a_run_has_its_launches():
    a, b = torch.ones(3, 3), torch.ones(3, 3)
    c, record = mesh_gemm(a, b, mesh=3, backend="triton", record=True)
    assert torch.equal(c, a @ b)
    assert "compute-shift, 3 rounds in a launch" in record.launches
    assert len((record + record).launches) == 2 * len(record.launches)
    assert mesh_gemm(a, b, mesh=3, record=True)[1].launches == ()


@pytest.mark.parametrize("side", [3, 4])
def test_elided_meshgemm_is_one_launch_and_moves_nothing(launches, side):
    run(*of("gemm", str(side)), TritonExecutor(exchange="elided"))
    product = {f"MeshGEMM, {side} rounds in a launch": 1}
    assert launches == product | ({"copy": 1} if side % 2 else {}), "an odd side's B goes home first"


@pytest.mark.parametrize(
    ("exchange", "words"),
    [("explicit", ["gemm, reduce tree, 2 rounds, broadcast in a launch", "copy"]), ("elided", ["gemm", "fold, copy"])],
)
def test_meshgemv_is_two_launches(exchange, words, launches):
    run(*of("gemv", "9x1"), TritonExecutor(exchange=exchange))
    assert launches == dict.fromkeys(words, 1), "the copy rounds the sum"


def test_programs_that_wait_for_later_ones_give_up_and_no_result_is_given_away(monkeypatch):
    """On a GPU that begins programs in the wrong order: the root first, which waits for both ends."""
    what, given = of("gemv", "3x1")
    blocks, executor = fuse.TreeTask.blocks, TritonExecutor()
    monkeypatch.setattr(fuse.TreeTask, "blocks", lambda *args: blocks(*args)[::-1])
    words = r"gemm, reduce tree, 1 rounds, broadcast: core \(1, 0\) gave up waiting .* in round 1, so the"
    with pytest.raises(BackendError, match=words):
        run(what, given, executor)
    monkeypatch.undo()
    assert run(what, given, executor).gather().shape == (1, 5), "and all is ready to run again"


def bound(part, block: Block, arguments: tuple, exchange: str):
    """Bind a sub-layer of a decode layer to memory of one element."""
    made = schedule(part, block, *arguments)
    sizes = {name: one.slots * one.numel for name, one in made.buffers.items()}
    space = {name: torch.zeros(1).bfloat16().expand(*block.mesh.shape, size) for name, size in sizes.items()}
    return TritonExecutor(exchange=exchange).bind(made, {}, shared=space)


LAYER = replace(config_of("llama3-8b"), num_hidden_layers=1)
LARGE = 300  # side of a mesh with more cores than a launch may have programs
PARTS = ("projections", "kv append", "attention", "output projection", "feed-forward")


@pytest.mark.parametrize(("exchange", "number"), [("explicit", (3, 2, 5, 2, 4)), ("elided", (4, 2, 5, 2, 5))])
def test_a_decode_layer_is_a_few_launches(exchange, number):
    """Check Llama-3-8B on 64 x 64 cores, 4,095 tokens in the cache; no product there folds sums for itself."""
    block = Block(LAYER, Mesh(64, 64, ROOMY), "bf16", entries=64)
    words = {part.title: bound(part, block, given, exchange).launches for part, given in decode.layer(block, 4095)}
    counts = tuple(len(words[name if name == "kv append" else f"decode {name}"]) for name in PARTS)
    assert counts == number, words
    assert not any("fold" in launch and "gemm" in launch for launches in words.values() for launch in launches)
    trees = str(words).count("reduce tree")
    assert trees == (10 if exchange == "explicit" else 1), "the scores alone have large tiles"


@pytest.mark.parametrize("groups", [3, 1])
def test_a_prefill_layer_is_sixteen_launches_without_a_hop(groups):
    """Check SmolLM2's prefill on 24 x 24 cores, in its 3 head groups and as one: scores are summed where they go."""
    smol = replace(config_of("smollm2-135m"), num_hidden_layers=1)
    block = prefill.in_head_groups(Block(smol, Mesh(24, 24, ROOMY), "bf16"), groups)
    layer = [bound(part, block, given, "elided") for part, given in prefill.layer(block, 11)]
    launches = [what for program in layer for what in program.launches]
    assert sum(len(program.calls) for program in layer) == 16
    assert "sums of 24 products" in launches
    assert not any(word in what for what in launches for word in ("exchange", "reduce tree"))


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_no_launch_of_a_layer_on_a_large_mesh_has_too_many_programs(exchange, monkeypatch):
    block, grids = Block(LAYER, Mesh(LARGE, LARGE, ROOMY), "bf16", entries=7), []
    for module in (exchange_kernel, fused, tree):
        monkeypatch.setattr(module, "start", lambda kernel, grid, *_, **__: grids.append(np.prod(grid)))
    for part, args in decode.layer(block, 2000):
        for step in bound(part, block, args, exchange).calls:
            step()
    assert len(grids) >= 16 and max(grids) <= 60_000, grids


@pytest.mark.parametrize(("exchange", "launch_of"), [("explicit", compute_shift), ("elided", elided_kernel)])
def test_nor_has_one_of_meshgemm_on_a_large_mesh(exchange, launch_of, monkeypatch):
    grids = []
    for module in (exchange_kernel, fused, launch_of):
        monkeypatch.setattr(module, "start", lambda kernel, grid, *_, **__: grids.append(np.prod(grid)))
    what = recipe("gemm", Mesh(LARGE, LARGE), "bf16", ((2 * LARGE,) * 2,) * 2, ())
    tiles = {name: torch.zeros(1).bfloat16().expand(LARGE, LARGE, 4) for name in ("a", "b")}
    program = TritonExecutor(exchange=exchange).bind(what.schedule, tiles)
    for step in program.calls:
        step()
    assert len(program.calls) >= (5 if exchange == "explicit" else 1) and max(grids) <= 60_000


def test_meshgemm_on_16_x_16_is_a_few_launches():
    schedule = recipe("gemm", Mesh(16, 16, ROOMY), "bf16", ((16, 16), (16, 16)), ()).schedule
    program = TritonExecutor().bind(schedule, {name: torch.ones(16, 16, 1, 1) for name in "ab"})
    compute_shift = "exchange, 18 steps", "compute-shift, 16 rounds in a launch"
    assert program.launches == ("exchange, 8 steps", "2 x copy", *compute_shift)


def test_messages_along_another_axis_or_of_other_tiles_are_another_launch():
    """A tile that goes on along the same axis is the next step; what depends on nothing goes beside it."""
    b = Builder(Mesh(2, 3), "ways")
    for name, numel in (("x", 4), ("y", 4), ("z", 4), ("w", 6), ("v", 6)):
        b.buffer(name, (numel,), "fp32", "state")
    for axis, src, dst in (("x", "x", "y"), ("x", "w", "v"), ("x", "y", "z"), ("y", "z", "x")):
        b.round(ring_step(b, axis, src, dst))
    schedule = b.build()
    (program,) = agree(schedule, given(schedule), TritonExecutor())
    assert program.launches == ("exchange, 2 steps", "exchange")


def test_a_watch_keeps_no_memory_of_programs_that_are_gone():
    watch, counters = Watch("cpu"), torch.ones(3)
    kept, gone = watch.alarm("kept", 2, [counters], lambda core, round_: round_), ref(counters)
    del counters, kept
    assert gone() is None
    watch.word.fill_((1 << 40) + (2 << 24) + 3)
    with pytest.raises(BackendError, match=r"a program that is gone: core \(3, 0\) gave up .* in round 2,"):
        watch.check()
