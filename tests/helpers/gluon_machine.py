"""A machine for the Gluon code of `kernels.warp_groups`, which has no interpreter: warp partitions in any order.

The kernel's own source runs, one thread a partition, of which one is on at a time. An asynchronous operation of a
GPU ends as late as it may: a copy by tensor when a partition waits for it, a product and a copy out when they are
waited for. So a slot that is filled, read or overwritten too early gives other values, or NaN. AssertionError if all
partitions wait.
"""

from __future__ import annotations

import random
import re
import threading
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from triton.experimental.gluon._runtime import GluonJITFunction

from wafer_triton.kernels import _common, warp_groups


class Machine:
    """Runs the kernel for one program after another; `order` is a seed."""

    def __init__(self, kernel: GluonJITFunction, order: int) -> None:
        self.random = random.Random(order)
        self.baton = threading.Condition()
        self.on: threading.Thread | None = None
        self.waiting: dict[threading.Thread, Any] = {}
        self.flying: list[tuple[Barrier, Any]] = []  # copies whose end no partition has waited for
        self.leaving = threading.local()
        self.failure: BaseException | None = None
        self.pid = self.programs = 0
        names = dict(vars(warp_groups))
        names |= {
            "BOX": _common.BOX, "block_position": FunctionType(_common.block_position.fn.__code__, {}),
            "gl": self.language(), "mbarrier": self.barriers(), "tma": self.copies(), "hopper": self.hopper(),
        }  # fmt: skip
        for name, value in vars(warp_groups).items():
            if isinstance(value, GluonJITFunction):
                names[name] = FunctionType(value.fn.__code__, names, name)
        self.kernel = FunctionType(kernel.fn.__code__, names)

    def run(self, programs: int, *args: Any) -> None:
        """Run the kernel in `programs` resident programs."""
        self.programs = programs
        for self.pid in range(programs):
            self.kernel(*args)

    def language(self) -> SimpleNamespace:
        return SimpleNamespace(
            constexpr=int, static_range=range, int64="int64", float32=torch.float32, to_tensor=lambda value: value,
            load=lambda at: at.value, where=lambda which, yes, no: yes if which else no, maximum=max,
            arange=lambda first, end, layout: torch.arange(first, end), SliceLayout=lambda *_: None,
            inline_asm_elementwise=self.clear,
            full=lambda shape, value, dtype, layout: torch.full(shape, value, dtype=dtype),
            reshape=torch.reshape, permute=torch.permute, split=lambda block: block.unbind(-1),
            NVMMASharedLayout=lambda *_: None, NVMMADistributedLayout=lambda *_: None,
            program_id=lambda axis: self.pid, num_programs=lambda axis: self.programs,
            allocate_shared_memory=self.allocate, warp_specialize=self.partitions,
        )  # fmt: skip

    def clear(self, asm: str, constraints: str, args: list[torch.Tensor], *_: Any, **__: Any) -> torch.Tensor:
        """Run the one piece of PTX in the kernel."""
        assert re.findall(r"[^;{]+;", asm)[1:] == [" setp.lt.s32 p, $2, 0;", " @p mov.b32 $0, 0;"]
        assert constraints == "=f,0,r", "$0 begins as args[0], and $2 is args[1]"
        return torch.where(args[1] < 0, 0.0, args[0])

    def allocate(self, dtype: Any, shape: list[int], layout: Any) -> Any:
        if dtype == "int64":
            return SimpleNamespace(index=[Barrier() for _ in range(shape[0])].__getitem__)
        return Shared(torch.full(shape, float("nan"), dtype=dtype))

    def hopper(self) -> SimpleNamespace:
        return SimpleNamespace(
            fence_async_shared=lambda: None, warpgroup_mma=self.multiply, warpgroup_mma_wait=self.multiplied
        )

    def barriers(self) -> SimpleNamespace:
        def expect(barrier: Barrier, number: int) -> None:
            barrier.bytes += number
            barrier.arrive()

        return SimpleNamespace(
            MBarrierLayout=lambda: None, init=lambda barrier, count: barrier.init(count), expect=expect, wait=self.wait,
            arrive=lambda barrier, pred=True: barrier.arrive() if pred else None,
        )  # fmt: skip

    def copies(self) -> SimpleNamespace:
        def fetch(source: Matrix, at: list[int], barrier: Barrier, to: Shared) -> None:
            to.values.fill_(float("nan"))  # from now on nothing is there
            self.flying.append((barrier, lambda: barrier.come(to.fill(source.box(at)))))

        def leave(target: Matrix, at: list[int], source: Shared) -> None:
            self.mine().append(lambda: target.put(at, source.values))

        def wait(pending: int) -> None:
            while len(self.mine()) > pending:
                self.mine().pop(0)()

        return SimpleNamespace(async_copy_global_to_shared=fetch, async_copy_shared_to_global=leave, store_wait=wait)

    def mine(self) -> list[Any]:
        """Return the copies out of this partition that may not have been read yet."""
        return self.leaving.__dict__.setdefault("copies", [])

    def multiply(self, a: Shared, b: Shared, total: Any, is_async: bool) -> Any:
        return (*(total if isinstance(total, tuple) else (total,)), (a, b))

    def multiplied(self, pending: int, deps: list[Any]) -> Any:
        total, *products = deps[0] if isinstance(deps[0], tuple) else (deps[0],)
        while len(products) > pending:
            a, b = products.pop(0)
            total = total + a.values.float() @ b.values.float()
        return (total, *products) if products else total

    def partitions(self, work: list[Any], warps: list[int], registers: list[int]) -> None:
        """Run all partitions together: each works until it waits in vain, and then another does."""
        # of 64 Ki over 12 warps; the first partition has as many as the second, and Triton makes four warps of one
        assert warps == [4, 1] and 2 * registers[0].value + registers[1].value <= 64 * 1024 // (12 * 32) // 8 * 8 * 3
        threads = [threading.Thread(target=self.partition, args=one, daemon=True) for one in work]
        self.waiting = dict.fromkeys(threads)
        for thread in threads:
            thread.start()
        with self.baton:
            self.hand_on()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure
        assert not self.flying, "a program ends while copies are in flight"

    def partition(self, function: Any, args: tuple[Any, ...]) -> None:
        me = threading.current_thread()
        try:
            with self.baton:
                self.baton.wait_for(lambda: self.on is me)
            function(*args)
            assert not self.mine(), "a partition ends before its sums are out"
        except BaseException as failure:
            self.failure = self.failure or failure
        with self.baton:
            del self.waiting[me]
            self.hand_on()

    def wait(self, barrier: Barrier, phase: int) -> None:
        me = threading.current_thread()
        while not barrier.passed(phase):
            with self.baton:
                self.waiting[me] = lambda: barrier.passed(phase)
                self.hand_on()
                self.baton.wait_for(lambda: self.on is me)
                self.waiting[me] = None
            if self.failure is not None:
                raise self.failure

    def hand_on(self) -> None:
        """Give the turn to a partition that can go on; if there is none, end a copy."""
        ready = [one for one, until in self.waiting.items() if self.failure or until is None or until()]
        while self.waiting and not ready:
            if not self.flying:
                self.failure, ready = AssertionError("all partitions wait, and no copy is in flight"), [*self.waiting]
                break
            self.flying.pop(self.random.randrange(len(self.flying)))[1]()
            ready = [one for one, until in self.waiting.items() if until is None or until()]
        self.on = self.random.choice(ready) if ready else None
        self.baton.notify_all()


