"""The timed products: a `Shape` is a product on a mesh; a row is one way to compute it, timed beside the others.

A row is a row of the table of results, with a name of `ROWS`. Each writes operands, runs, and returns its result. So
one test checks all: exactly on small integers, and within a bound on random values. The bytes and operations of a row
are counted from its schedule.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from peers import BoundPeer, Peer
from timing import Runs, Timing, is_cuda, sets
from wafer_triton import ops
from wafer_triton.algorithms.product import Recipe, recipe
from wafer_triton.device import PRESETS, Device
from wafer_triton.device.dtype import torch_dtype
from wafer_triton.device.layout import MeshTensor, scatter
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.parts import Launch
from wafer_triton.emulate.program import Program
from wafer_triton.schedule.schedule import Schedule
from work import record, rings, shares, work

PAPER = {"gemm": "MeshGEMM", "gemv": "MeshGEMV"}
WSE2 = PRESETS["wse2"]
# 64 MiB of SRAM a core: large tiles, and tiles of 64 x 64 with double buffers, exceed the SRAM of a WSE-2's core.
ROOMY = replace(WSE2, name="wse2 with 64 MiB a core", sram_bytes=64 * 2**20)
LARGE = 256  # side of a mesh on which a program takes long to plan
EXCHANGES = ("explicit", "elided")
ROWS = (*EXCHANGES, "emulation", "blas")  # "emulation" is the hand-written PyTorch code of `peers.Peer`
LAUNCH_PER_ROUND = "explicit, a launch a round"  # a row for GPUs; "explicit" has windows of rounds
CALLS = {f"public call, {exchange}": exchange for exchange in EXCHANGES}  # scatter, run and gather
# rows that copy tiles in every round: their exchanged bytes count as traffic of the memory
MOVING = ("explicit", LAUNCH_PER_ROUND, "public call, explicit", "emulation")


class UnavailableError(Exception):
    """A row cannot be timed on this machine; the message says why."""


@dataclass(frozen=True)
class Shape:
    """A product [m, k] x [k, n] on side x side cores of the device `emulated`; `rows` are timed at this shape."""

    op: str
    side: int
    m: int
    k: int
    n: int
    dtype: str
    rows: tuple[str, ...] = ROWS
    emulated: Device = ROOMY

    def __str__(self) -> str:
        return f"{self.op} [{self.m}, {self.k}] x [{self.k}, {self.n}] on {self.side} x {self.side} cores, {self.dtype}"

    @property
    def slug(self) -> str:
        return f"{self.op}-{self.m}x{self.k}x{self.n}-on{self.side}-{self.dtype}"

    @property
    def mesh(self) -> Mesh:
        return Mesh(self.side, self.side, self.emulated)

    @property
    def tile(self) -> tuple[int, int]:
        """The tile of the second operand."""
        return -(-self.k // self.side), -(-self.n // self.side)

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n

    def sets(self, device: str) -> int:
        """Return the number of sets of inputs, which runs take in turn.

        It is equal in every row, so that no row finds more operands in the cache.
        """
        numel = self.m * self.k + self.k * self.n + self.m * self.n
        return sets(device, numel * torch_dtype(self.dtype).itemsize, most=32 if self.side <= LARGE else 2)

    def recipe(self) -> Recipe:
        return recipe(self.op, self.mesh, self.dtype, ((self.m, self.k), (self.k, self.n)), ())

    def operands(self, device: str, integers: bool) -> tuple[Tensor, Tensor]:
        """Return both operands on the torch device; sums of the integers are exact in fp32."""
        shapes = (self.m, self.k), (self.k, self.n)
        if integers:
            return tuple(torch.randint(-1, 2, size, device=device).to(torch_dtype(self.dtype)) for size in shapes)  # type: ignore[return-value]
        return tuple(torch.randn(size, device=device).to(torch_dtype(self.dtype)) for size in shapes)  # type: ignore[return-value]


class OnMesh:
    """A product as a program on a mesh."""

    def __init__(self, shape: Shape, executor: Executor | Peer, a: Tensor, b: Tensor) -> None:
        self.recipe = shape.recipe()
        self.program = executor.bind(self.recipe.schedule, self.cut(a, b))

    def cut(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        mesh = self.recipe.schedule.mesh
        pairs = zip(self.recipe.inputs, (a, b), strict=True)
        return {name: scatter(operand, mesh, pattern).tiles for (name, pattern), operand in pairs}

    def write(self, a: Tensor, b: Tensor) -> None:
        for name, tiles in self.cut(a, b).items():
            self.program.write(name, tiles)

    def run(self) -> None:
        self.program.execute()

    def result(self) -> Tensor:
        name, pattern, shape = self.recipe.output
        return MeshTensor(self.recipe.schedule.mesh, self.program.read(name), pattern, shape, {}).gather()

    @property
    def bytes(self) -> int:
        return held(self.program)


class Call:
    """A public operation on torch tensors."""

    def __init__(self, shape: Shape, row: str, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a.clone(), b.clone()
        call = {"gemm": ops.mesh_gemm, "gemv": ops.mesh_gemv}[shape.op]
        self.call = partial(call, self.a, self.b, mesh=shape.mesh, exchange=CALLS[row])

    def write(self, a: Tensor, b: Tensor) -> None:
        self.a.copy_(a)
        self.b.copy_(b)

    def run(self) -> None:
        self.out = self.call()

    def result(self) -> Tensor:
        return self.out

    @property
    def bytes(self) -> int:
        return sum(operand.nbytes for operand in (self.a, self.b, self.out))


class Plain:
    """The product itself by cuBLAS, or by the CPU's BLAS."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a.clone(), b.clone()
        self.out = a.new_empty(a.shape[0], b.shape[1])

    def write(self, a: Tensor, b: Tensor) -> None:
        self.a.copy_(a)
        self.b.copy_(b)

    def run(self) -> None:
        torch.matmul(self.a, self.b, out=self.out)

    def result(self) -> Tensor:
        return self.out

    @property
    def bytes(self) -> int:
        return sum(operand.nbytes for operand in (self.a, self.b, self.out))


