"""Fast forms of local operations against their definitions, and when an operation has none."""

import pytest
import torch
from torch import Tensor

from local_cases import DTYPES, EXACT, GEMMS, ROUNDED, Case, draw, matmul
from wafer_triton import local
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate import torch_local
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.torch_local import FORMS, form
from wafer_triton.errors import ScheduleError
from wafer_triton.local import registry
from wafer_triton.ops.testing import assert_close
from wafer_triton.schedule.builder import Builder

HEADS = [
    matmul(op, *shape, add=add, **more)
    for op in ("gemm", "gemm_t")
    for shape in (
        (1, 6, 5, 6, 3),  # one token, few columns: all heads at once
        (1, 3, 40, 8, 2),  # one token, many columns
        (4, 4, 3, 4, 4),  # rows of 16 bytes; a narrow product is turned
        (7, 4, 12, 3, 1),
    )
    for add in (False, True)
    for more in ({}, {"accumulate": "fp16"})
]


def run(case: Case, which: str, ins: list[Tensor], outs: list[Tensor], wide: torch.dtype) -> list[Tensor]:
    """Return the outputs, rounded to their dtype, of the "fast" form or the "defined" one computing in `wide`."""
    operation = local.find(case.op)
    compute = (lambda *args, **more: form(operation).plan(*args, **more)()) if which == "fast" else operation.run
    results = [out.to(wide, copy=True) for out in outs]
    compute(*results, *(value.to(wide) for value in ins), **case.params)
    return [result.to(out.dtype) for result, out in zip(results, outs, strict=True)]


@pytest.mark.parametrize("case", [*GEMMS, *HEADS, *EXACT], ids=str)
def test_integers_are_exact(case):
    for dtype in DTYPES.values():
        ins, outs = draw(case, dtype, integers=True)
        fast, defined = (run(case, which, ins, outs, torch.float32) for which in ("fast", "defined"))
        assert all(map(torch.equal, fast, defined)), dtype


NARROW = [case for case in [*GEMMS, *HEADS] if case.params.get("accumulate") == "fp16"]
ONCE = [case for case in EXACT if case.op in ("add", "maximum", "copy")]
WIDE = [case for case in [*GEMMS, *HEADS, *EXACT, *ROUNDED] if case not in NARROW]


@pytest.mark.parametrize("case", WIDE, ids=str)
def test_values_are_as_good_as_defined(case):
    ins, outs = draw(case, torch.float32, integers=False)
    fast, plain = (run(case, which, ins, outs, torch.float32) for which in ("fast", "defined"))
    exact = run(case, "defined", ins, [out.double() for out in outs], torch.float64)
    for got, reference, defined in zip(fast, exact, plain, strict=True):
        assert_close(got, reference, "fp32", defined, str(case))


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, torch.float16) for case in NARROW] + [(case, dtype) for case in ONCE for dtype in DTYPES.values()],
    ids=lambda value: str(value).removeprefix("torch."),
)
def test_on_narrow_tiles_torch_rounds_where_a_core_does(case, dtype):
    found = form(local.find(case.op))
    assert found.only_moves or found.takes_16_bits(case.params)
    ins, outs = draw(case, dtype, integers=False)
    for wide in (dtype, torch.float32):
        for fast, defined in zip(
            run(case, "fast", ins, outs, wide), run(case, "defined", ins, outs, torch.float32), strict=True
        ):
            assert torch.equal(fast, defined)


def test_only_where_torch_rounds_like_a_core_may_tiles_be_narrow():
    for name, operation in local.LOCAL_OPS.items():
        assert form(operation).only_moves == (name in ("copy", "lookup"))
        assert form(operation).takes_16_bits({}) == (name in ("add", "maximum"))
        assert not form(operation).takes_16_bits({"accumulate": "fp32"}) or form(operation).takes_16_bits({})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_pure_move_takes_tiles_of_two_dtypes(dtype):
    table, ids = torch.randn(5, 12).to(dtype), torch.tensor([[0.0, 2.0, -1.0]]).expand(5, -1)
    first = torch.zeros(5, 1)
    got, wanted = torch.empty(5, 12, dtype=dtype), torch.empty(5, 12)
    assert form(local.find("lookup")).only_moves
    form(local.find("lookup")).plan(got, table, ids, first, m=3, d=4, v=3)()
    local.find("lookup").run(wanted, table.float(), ids, first, m=3, d=4, v=3)
    assert torch.equal(got.float(), wanted)


@pytest.mark.parametrize("case", [*EXACT, *ROUNDED], ids=str)
def test_a_slot_among_others_gives_the_bits_of_a_tile_alone(case):
    # some functions of torch have another last bit for few numbers of a strided tensor, so that there are many cores
    ins, outs = draw(case, torch.float32, integers=False, cores=48 * 48 if max(case.ins) < 50 else 16)
    results = [[torch.zeros_like(out) for out in outs] for _ in range(2)]
    slots = [torch.cat([value, value], -1)[..., : value.shape[-1]] for value in ins]
    for result, tiles in zip(results, (slots, ins), strict=True):
        form(local.find(case.op)).plan(*result, *tiles, **case.params)()
    for got, wanted in zip(*results, strict=True):
        assert torch.equal(got, wanted)


def test_an_addition_in_place_is_the_same():
    a, b = torch.randn(3, 7), torch.randn(3, 7)
    wanted = a + b
    form(local.find("add")).plan(a, a, b, size=7)()
    assert torch.equal(a, wanted)


def test_every_form_stands_for_a_definition():
    assert FORMS.keys() <= {operation.run for operation in local.LOCAL_OPS.values()}


def test_an_operation_that_is_defined_anew_runs_as_defined(registered):
    def define():
        @registry.local_op(tiles=lambda *, size: ((size,),) * 3, work=lambda *, size: (0, size), elementwise=True)
        def add_torch(out, a, b, *, size):
            out.copy_(a + b + 1)

    with pytest.raises(ScheduleError, match="'add' exists already, in wafer_triton.local.elementwise; give .* another"):
        define()
    del registry.LOCAL_OPS["add"]
    define()

    b = Builder(Mesh(1, 2), "more")
    b.buffer("x", (3,), "bf16", "state")
    b.round(b.local("add", "x", ("x", "x"), size=3))
    program = TorchExecutor().bind(b.build(), {"x": torch.full((1, 2, 3), 2.0)})
    program.run()
    assert program.read("x").eq(5).all()


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_have_one_order_in_memory_wherever_they_lie(transposed):
    whole, apart = torch.randn(2, 3, 20), torch.randn(2, 4, 23)[:, 1:, :20]  # apart: no view merges the cores
    orders = set()
    for tiles in (whole, apart):
        matrices = local.cut(tiles, 4, 5).mT if transposed else local.cut(tiles, 4, 5)
        batch = torch_local._batch(matrices)
        assert torch.equal(batch, matrices.flatten(0, 1))
        orders.add(batch.stride()[1:])
    assert len(orders) == 1