class Barrier:
    """PTX's mbarrier: a phase ends with the expected number of arrivals and of bytes."""

    def init(self, count: int) -> None:
        self.count = self.left = count
        self.bytes = self.phase = 0

    def arrive(self) -> None:
        assert self.left > 0, "more arrive than are counted"
        self.left -= 1
        self.end()

    def come(self, number: int) -> None:
        self.bytes -= number
        self.end()

    def end(self) -> None:
        if self.left == 0 and self.bytes == 0:
            self.left, self.phase = self.count, self.phase + 1

    def passed(self, phase: int) -> bool:
        return self.phase % 2 != phase % 2


class Shared:
    """A view of shared memory."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def index(self, at: int) -> Shared:
        return Shared(self.values[at])

    def slice(self, start: int, length: int, dim: int) -> Shared:
        return Shared(self.values.narrow(dim, start, length))

    def store(self, values: torch.Tensor) -> None:
        self.values.copy_(values)

    def fill(self, values: torch.Tensor) -> int:
        self.values.copy_(values)
        return values.numel() * values.element_size()


class Matrix:
    """A tensor descriptor of `values` [rows, cols]."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values, self.dtype = values, values.dtype

    def box(self, at: list[int]) -> torch.Tensor:
        """Return a box of the tensor, with zeros outside of it."""
        found = torch.zeros(_common.BOX, _common.BOX, dtype=self.dtype)
        if at[0] >= 0:
            part = self.values[at[0] : at[0] + _common.BOX, at[1] : at[1] + _common.BOX]
            found[: part.shape[0], : part.shape[1]] = part
        return found

    def put(self, at: list[int], values: torch.Tensor) -> None:
        self.values[at[0] : at[0] + _common.BOX, at[1] : at[1] + _common.BOX] = values


class At:
    """A pointer to an element of an index table."""

    def __init__(self, table: torch.Tensor, at: int = 0) -> None:
        self.table, self.at = table, at

    def __add__(self, number: int) -> At:
        return At(self.table, self.at + number)

    @property
    def value(self) -> int:
        assert 0 <= self.at < self.table.numel()
        return int(self.table[self.at])
