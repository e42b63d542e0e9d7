"""The Triton executor: one program instance is one core, one launch a round, mailboxes in global memory.

Two kinds of rounds share a launch. A compute-shift round copies its tiles to the neighbours' second buffers while it
multiplies them. The rounds of a reduce tree run as one launch in topological order: programs wait only for lower ones,
so any mesh is safe. Both follow from the rounds alone; a kernel sees pointers, tables and sizes, never a schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from wafer_triton.dtype import torch_dtype
from wafer_triton.errors import BackendError
from wafer_triton.executor import Executor, Memory, Place, Step
from wafer_triton.kernels import table
from wafer_triton.kernels._common import INTERPRET, Operand
from wafer_triton.kernels.exchange import exchange as exchange_kernel
from wafer_triton.kernels.gemm import compute_shift
from wafer_triton.kernels.tree import COMBINE, tree
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.rounds import Buffer, Exchange, Index, Local, Round, Schedule, Slot


class TritonExecutor(Executor):
    """Runs schedules on a CUDA device, or on the CPU under TRITON_INTERPRET=1 (small meshes).

    `shuffle` is a seed for the order of the cores in every launch, to show that it does not matter. Raises
    BackendError where Triton cannot run.
    """

    def __init__(
        self,
        *,
        device: str | None = None,
        exchange: str = "explicit",
        poison: bool = False,
        shuffle: int | None = None,
    ) -> None:
        super().__init__(exchange=exchange, poison=poison)
        interpreted = bool(INTERPRET.value)
        self._device = device or ("cpu" if interpreted else "cuda")
        if torch.device(self._device).type == "cpu" and not interpreted:
            raise BackendError("the Triton backend runs on a CPU only under TRITON_INTERPRET=1; set it, or use torch")
        if torch.device(self._device).type != "cpu" and not torch.cuda.is_available():
            raise BackendError("the Triton backend found no GPU; use backend='torch', or set TRITON_INTERPRET=1")
        self._random = None if shuffle is None else np.random.default_rng(shuffle)

    @property
    def device(self) -> str:
        return self._device

    def storage(self, buffer: Buffer) -> torch.dtype:
        return torch_dtype(buffer.dtype)

    def move(self, memory: Memory, exchange: Exchange, src: Place) -> Step:
        order = self._order(exchange.recv.size and len(exchange.receivers.flat(memory.mesh)))
        recv = self._table(exchange.receivers.flat(memory.mesh)[order])
        send = self._table(exchange.senders.flat(memory.mesh)[order])
        target, source = self._operand(memory, Place(exchange.dst)), self._operand(memory, src)
        numel = memory.buffers[exchange.src.buffer].numel
        return lambda: exchange_kernel(target, source, recv, send, numel)

    def compute(self, memory: Memory, op: Local, ins: tuple[Place, ...]) -> Step:
        launch = table.find(op.op)
        outs = tuple(self._operand(memory, Place(out)) for out in op.outs)
        reads = tuple(self._operand(memory, place) for place in ins)
        cores, params = self._cores(memory.mesh, op), dict(op.params)
        return lambda: launch(outs, reads, cores, **params)

    def fuse(self, memory: Memory, schedule: Schedule, rounds: tuple[Round, ...]) -> tuple[int, Step] | None:
        """One launch for a reduce tree, and for the product before it if there is one."""
        product = _lone_product(rounds[0])
        found = _reduction(rounds[int(product is not None) :], memory.mesh)
        if found is None or (product is not None and product.outs[0].buffer != found.acc):
            return None
        if not found.inboxes <= _mailboxes(schedule):
            return None
        return found.rounds + int(product is not None), self._tree(memory, found, product)

    def round(self, memory: Memory, round_: Round) -> list[Step]:
        sends = _sends(round_, memory.mesh)
        if sends is None:
            return super().round(memory, round_)
        (op,) = round_.locals
        out, a, b = (self._operand(memory, Place(slot)) for slot in (*op.outs, *op.ins))
        following: list[Operand | None] = [None, None]
        for number, exchange in sends.items():
            rows = np.empty(memory.mesh.cores, np.int64)
            rows[exchange.senders.flat(memory.mesh)] = exchange.receivers.flat(memory.mesh)
            target = self._operand(memory, Place(exchange.dst))
            following[number] = target._replace(index=self._table(rows))
        cores, params = self._cores(memory.mesh, op), dict(op.params)
        return [lambda: compute_shift(out, a, b, following[0], following[1], cores, **params)]

    def _tree(self, memory: Memory, found: _Tree, product: Local | None) -> Step:
        acc = self._operand(memory, Place(Slot(found.acc)))
        numel = memory.buffers[found.acc].numel
        cores, slots = memory.mesh.cores, int(found.children.max())
        poison = float("nan") if self.poison else 0.0
        mailbox = torch.full((cores, slots, numel), poison, dtype=acc.tensor.dtype, device=self.device)
        flags = torch.zeros((cores, slots), dtype=torch.int32, device=self.device)
        ties = self._order(cores)
        order = ties[np.argsort(found.sent[ties], kind="stable")]
        tables = [self._table(one) for one in (order, found.children, found.parent, found.slot)]
        prologue = {} if product is None else dict(product.params)
        x, w = (self._operand(memory, Place(slot)) for slot in product.ins) if product else (None, None)
        box = Operand(mailbox, 0, slots * numel)
        return lambda: tree(acc, box, flags, *tables, size=numel, op=found.op, x=x, w=w, **prologue)

    def _operand(self, memory: Memory, place: Place) -> Operand:
        buffer, tensor = memory.buffers[place.slot.buffer], memory.tensors[place.slot.buffer]
        whole = buffer.slots * buffer.numel
        if place.slot.is_fixed:
            index = None if place.is_own else self._table(place.flat(memory.mesh.shape))
            return Operand(tensor, int(place.slot.index or 0) * buffer.numel, whole, index)
        assert place.is_own, "slots that differ between cores are never elided"
        every = np.arange(memory.mesh.cores)
        rows = every * buffer.slots + place.slot.of_cores(every, memory.mesh)
        return Operand(tensor, 0, buffer.numel, self._table(rows))

    def _cores(self, mesh: Mesh, op: Local) -> torch.Tensor:
        cores = np.arange(mesh.cores) if op.where is None else op.where.flat(mesh)
        return self._table(cores[self._order(len(cores))])

    def _order(self, size: int) -> Index:
        return np.arange(size) if self._random is None else self._random.permutation(size)

    def _table(self, values: Index) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int32)).to(self.device)


def _sends(round_: Round, mesh: Mesh) -> dict[int, Exchange] | None:
    """The exchange of each input (0: a, 1: b) of a compute-shift round; None if the round is not one."""
    if [(one.op, one.where) for one in round_.locals] != [("gemm", None)] or not round_.overlaps:
        return None
    (op,) = round_.locals
    sends = {}
    for exchange in round_.exchanges:
        number = next((i for i, slot in enumerate(op.ins) if str(slot) == str(exchange.src)), None)
        full = (
            exchange.lines is None and exchange.recv.ndim == 1 and len(set(exchange.send)) == mesh.length(exchange.axis)
        )
        if number is None or not full or not (exchange.src.is_fixed and exchange.dst.is_fixed) or number in sends:
            return None
        sends[number] = exchange
    return sends


def _lone_product(round_: Round) -> Local | None:
    """The product that is all of a round, on every core and not accumulating: a tree can begin with it."""
    if round_.exchanges or len(round_.locals) != 1:
        return None
    (op,) = round_.locals
    plain = op.op in ("gemm",) and op.where is None and not op.params.get("add")
    return op if plain and all(slot.is_fixed for slot in (*op.outs, *op.ins)) else None


@dataclass(frozen=True, eq=False)
class _Tree:
    """A reduction found in the leading rounds: per core its parent, its message's slot there, its children."""

    rounds: int
    acc: str
    op: str
    parent: Index
    slot: Index
    children: Index
    inboxes: frozenset[str]  # buffers that the messages pass through
    sent: Index  # in which round the core sends; after all others for roots


