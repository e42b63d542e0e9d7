"""The kernel of chains and their reduce trees against local operations in order, as tests/kernels judges others."""

import pytest
import torch
from torch import Tensor

from tiles import DEVICE, memory, same_bits, table, tiles
from wafer_triton import local
from wafer_triton.errors import BackendError
from wafer_triton.kernels import Operand, find
from wafer_triton.kernels.chain import Receivers, Stretch, Tree, chain, flags_of
from wafer_triton.kernels.waiting import Alarm

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)

# Two groups, chains from both ends to their roots 1 and 4, then 4 to 1; core 6 alone feeds 4 a third message.
PARENT = [1, -1, 1, 4, 1, 4, 4]
SLOT = [0, -1, 1, 0, 2, 1, 2]
ORDER = [6, 0, 5, 2, 3, 4, 1]


def stretch(acc: Operand, size: int, parts=(), **more) -> Stretch:
    """A stretch that reduces acc over the tree above, in a NaN-filled mailbox."""
    children = [sum(parent == core for parent in PARENT) for core in range(7)]
    mailbox = memory(torch.full((7, 3 * size), float("nan"), dtype=acc.tensor.dtype))
    tree = Tree(acc, mailbox, *map(table, (children, PARENT, SLOT)), slots=3, size=size, **more)
    return Stretch(table(ORDER), flags_of(7, 3, DEVICE), tuple(parts), tree)


def run_chain(*stretches: Stretch, times: int = 1) -> None:
    alarm = Alarm(torch.zeros(1, dtype=torch.int64, device=DEVICE), 1)
    for _ in range(times):
        chain(stretches, alarm)
    assert not any(one.flags.any() for one in stretches) and not alarm.word.any()


def run_tree(acc: Operand, size: int, times: int = 1, parts=(), **params) -> Tensor:
    """Reduce over the tree above; every core's final vector [cores, size]."""
    run_chain(stretch(acc, size, parts, **params), times=times)
    return tiles(acc, size, 7)


def fold(values: Tensor, op: str) -> Tensor:
    """The same reduction as a sequence of local operations, each rounded to the buffer's dtype."""
    values = values.clone()
    for core in ORDER:
        children = sorted((SLOT[child], child) for child in range(7) if PARENT[child] == core)
        for _, child in children:
            total = values[core].float()
            local.find(op).run(total, values[core].float(), values[child].float(), size=total.numel())
            values[core] = total.to(values.dtype)
    return values


@dtypes
@pytest.mark.parametrize("op", ["add", "maximum"])
@pytest.mark.parametrize("size", [1, 35, 1030])
def test_tree_is_a_sequence_of_local_operations(dtype, op, size):
    torch.manual_seed(0)
    values = torch.randn(7, size).to(dtype)
    assert same_bits(run_tree(memory(values), size, op=op), fold(values, op))


def test_tree_leaves_its_flags_ready_for_the_next_launch():
    values = torch.randint(-3, 4, (7, 35)).float()
    assert torch.equal(run_tree(memory(values), 35, times=2), fold(fold(values, "add"), "add"))


def test_tree_refuses_another_operation():
    with pytest.raises(BackendError, match="one of add, maximum, not 'mean'"):
        run_tree(memory(torch.zeros(7, 1)), 1, op="mean")


@pytest.mark.slow
@dtypes
@pytest.mark.parametrize(("m", "accumulate"), [(1, "fp32"), (6, "fp32"), (2, "fp16")])
def test_mesh_gemv_is_one_launch(dtype, m, accumulate):
    torch.manual_seed(0)
    k, n = 5, 35
    params = {"m": m, "k": k, "n": n, "accumulate": accumulate}
    x, w = (torch.randint(-3, 4, (7, numel)).to(dtype) for numel in (m * k, k * n))
    product = torch.zeros(7, m * n)
    local.find("gemm").run(product, x.float(), w.float(), **params)
    acc = memory(torch.full((7, m * n), float("nan"), dtype=dtype))
    got = run_tree(acc, m * n, times=2, parts=[find("gemm").part((acc,), (memory(x), memory(w)), **params)])
    assert same_bits(got, fold(product.to(dtype), "add"))


def everyone(first, count) -> Receivers:
    return Receivers(table(first), table(count), 1)


@pytest.mark.parametrize("size", [5, 1030])
def test_a_root_writes_its_receivers_and_all_go_on(size):
    """An all-reduce, then its double everywhere, then another reduction of that: in one launch."""
    values = torch.randint(-3, 4, (7, size)).float()
    acc, twice = memory(values), memory(torch.full((7, size), float("nan")))
    root = everyone([0] * 7, [7 * (core == 1) for core in range(7)])
    own = everyone(range(7), [1] * 7)
    double = find("add").part((twice,), (acc, acc), size=size)
    first = stretch(acc, size)._replace(receivers=root, sends=((acc, size),))
    second = Stretch(table([3, 1, 0, 2, 6, 5, 4]), flags_of(7, 0, DEVICE), (double,), receivers=own)
    run_chain(first, second, stretch(twice, size))
    total = fold(values, "add")[1]
    assert torch.equal(tiles(acc, size, 7), total.expand(7, size)), "the broadcast"
    assert torch.equal(tiles(twice, size, 7), fold(2 * total.expand(7, size), "add"))


def test_a_root_that_sends_nothing_only_tells():
    values = torch.randint(-3, 4, (7, 3)).float()
    acc, copied = memory(values), memory(torch.zeros(7, 3))
    root = everyone([0] * 7, [7 * (core == 1) for core in range(7)])
    at_root = acc._replace(index=table([1] * 7))
    copy = find("copy").part((copied,), (at_root,), size=3)
    run_chain(stretch(acc, 3)._replace(receivers=root), Stretch(table(range(7)), flags_of(7, 0, DEVICE), (copy,)))
    assert torch.equal(tiles(acc, 3, 7), fold(values, "add"))
    assert torch.equal(tiles(copied, 3, 7), fold(values, "add")[1].expand(7, 3))
