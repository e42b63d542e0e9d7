"""The kernel of reduce trees against local operations in order, as tests/kernels judges others."""

from functools import partial

import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder

from local_cases import DTYPES
from tiles import DEVICE, memory, same_bits, table, tiles
from wafer_triton import local
from wafer_triton.errors import BackendError
from wafer_triton.kernels import Operand, find
from wafer_triton.kernels.fused import Grid
from wafer_triton.kernels.tree import Receivers, TreeTables, reduce_tree
from wafer_triton.kernels.waiting import EMPTY, Alarm, Watch

dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)

# Two groups, chains from both ends to their roots 1 and 4, then 4 to 1; core 6 alone feeds 4 a third message.
PARENT = [1, -1, 1, 4, 1, 4, 4]
SLOT = [0, -1, 1, 0, 2, 1, 2]
ORDER = [6, 0, 5, 2, 3, 4, 1]


def tree_of(acc: Operand, size: int, order: list[int] = ORDER, **more) -> TreeTables:
    """Return the tables of the tree of PARENT, SLOT and `order`, with a mailbox that holds no message."""
    children = [sum(parent == core for parent in PARENT) for core in range(7)]
    bits = torch.int32 if acc.tensor.dtype.itemsize == 4 else torch.int16
    mailbox = Operand(torch.full((7 * 3 * size,), EMPTY.value, dtype=bits, device=DEVICE), 0, 3 * size)
    tables = map(table, (order, children, PARENT, [max(slot, 0) for slot in SLOT]))
    return TreeTables(acc, mailbox, *tables, slots=3, size=size, **more)


def run_tree(
    acc: Operand, size: int, times: int = 1, ops=(), loops: int = 1, broadcast: bool = False, **more
) -> Tensor:
    """Reduce over the tree above; every core's final vector [cores, size]."""
    tree, alarm = tree_of(acc, size, **more), Alarm(torch.zeros(1, dtype=torch.int64, device=DEVICE), 1)
    receivers = Receivers(acc, table([0] * 7), table([7 * (core == 1) for core in range(7)]), 1) if broadcast else None
    for _ in range(times):
        reduce_tree(tree, ops, alarm, receivers, grid=Grid(1, loops))
    assert tree.mailbox.tensor.eq(EMPTY.value).all() and not alarm.word.any()
    return tiles(acc, size, 7)


def fold(values: Tensor, op: str) -> Tensor:
    """Return the same reduction by a sequence of local operations, each rounded to the buffer's dtype."""
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


@pytest.mark.parametrize("loops", [1, 3, 7])
def test_a_program_may_be_several_cores_one_after_another(loops):
    values = torch.randn(7, 35)
    assert same_bits(run_tree(memory(values), 35, loops=loops), fold(values, "add"))


def test_tree_leaves_its_mailbox_ready_for_the_next_launch():
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
    got = run_tree(acc, m * n, times=2, ops=[find("gemm").fused((acc,), (memory(x), memory(w)), **params)])
    assert same_bits(got, fold(product.to(dtype), "add"))


@pytest.mark.parametrize("size", [5, 1030])
def test_a_root_broadcasts_its_sum(size):
    values = torch.randint(-3, 4, (7, size)).float()
    got = run_tree(memory(values), size, broadcast=True)
    assert torch.equal(got, fold(values, "add")[1].expand(7, size))


@dtypes
def test_a_sum_with_the_bits_of_an_empty_mailbox_arrives_as_another_nan(dtype):
    values = torch.ones(7, 5, dtype=dtype)
    values.view(torch.int32 if dtype == torch.float32 else torch.int16)[0, 2] = EMPTY.value
    got = run_tree(memory(values), 5)
    assert got[1].isnan().tolist() == [False, False, True, False, False] and not got[2:].isnan().any()


def test_a_core_whose_message_does_not_come_gives_up_and_all_is_ready_to_run_again(monkeypatch):
    """On a GPU that begins programs in the wrong order, here core 4 before 3."""
    watch, acc, polls = Watch(DEVICE), memory(torch.ones(7, 5)), []
    load = InterpreterBuilder.create_masked_load
    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", lambda *args: polls.append(1) or load(*args))
    tree = tree_of(acc, 5, [6, 0, 5, 2, 4, 3, 1])
    alarm = watch.alarm(
        "a tree", 2, partial(tree.mailbox.tensor.fill_, EMPTY.value), lambda core, slot: 10 * core + slot
    )
    for least, most in ((2048, 2200), (1024, 1200)):  # who comes after one that gave up waits for less long
        polls.clear()
        tree.mailbox.tensor.fill_(EMPTY.value)
        reduce_tree(tree, (), alarm)
        assert least <= len(polls) < most
    with pytest.raises(BackendError, match=r"a tree: core \(2, 0\) gave up waiting .* in round 40, .*run again"):
        watch.check()
    assert tree.mailbox.tensor.eq(EMPTY.value).all()
    acc.tensor.fill_(1)
    reduce_tree(tree._replace(order=table(ORDER)), (), alarm)
    watch.check()
    assert (tiles(acc, 5, 7) == fold(torch.ones(7, 5), "add")).all()
