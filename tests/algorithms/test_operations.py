"""The rules of local operations: each schedule breaks one; the message names the rule, the place and the fault."""

import re

import numpy as np
import pytest
import torch

from refusals import builder, refused
from wafer_triton import check, executor, price
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.reference import Reference
from wafer_triton.errors import ScheduleError
from wafer_triton.local import registry
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Cores, Slot


def local(outs, ins, where=None, op="copy", **params):
    return lambda b: b.local(op, outs, ins, where, **({"size": 4} | params))


LOCALS = {
    "undeclared-output": (local("z", "a"), "buffer 'z' is not declared; declared: a, b, c, two, half, long"),
    "undeclared-input": (local("a", "z"), "buffer 'z' is not declared; declared: a, b, c, two, half, long"),
    "slot": (local("a", Slot("two", 5)), "slot 5..5 of 'two' does not exist; it has 2"),
    "too-many-outputs": (local(("a", "b"), "c"), "copy writes 1 and reads 1 slots (out of a), not 2 and 1"),
    "too-few-inputs": (local("a", "b", op="add"), "add writes 1 and reads 2 slots (out of a, b), not 1 and 1"),
    "unknown-parameter": (local("a", "b", sise=4), "copy has no parameter 'sise'; copy takes size"),
    "fractional-size": (local("a", "b", size=2.5), "copy: size = 2.5 must be a whole number of at least 0"),
    "negative-size": (local("a", "b", size=-1), "copy: size = -1 must be a whole number of at least 0"),
    "too-long": (
        local("a", "b", size=9),
        "copy: operand out is a[0] with 4 elements, but by size=9 it is [9], 9 elements; give a larger buffer, or "
        "other sizes",
    ),
}
GEMM = {"m": 2, "k": 2, "n": 2}
TYPED = {
    "writes-what-it-reads": ("gemm", "a", ("a", "b"), GEMM, "gemm writes a[0], which it reads"),
    "missing": (
        "gemm", "a", ("b", "c"), {"m": 1, "n": 4},
        "gemm lacks its parameter 'k'; gemm takes m, k, n, heads, kv_heads, add, accumulate"),
    "reads-past-its-tile": (
        "gemm", "a", ("b", "c"), {"m": 1, "k": 4, "n": 40},
        "gemm: operand c is a[0] with 4 elements, but by m=1, k=4, n=40 it is [1, 1, 40], 40 elements; give a larger "
        "buffer, or other sizes"),
    "a-number-for-a-flag": ("gemm", "a", ("b", "c"), GEMM | {"add": 1}, "gemm: add = 1 must be True or False"),
    "not-a-number": (
        "row_max", "a", ("b", "c"), {"heads": 1, "m": 4, "n": 1, "scale": float("nan")},
        "row_max: scale = nan must be a finite number"),
    "a-string": ("gemm", "a", ("b", "c"), GEMM | {"accumulate": 16}, "gemm: accumulate = 16 must be a string"),
    "dtype": (
        "lookup", "a", ("b", "half", "b"), {"m": 4, "d": 1, "v": 4},
        "lookup: operand ids is half[0] in fp16, but it must be in fp32"),
}  # fmt: skip


@pytest.mark.parametrize(("op", "outs", "ins", "params", "message"), TYPED.values(), ids=TYPED)
def test_operations_are_typed(op, outs, ins, params, message):
    b = builder()
    refused(b, b.local(op, outs, ins, **params), message=message)


def test_an_operation_of_ones_own_is_typed_too(registered):
    @registry.local_op(tiles=lambda *, size: ((size,), (1,)), work=lambda *, size: (0, size))
    def fill_torch(out, value, *, size):
        out.copy_(value.expand_as(out))

    b = builder()
    message = "fill: operand value is b[0] with 4 elements, but by size=4 it is [1], 1 elements; "
    refused(
        b, b.local("fill", "a", "b", size=4), message=f"{message}copy the part to a buffer of its own, or other sizes"
    )


