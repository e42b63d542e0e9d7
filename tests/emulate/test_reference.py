"""The reference executor by hand on small schedules; and the fast executors against it on schedules of every kind."""

import numpy as np
import pytest
import torch
from torch import Tensor

from schedules import LAYERS, MOVES, SUMS, agree, build, given
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.planner import EXCHANGES
from wafer_triton.emulate.reference import Reference
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.ops.testing import assert_close
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Slot
from wafer_triton.schedule.schedule import Schedule

# --- the definition ---


def line(*tiles: float) -> Tensor:
    """Return one element on each core of a 1 x n mesh."""
    return torch.tensor(tiles).view(1, -1, 1)


def ran(schedule: Schedule, tensors: dict[str, Tensor], **options) -> Reference:
    machine = Reference(schedule, tensors, **options)
    machine.run()
    return machine


def test_all_that_a_round_sends_is_read_before_anything_arrives():
    b = Builder(Mesh(1, 4), "ring in place")
    b.buffer("a", (1,), "fp32", "state")
    b.round(b.exchange("x", "a", "a", [3, 0, 1, 2], [0, 1, 2, 3]))
    assert ran(b.build(draft=True), {"a": line(1, 2, 3, 4)}).read("a").flatten().tolist() == [4, 1, 2, 3]


def test_local_operations_read_arrivals_and_earlier_results():
    b = Builder(Mesh(1, 3), "order")
    for name in ("a", "b", "c"):
        b.buffer(name, (1,), "fp32", "state")
    b.round(
        b.local("add", "c", ("a", "b"), size=1),
        b.local("add", "c", ("c", "c"), Cores("x", np.array([1])), size=1),
        b.exchange("x", "a", "b", 0, [0, 2]),
    )
    machine = ran(b.build(), {"a": line(1, 2, 3), "b": line(10, 20, 30), "c": line(0, 0, 0)})
    assert machine.read("b").flatten().tolist() == [1, 20, 1]
    assert machine.read("c").flatten().tolist() == [2, 44, 4]


def test_lines_positions_and_slots_are_those_that_are_named():
    b = Builder(Mesh(2, 3), "slots")
    b.buffer("a", (1,), "fp32", "state", 2)
    b.buffer("b", (1,), "fp32", "weight")
    b.round(b.exchange("x", Slot("a", np.array([0, 1, 1]), "x"), "b", [[0, 2], [1, -1]], [[1, 0], [2, -1]]))
    b.round(b.local("copy", Slot("a", None), "b", Cores("y", np.array([1]), np.array([0])), size=1))
    tiles = torch.arange(12.0).view(2, 3, 2)
    machine = ran(b.build(), {"a": tiles, "b": torch.full((2, 3, 1), -1.0)})
    assert machine.read("b").flatten().tolist() == [5, 0, -1, -1, -1, 9]
    tiles[1, 0, 0] = -1
    assert torch.equal(machine.read("a").view(2, 3, 2), tiles)


def test_written_values_are_rounded_and_unwritten_values_are_nan():
    b = Builder(Mesh(1, 1), "rounding")
    for name, dtype, role in (("x", "fp32", "input"), ("y", "fp16", "output"), ("z", "bf16", "output")):
        b.buffer(name, (2,), dtype, role)
    b.round(b.local("add", "y", ("x", "x"), size=2))
    tensors = {"x": torch.tensor([[[1 / 3, 70000.0]]])}
    machine = ran(b.build(), tensors)
    assert torch.equal(machine.read("y"), (tensors["x"] * 2).half()) and machine.read("z").isnan().all()
    assert ran(b.build(), tensors, poison=False).read("z").eq(0).all()
    exact = ran(b.build(), tensors, exact=True).read("y")
    assert torch.equal(exact, 2 * tensors["x"].double())


def test_rounds_are_run_up_to_any_of_them():
    b = Builder(Mesh(1, 2), "some")
    b.buffer("x", (1,), "fp32", "state")
    for _ in range(4):
        b.round(b.local("add", "x", ("x", "x"), size=1))
    machine = Reference(b.build(), {"x": line(1, 3)})
    for until, wanted in ((0, [1, 3]), (1, [2, 6]), (3, [8, 24]), (None, [16, 48])):
        machine.run(until)
        assert machine.read("x").flatten().tolist() == wanted


# --- the fast executors ---


def slow(*values: str) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


