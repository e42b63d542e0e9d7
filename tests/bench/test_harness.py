"""The limits and peers of bench/, the counts of its cases, and the check of their results."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

import cases
import limits
import peers
import work
from wafer_triton.algorithms.product import recipe
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate import triton
from wafer_triton.emulate.torch import TorchExecutor

# --- limits ---


@pytest.mark.parametrize("numel", [1000, 4096, 3 * 4096 + 7])
def test_the_copy_kernel_copies_to_and_fro(numel):
    x, y = torch.randint(-9, 9, (numel,), dtype=torch.int32), torch.zeros(numel, dtype=torch.int32)
    kept = x.clone()
    limits.copy_to_and_fro(x, y, 2, 2, 1024)
    assert torch.equal(y, kept) and torch.equal(x, kept)


def test_limits_count_bytes_both_ways_and_multiply_adds_twice(monkeypatch):
    monkeypatch.setattr(limits, "elapsed", lambda device, run: (run(), 0.5)[1])
    monkeypatch.setattr(limits, "COPIED", 2**23)
    monkeypatch.setitem(limits.MATRIX, "cpu", 64)
    limits.bandwidth.cache_clear()
    limits.matrix_rate.cache_clear()
    assert limits.bandwidth("cpu", 2**20) == 8 * 2**20 / 0.5, "8 copies of half a MiB in half a second"
    assert limits.matrix_rate("cpu", torch.float32) == 4 * 2 * 64**3 / 0.5
    limits.bandwidth.cache_clear()
    limits.matrix_rate.cache_clear()


# --- peers ---


def chosen(number):
    """Return a substitute for `fastest` that takes the `number`-th way that the device accepts, modulo their count."""

    def choose(device, runs):
        working = []
        for way, run in enumerate(runs):
            try:
                run()
            except (RuntimeError, TypeError):
                continue
            working.append(way)
        return working[number % len(working)]

    return choose


@pytest.mark.parametrize(("way", "dtype", "side"), [(0, "fp32", 4), (1, "bf16", 5), (-1, "bf16", 4)])
@pytest.mark.parametrize(("op", "shapes"), [("gemm", ((12, 20), (20, 8))), ("gemv", ((3, 20), (20, 28)))])
def test_a_peer_equals_the_torch_executor(op, shapes, side, dtype, way, monkeypatch):
    monkeypatch.setattr(peers, "fastest", chosen(way))
    product = recipe(op, Mesh(side, side), dtype, shapes, ())
    schedule = product.schedule
    tiles = {
        name: torch.randint(-3, 4, (side, side, *schedule.buffers[name].tile)).float() for name, _ in product.inputs
    }
    results, emulation = [], peers.Peer()
    for executor in (TorchExecutor(), emulation):
        program = executor.bind(schedule, tiles)
        program.execute()
        results.append(program.read("out"))
    assert torch.equal(*results) and results[0].any()
    assert sum(emulation.chosen.values()) >= 2, "the product and the moves"


# --- counts of a case ---


def test_launches_of_products_are_those_that_pass_on_sums(monkeypatch):
    monkeypatch.setattr(triton, "MAX_SLOT_BYTES", 3 * 16 * 2 * (2 * 3 + 3 * 4))  # of three rounds
    shape = cases.Shape("gemm", 4, 8, 12, 16, "bf16")
    schedule, given = shape.recipe().schedule, shape.operands("cpu", integers=False)
    for row, launches in (("explicit", 2), ("elided", 1)):
        case = cases.OnMesh(shape, triton.TritonExecutor(exchange=row), *given)
        assert cases.product_launches(row, schedule, case.program) == launches
    assert cases.product_launches("emulation", schedule, None) == 4
    assert cases.product_launches("blas", schedule, None) == 1


def test_every_shifted_tile_is_read_once_and_written_once():
    shape = cases.Shape("gemm", 4, 8, 12, 16, "bf16")
    schedule = shape.recipe().schedule
    a, b = 2 * 3 * 2, 3 * 4 * 2  # bytes of a tile
    # lines 0 to 3 of the ring 0, 2, 3, 1 lie at 0, 3, 1, 2: they move 0, 1, 1 and 2 steps to align; then 4 rounds
    moves = 4 * (0 + 1 + 1 + 2) + 4 * 16
    assert work.exchanged_bytes(schedule) == 2 * moves * (a + b)
    must = work.work(schedule, schedule)
    assert must.exchanged == 2 * moves * (a + b) and must.footprint == 2 * 16 * (a + b)
    assert must.others == 16 * 2 * 4 * 2, "the result; operands count as exchanged"
    assert work.work(schedule, schedule, 3).others - must.others == 2 * 2 * 16 * 2 * 4 * 4, (
        "fp32 sums, stored and loaded"
    )
    still = work.work(schedule, None)
    assert (still.exchanged, still.others) == (0, 16 * (a + b + 2 * 4 * 2))


def test_a_multicast_is_read_once():
    shape = cases.Shape("gemv", 4, 1, 4, 8, "bf16")
    schedule = shape.recipe().schedule
    # a chain from both ends to core 2 of each of 4 lines: 3 messages; then it multicasts down to one and up to two
    tile = 2 * 4
    assert work.exchanged_bytes(schedule) == 4 * tile * (2 * 3 + (1 + 1) + (1 + 2))
    assert work.work(schedule, schedule).others == 16 * 2 * (1 + 2 + 2), "vector, matrix and result, once each"


@pytest.mark.parametrize("row", cases.ROWS)
def test_every_row_is_checked(row):
    shape = cases.Shape("gemm", 3, 5, 6, 7, "bf16")
    on = None if row == "blas" else cases.executor(row, "cpu")
    given = shape.operands("cpu", integers=False)
    case = cases.Plain(*given) if on is None else cases.OnMesh(shape, on, *given)
    assert cases.check(case, shape, "cpu").startswith("exact" if on else "random")

    case.result = lambda result=case.result: result() + 1
    with pytest.raises(AssertionError, match="elements wrong on small integers" if on else "off by"):
        cases.check(case, shape, "cpu")


def test_close_is_as_strict_as_the_dtype():
    reference = torch.tensor([1.0, 100.0], dtype=torch.float64)
    plain = reference.bfloat16()
    cases.close(plain + 0.5, reference, plain, "it")
    for wrong in (plain + 1, plain * float("nan")):
        with pytest.raises(AssertionError, match="it: off by"):
            cases.close(wrong, reference, plain, "it")