def _reduction(rounds: tuple[Round, ...], mesh: Mesh) -> _Tree | None:
    """The longest run of leading rounds that only send one buffer and combine what arrives, as a tree."""
    parent, slot = np.full(mesh.cores, -1), np.zeros(mesh.cores, np.int64)
    children, sent = np.zeros(mesh.cores, np.int64), np.full(mesh.cores, len(rounds))
    used, acc, name = 0, "", ""
    inboxes: set[str] = set()
    for number, round_ in enumerate(rounds):
        messages = _combining(round_)
        if messages is None:
            break
        (_, first) = messages[0]
        if used and (first.outs[0].buffer, first.op) != (acc, name):
            break
        pairs = [(one.senders.flat(mesh), one.receivers.flat(mesh)) for one, _ in messages]
        # a core that has sent is done; a round that breaks this begins another tree (or is none)
        if any((parent[send] >= 0).any() or (parent[recv] >= 0).any() for send, recv in pairs):
            break
        acc, name, used = first.outs[0].buffer, first.op, number + 1
        inboxes |= {exchange.dst.buffer for exchange, _ in messages}
        for send, recv in pairs:
            parent[send], slot[send], sent[send] = recv, children[recv], number
            children[recv] += 1
    return _Tree(used, acc, name, parent, slot, children, frozenset(inboxes), sent) if used else None


@lru_cache(maxsize=64)
def _mailboxes(schedule: Schedule) -> frozenset[str]:
    """Scratch buffers that only pass messages to the operation that combines them: a tree may have its own instead."""
    inboxes: set[str] = set()
    others: set[str] = set()
    for round_ in {id(one): one for one in schedule.rounds}.values():
        arriving = {exchange.dst.buffer for exchange, _ in _combining(round_) or ()}
        inboxes |= arriving
        others |= round_.touched - arriving
    return frozenset(name for name in inboxes - others if schedule.buffers[name].role == "scratch")


def _combining(round_: Round) -> list[tuple[Exchange, Local]] | None:
    """Each exchange of a round with the operation that combines its arrivals, in the order of the operations."""
    if not round_.exchanges or len(round_.exchanges) != len(round_.locals):
        return None
    pairs = []
    for op in round_.locals:
        exchange = next((one for one in round_.exchanges if one.dst.buffer == op.ins[-1].buffer), None)
        if exchange is None or op.op not in COMBINE or op.where is None or op.where.at is not exchange.recv:
            return None
        accs = {op.outs[0].buffer, op.ins[0].buffer, exchange.src.buffer}
        slots = (exchange.src, exchange.dst, *op.outs, *op.ins)
        if len(accs) > 1 or exchange.dst.buffer in accs or any(slot.index != 0 for slot in slots if slot.is_fixed):
            return None
        if not all(slot.is_fixed for slot in slots):
            return None
        pairs.append((exchange, op))
    return pairs if len({op.outs[0].buffer for _, op in pairs}) == 1 else None


def available() -> bool:
    """Whether Triton kernels can run here: a CUDA device, or the interpreter."""
    return torch.cuda.is_available() or bool(INTERPRET.value)