# The mesh orders rounds, and dtypes round sums.
CASES = [("1", "fp32"), ("1x4", "fp32"), ("1x4", "bf16"), slow("2x3", "fp16"), slow("5", "bf16"), slow("4", "fp32")]
in_dtypes = pytest.mark.parametrize(("mesh", "dtype"), CASES)


def identical(got: Tensor, wanted: Tensor, name: str = "") -> None:
    """Assert that values are equal, NaN where NaN is."""
    torch.testing.assert_close(got.cpu(), wanted, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{name}: {text}")


def results(schedule: Schedule) -> list[str]:
    return [name for name, buffer in schedule.buffers.items() if buffer.kept]


def assert_as_good(schedule: Schedule, machine: Reference, tensors: dict[str, Tensor], *executors: Executor) -> None:
    """Assert that the executors' values have the same bits, and are as near to exact values as the reference's are."""
    exact, programs = ran(schedule, tensors, exact=True), [executor.bind(schedule, tensors) for executor in executors]
    for program in programs:
        program.run()
    for name in results(schedule):
        one, *others = (program.read(name).cpu() for program in programs)
        assert_close(one, exact.read(name), schedule.buffers[name].dtype, machine.read(name), name)
        for other in others:
            identical(other, one, name)


def both() -> list[Executor]:
    return [TorchExecutor(exchange=exchange, poison=True) for exchange in EXCHANGES]


@in_dtypes
@pytest.mark.parametrize("kind", SUMS)
def test_torch_adds_integers_exactly(kind, mesh, dtype):
    schedule = build(SUMS[kind], mesh, dtype)
    first, _ = agree(schedule, given(schedule, integers=True), *both())
    assert all(first.read(name).isfinite().all() for name in results(schedule))


@in_dtypes
@pytest.mark.parametrize("kind", MOVES)
def test_torch_adds_in_the_order_of_the_rounds(kind, mesh, dtype):
    schedule = build(MOVES[kind], mesh, dtype)
    first, _ = agree(schedule, given(schedule), *both())
    assert kind == "collectives" or all(first.read(name).isfinite().all() for name in results(schedule))


@pytest.mark.parametrize("mesh", ["1x4", slow("2x3"), slow("4")])
@pytest.mark.parametrize("kind", SUMS)
def test_torch_accumulates_in_fp16_bit_by_bit(kind, mesh):
    schedule = build(SUMS[kind], mesh, "fp16", "fp16")
    agree(schedule, given(schedule), *both())


@pytest.mark.parametrize(("mesh", "dtype"), [("1x4", "bf16"), slow("2x3", "fp32"), slow("3", "fp16")])
@pytest.mark.parametrize("kind", LAYERS)
def test_torch_is_as_good_as_the_reference(kind, mesh, dtype):
    schedule = build(LAYERS[kind], mesh, dtype)
    tensors = given(schedule)
    machine = ran(schedule, tensors)
    assert all(machine.read(name).isfinite().all() for name in results(schedule) if name != "att")
    assert_as_good(schedule, machine, tensors, *both())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "mesh"), [(kind, "3") for kind in [*SUMS, *MOVES]] + [(kind, "1x2") for kind in MOVES]
)
def test_triton_adds_integers_exactly_in_any_order_of_cores(kind, mesh):
    schedule = build((SUMS | MOVES)[kind], mesh, "fp32")
    orders = zip(EXCHANGES, (None, 1), strict=True)
    executors = (TritonExecutor(exchange=exchange, poison=True, shuffle=seed) for exchange, seed in orders)
    agree(schedule, given(schedule, integers=True), *executors)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["1x2", "3"])
@pytest.mark.parametrize("kind", ["gemm-mesh", "gemm-t-mesh", "gemm-summa", "gemv-ktree-y"])
def test_triton_accumulates_in_fp16_bit_by_bit(kind, mesh):
    schedule = build(SUMS[kind], mesh, "fp16", "fp16")
    agree(schedule, given(schedule), TritonExecutor(poison=True))


# A prompt's attention takes the interpreter seconds; tests/models/test_triton_decoder.py has it.
SMALL = [kind for kind in LAYERS if not kind.startswith("prefill-attention")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SMALL)
def test_triton_is_as_good_as_the_reference_in_any_order_of_cores(kind):
    schedule = build(LAYERS[kind], "2", "bf16")
    tensors = given(schedule)
    orders = zip(EXCHANGES, (None, 1), strict=True)
    executors = (TritonExecutor(exchange=exchange, poison=True, shuffle=seed) for exchange, seed in orders)
    assert_as_good(schedule, ran(schedule, tensors), tensors, *executors)