def held(program: Program | BoundPeer) -> int:
    """Return the bytes of a program's memory; memory that buffers share counts once."""
    return sum(tensor.nbytes for tensor in {tensor.data_ptr(): tensor for tensor in program.memory.values()}.values())


def executor(row: str, device: str, **options: Any) -> Executor | Peer:
    """Return the executor of a row: the project's backend for the torch device, or `Peer` for "emulation"."""
    if row == "emulation":
        return Peer(device=device)
    if row == LAUNCH_PER_ROUND:
        on = ops.executor(None, "explicit", device, **options)
        on._windows = lambda memory, run: None  # type: ignore[attr-defined]  # an exchange and a product a round
        return on
    return ops.executor(None, row, device, **options)


def time_product(shape: Shape, row: str, device: str) -> Timing:
    """Check a row, time it over rotating inputs, and return its record, with bytes and operations."""
    backend = None if row == "blas" or row in CALLS else executor(row, device)
    cases: list[Any] = []
    for _ in range(shape.sets(device)):
        a, b = shape.operands(device, integers=False)
        if backend is not None:
            cases.append(OnMesh(shape, backend, a, b))
        else:
            cases.append(Call(shape, row, a, b) if row in CALLS else Plain(a, b))
    checked = check(cases[0], shape, device)

    schedule, program = shape.recipe().schedule, getattr(cases[0], "program", None)
    facts = {
        "what": "plain product" if row == "blas" else f"mesh_{shape.op}" if row in CALLS else PAPER[shape.op],
        "mesh": f"{shape.side}x{shape.side}", "tile": "x".join(map(str, shape.tile)), "dtype": shape.dtype,
        "rounds": None if row == "blas" else len(schedule.rounds),
        "shape": [shape.m, shape.k, shape.n], "cores": shape.side**2, "emulated_device": shape.emulated.name,
        "sets": len(cases), "rotated_bytes": (rotated := len(cases) * cases[0].bytes), "checked": checked,
        **ways(backend, program),
    }  # fmt: skip
    times = yield Runs([case.run for case in cases], graph=row not in CALLS)
    must = work(schedule, schedule if row in MOVING else None, product_launches(row, schedule, program))
    facts |= shares(times.seconds, device, shape.dtype, shape.flops, must, rotated)
    return record(shape, row, times, {name: fact for name, fact in facts.items() if fact is not None})


def product_launches(row: str, schedule: Schedule, program: Any) -> int:
    """Return how many launches multiply the tiles of all rounds, one after the other."""
    if row in ("emulation", LAUNCH_PER_ROUND):
        return max(1, sum(ring.count for ring in rings(schedule)))
    calls = getattr(program, "calls", ())
    return max(1, sum(isinstance(call, Launch) and call.what.startswith("compute-shift") for call in calls))


def ways(executor: Executor | Peer | None, program: Program | None) -> dict[str, Any]:
    """Return a fact for the record: the launches of one run, or the operations of PyTorch that a `Peer` chose."""
    if isinstance(executor, Peer):
        return {"ways": executor.chosen}
    launches = getattr(program, "launches", None)
    return {} if not launches else {"launches": list(launches)}


def check(case: Any, shape: Shape, device: str) -> str:
    """Assert that a row computes its product: exactly on integers, and within a derived bound on random values.

    BLAS is tried on random values alone, since it may split K and round the partial sums.
    """
    for integers in (False,) if isinstance(case, Plain) else (True, False):
        a, b = shape.operands(device, integers)
        case.write(a, b)
        case.run()
        got = case.result()
        if integers:
            exact = (a.float() @ b.float()).to(got.dtype)
            assert torch.equal(got, exact), f"{shape}: {int((got != exact).sum())} elements wrong on small integers"
        else:
            close(got, a.double() @ b.double(), a @ b, str(shape))
    return f"{'' if isinstance(case, Plain) else 'exact on small integers; '}random values within bound of fp64"


def close(got: Tensor, reference: Tensor, plain: Tensor, what: str) -> None:
    """Assert |got - reference| <= 2 max|plain - reference| + eps max|reference|, as `wafer_triton.ops.testing` does.

    `reference` is fp64 and `plain` PyTorch's own result in the dtype of `got`; all stays on the device.
    """
    assert reference.dtype == torch.float64 and got.shape == reference.shape
    bound = 2 * (plain.double() - reference).abs().max() + torch.finfo(got.dtype).eps * reference.abs().max()
    error = (got.double() - reference).abs().max()
    assert bool(error <= bound), f"{what}: off by {error.item():.3g}, {bound.item():.3g} allowed"  # NaN fails, too


def squares(op: str, dtype: str, pairs: Sequence[tuple[int, int]], **options: Any) -> list[Shape]:
    """Return square products for pairs of (side of the mesh, side of a tile)."""
    return [Shape(op, side, *([side * tile] * 3), dtype, **options) for side, tile in pairs]


def free(device: str) -> None:
    """Free the memory of the last case."""
    gc.collect()
    if is_cuda(device):
        torch.cuda.empty_cache()