ONES = {name: torch.ones(2, 3, 4) for name in ("a", "b", "c")}
FINE = {"tiles": lambda *, size: ((size,),) * 2, "work": lambda *, size: (0, size)}


def one(op):
    """Return a schedule of one operation, from a to c."""
    b = builder()
    b.round(b.local(op, "c", "a", size=4))
    return b.build()


def test_a_definition_names_its_operands(registered):
    for run in (lambda *tiles, size: None, lambda out, a, **params: None):
        with pytest.raises(ScheduleError, match="takes any number of arguments; name each operand and each parameter"):
            registry.local_op(**FINE)(run)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"tiles": lambda *, n: ((n,),) * 2}, r"fill: `tiles` does not take the parameters \(.*\)"),
        ({"work": lambda: (0, 0)}, "fill: `work` does not take the parameters"),
        ({"reads": {"a": lambda *, size: None}}, "fill: `reads of a` returns None; give the elements that are read"),
        ({"product": lambda *, size: (1, 2, 3)}, r"fill: `product` returns \(1, 2, 3\); give m, k, n and heads, at"),
        ({"product": lambda *, size: (-1, 2, 3, 1)}, r"fill: `product` returns \(-1, 2, 3, 1\)"),
    ],
    ids=["tiles", "work", "reads", "three", "negative"],
)
def test_functions_of_an_operation_are_checked(registered, part, message):
    @registry.local_op(**FINE | part)
    def fill(out, a, *, size):
        out.copy_(a)

    with pytest.raises(ScheduleError, match=message):
        one("fill")


def test_an_operation_that_returns_its_result_is_refused(registered):
    @registry.local_op(**FINE)
    def twice(out, a, *, size):
        return 2 * a

    program = executor("torch").bind(one("twice"), ONES)
    with pytest.raises(ScheduleError, match=r"'twice' returns a Tensor and writes no output; write it into out, as"):
        program.run()


@pytest.mark.parametrize("run", [lambda out, a, *, size: out.set_(a), lambda out, a, *, size: out.resize_(1)])
def test_an_operation_keeps_the_memory_of_its_outputs(registered, run):
    run.__name__ = "moved"
    registry.local_op(**FINE)(run)
    program = executor("torch").bind(one("moved"), ONES)
    with pytest.raises(ScheduleError, match="'moved' resizes or replaces an output; write into it by copy_"):
        program.run()


def writes_all(out, a, *, size):
    a.zero_()
    out.copy_(a)


def writes_a_part(out, a, *, size):
    out.copy_(a)
    a.view(-1)[:1].add_(1)


def writes_by_out(out, a, *, size):
    torch.mul(out, 2, out=a)


def writes_data(out, a, *, size):
    out.copy_(a)
    a.data.add_(1)


def writes_an_array(out, a, *, size):
    a.numpy()[:] = 0
    out.copy_(a)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("run", [writes_all, writes_a_part, writes_by_out, writes_data, writes_an_array])
def test_an_operation_of_ones_own_writes_outputs_alone(registered, run, inference):
    registry.local_op(**FINE)(run)
    made = one(run.__name__)
    message = f"'{run.__name__}' writes into its input a, which it may only read; compute on a copy, a.clone()"
    for use in (executor("torch").bind(made, ONES), Reference(made, ONES)):
        with pytest.raises(ScheduleError, match=re.escape(message)), torch.inference_mode(inference):
            use.run()
    (found,) = check(made).findings
    assert (found.verdict, found.round) == ("overwritten", 0) and message in found.message


def test_an_operation_defined_again_is_priced_anew(registered):

    def made(work):
        @registry.local_op(tiles=lambda *, size: ((size,),) * 2, work=lambda *, size: (0, work * size))
        def twice_defined(out, a, *, size):
            out.copy_(a)

        return one("twice_defined")

    before = made(1)
    cycles = price(before).cycles
    after = made(1000)
    assert price(after).cycles == price(before).cycles > 100 * cycles


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((writes_all, {}), r"@local_op: `tiles` and `work` missing; write @local_op\(tiles=..., work=...\)"),
        ((None, {}), "@local_op: `tiles` and `work` missing"),
        ((None, FINE | {"reads": {"out": len}}), "`reads` has 'out'; give a dict by the names a$"),
        ((None, FINE | {"reads": [1]}), "`reads` has a list; give a dict by the names a$"),
        ((None, FINE | {"dtypes": {"z": ("fp16",)}}), "`dtypes` has 'z'; give a dict by the names out, a$"),
        ((None, FINE | {"dtypes": {"a": ("fp33",)}}), "`dtypes` has 'fp33'; give some of fp32, "),
        (
            (None, {"tiles": len, "work": len, "outs": 3}),
            "outs = 3 must be the number of operands that it writes, of out",
        ),
    ],
    ids=["bare", "empty", "read", "list", "operand", "dtype", "outs"],
)
def test_a_registration_that_lacks_a_part_is_refused(given, message):
    run, named = given
    with pytest.raises(ScheduleError, match=message):
        registry.local_op(run, **named)(writes_all)


@pytest.mark.parametrize(("make", "message"), LOCALS.values(), ids=LOCALS)
def test_local_operations(make, message):
    b = builder()
    refused(b, make(b), message=message)


@pytest.mark.parametrize(
    ("out", "read", "op", "more", "params"),
    [
        (0, np.array([0, 1, 1]), "gemm", ("a",), GEMM),
        (np.array([0, 1, 1]), 0, "gemm", ("a",), GEMM),
        (np.array([0, 1, 0]), np.array([1, 1, 1]), "gemm", ("a",), GEMM),
        (None, 1, "lookup", ("ids", "first"), {"m": 2, "d": 4, "v": 1}),
        (1, None, "silu_mul", (), {"m": 2, "n": 2}),
    ],
    ids=["slot-and-slots", "slots-and-slot", "slots-and-slots", "whole-and-slot", "slot-and-whole"],
)
def test_a_slot_that_some_core_reads_is_not_written(out, read, op, more, params):
    b = builder()
    b.buffer("ids", (2,), "fp32")
    b.buffer("first", (1,), "fp32")
    b.round(b.local(op, Slot("two", out), (Slot("two", read), *more), **params))
    with pytest.raises(ScheduleError, match=rf"{op} writes two.*, which it reads"):
        b.build()


def test_an_elementwise_operation_may_overwrite_its_input():
    b = builder()
    b.round(b.local("add", "a", ("a", "b"), size=4))
    assert b.build()


def test_an_operation_may_write_another_slot_of_its_input_buffer():
    b = builder()
    b.round(b.local("gemm", Slot("two", 0), (Slot("two", 1), "a"), **GEMM))
    assert b.build()


@pytest.mark.parametrize(
    "where",
    [
        Cores("x", np.array([3])),
        Cores("x", np.array([-1])),
        Cores("x", np.array([0]), np.array([2])),
        Cores("y", np.array([2])),
        Cores("x", np.array([[0], [3]])),
    ],
    ids=["column", "negative", "line", "row", "one-of-the-lines"],
)
def test_an_operation_off_the_mesh_is_refused(where):
    b = builder()
    b.round(b.local("copy", "a", "b", where, size=4))
    with pytest.raises(ScheduleError, match="off the mesh"):
        b.build()


@pytest.mark.parametrize("op", ["add", "maximum"])
def test_sums_of_parts_of_tiles_are_refused(op):
    b = Builder(Mesh(1, 2), "part")
    b.buffer("x", (6,), "fp32", "state")
    b.buffer("y", (4,), "fp32", "state")
    b.round(b.local(op, "x", ("x", "y"), size=4))
    words = rf"{op}: operand out is x.0. with 6 elements, but by size=4 it is .*; copy the part to a buffer of its own"
    with pytest.raises(ScheduleError, match=words):
        b.build()
