"""Peers: plain PyTorch code for the rounds of a product or of exchanges, and a decoder layer without any mesh.

A `Peer` shares no code with the executors. It computes all cores in a batch, round by round, and adds a message
where it arrives, without a mailbox. PyTorch has several ways to write a copy or a batched product; a
step takes the fastest way on this device at this size. In results its row is named "emulation".
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from timing import fastest
from wafer_triton.device.dtype import torch_dtype
from wafer_triton.device.mesh import Mesh
from wafer_triton.models.config import DecoderConfig
from wafer_triton.schedule.rounds import Exchange, Local, Round
from wafer_triton.schedule.schedule import Schedule

FP32 = torch.float32
Call = Callable[[], object]
Memory = dict[str, Tensor]


class Peer:
    """Binds schedules of products, sums and copies, as an executor does; `chosen` counts the steps of each way."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.chosen: dict[str, int] = {}
        self._best: dict[object, str] = {}

    def bind(self, schedule: Schedule, tensors: Mapping[str, Tensor]) -> "BoundPeer":
        """Plan a schedule over memory [rows, cols, numel] of each buffer, into which `tensors` are copied."""
        memory = {
            name: torch.zeros(*schedule.mesh.shape, buffer.numel, dtype=torch_dtype(buffer.dtype), device=self.device)
            for name, buffer in schedule.buffers.items()
        }
        assert all(buffer.slots == 1 for buffer in schedule.buffers.values()), "buffers of one slot"
        planned: dict[int, list[Call]] = {}
        for round_ in schedule.rounds:
            if id(round_) not in planned:
                planned[id(round_)] = self._round(schedule, memory, round_)
        steps = [step for round_ in schedule.rounds for step in planned[id(round_)]]
        bound = BoundPeer(schedule, memory, steps)
        for name, tensor in tensors.items():  # after trials, which spoil memory
            bound.write(name, tensor)
        return bound

    def _round(self, schedule: Schedule, memory: Memory, round_: Round) -> list[Call]:
        arriving = {exchange.dst.buffer for exchange in round_.exchanges}
        adds = {op.ins[1].buffer: op for op in round_.locals if op.op == "add" and op.ins[1].buffer in arriving}
        moves = [exchange for exchange in round_.exchanges if exchange.dst.buffer not in adds]
        # products first: they read the tiles of before the moves
        steps = [
            self._compute(schedule.mesh, memory, op) for op in round_.locals if op.op != "add" and round_.exchanges
        ]
        for exchange in (one for one in round_.exchanges if one.dst.buffer in adds):
            steps.append(self._added(schedule, memory, exchange, adds[exchange.dst.buffer].outs[0].buffer))
        pairs: dict[tuple[str, str], list[Exchange]] = {}
        for exchange in moves:
            pairs.setdefault((exchange.src.buffer, exchange.dst.buffer), []).append(exchange)
        steps += [self._moved(schedule, memory, several) for several in pairs.values()]
        rest = [op for op in round_.locals if not round_.exchanges or (op.op == "add" and op not in adds.values())]
        return steps + [self._compute(schedule.mesh, memory, op) for op in rest]

    def _added(self, schedule: Schedule, memory: Memory, exchange: Exchange, acc: str) -> Call:
        """Return a step that adds the messages of a tree where they arrive."""
        target, dim = memory[acc], 0 if exchange.axis == "y" else 1
        ways: dict[str, Call] = {}
        if exchange.moves.lines is None:
            send, recv = (
                torch.from_numpy(np.array(at)).to(self.device) for at in (exchange.moves.send, exchange.moves.recv)
            )
            ways["index_add of lines"] = lambda: target.index_add_(dim, recv, target.index_select(dim, send))
            spans = [_span(at) for at in (exchange.moves.send, exchange.moves.recv)]
            if None not in spans:
                given, got = (target[span] if dim == 0 else target[:, span] for span in spans)
                ways["add of slices"] = lambda: got.add_(given)
        flat = target.flatten(0, 1)
        sent, at = self._ends(schedule, [exchange])
        ways["index_add of cores"] = lambda: flat.index_add_(0, at, flat.index_select(0, sent))
        return self._fastest(("add", dim, len(sent), target.shape, target.dtype, tuple(ways)), ways)

    def _moved(self, schedule: Schedule, memory: Memory, exchanges: list[Exchange]) -> Call:
        """Return a step that moves tiles from one buffer to another."""
        source, target = memory[exchanges[0].src.buffer], memory[exchanges[0].dst.buffer]
        sent, got = self._ends(schedule, exchanges)
        flat = source.flatten(0, 1), target.flatten(0, 1)
        ways: dict[str, Call] = {
            "gather and scatter": lambda: flat[1].index_copy_(0, got, flat[0].index_select(0, sent))
        }
        if len(got) == schedule.mesh.cores and source is not target:
            rows = sent[got.argsort()]
            size = source.shape[2] * source.element_size()
            for name, word in (("gather", None), ("of 8 bytes", torch.int64), ("of 16 bytes", torch.complex128)):
                if word is None or size % word.itemsize == 0:
                    given, into = (tiles if word is None else tiles.view(word) for tiles in flat)
                    ways[name] = lambda given=given, into=into: torch.index_select(given, 0, rows, out=into)
        if len(exchanges) == 1 and exchanges[0].moves.lines is None:
            (one,) = exchanges
            dim = 0 if one.axis == "y" else 1
            send, recv = (torch.from_numpy(np.array(at)).to(self.device) for at in (one.moves.send, one.moves.recv))
            ways["lines"] = lambda: target.index_copy_(dim, recv, source.index_select(dim, send))
            if len(recv) == schedule.mesh.shape[dim] and source is not target:
                order = send[recv.argsort()]
                ways["all lines"] = lambda: torch.index_select(source, dim, order, out=target)
        whole = all(one.moves.lines is None for one in exchanges)
        if whole and all(len(set(one.moves.send.tolist())) == 1 for one in exchanges):
            pairs = [pair for one in exchanges for pair in _broadcast(one, source, target)]
            ways["broadcast"] = lambda: [into.copy_(given) for into, given in pairs]
        kind = ("move", exchanges[0].axis, len(exchanges), len(sent), source.shape, source.dtype, tuple(ways))
        return self._fastest(kind, ways)

    def _compute(self, mesh: Mesh, memory: Memory, op: Local) -> Call:
        out, ins = memory[op.outs[0].buffer], [memory[slot.buffer] for slot in op.ins]
        if op.op == "gemm":
            flat = [tensor.flatten(0, 1) for tensor in (out, *ins)]
            add, sizes = bool(op.params.get("add")), [op.params[size] for size in "mkn"]
            return self._fastest(("gemm", add, *sizes, out.shape, ins[0].dtype), _products(*flat, *sizes, add=add))
        assert op.op in ("copy", "add"), f"no peer computes {op.op}"
        if op.where is not None:
            at = torch.from_numpy(op.where.flat(mesh)).to(self.device)
            into, (given, *more) = out.flatten(0, 1), [tensor.flatten(0, 1) for tensor in ins]
            if op.op == "copy":
                return lambda: into.index_copy_(0, at, given.index_select(0, at).to(into.dtype))
            return lambda: into.index_copy_(0, at, given.index_select(0, at) + more[0].index_select(0, at))
        return (lambda: out.copy_(ins[0])) if op.op == "copy" else (lambda: torch.add(ins[0], ins[1], out=out))

    def _ends(self, schedule: Schedule, exchanges: list[Exchange]) -> tuple[Tensor, Tensor]:
        """Return the sending and the receiving cores of several exchanges."""
        both = zip(*(one.moves.ends(schedule.mesh) for one in exchanges), strict=True)
        sent, got = (torch.from_numpy(np.concatenate(cores)).to(self.device) for cores in both)
        return sent, got

    def _fastest(self, kind: object, ways: dict[str, Call]) -> Call:
        """Return the fastest way, tried out once for each kind of step; trials spoil the memory that they run on."""
        if kind not in self._best:
            names = list(ways)
            self._best[kind] = names[fastest(self.device, list(ways.values()))] if len(names) > 1 else names[0]
        name = self._best[kind]
        self.chosen[name] = self.chosen.get(name, 0) + 1
        return ways[name]


class BoundPeer:
    """A schedule bound by `Peer`."""

    def __init__(self, schedule: Schedule, memory: Memory, steps: list[Call]) -> None:
        self.schedule, self.memory, self.steps = schedule, memory, steps

    def execute(self) -> None:
        for step in self.steps:
            step()

    def write(self, name: str, tiles: Tensor) -> None:
        self.memory[name].copy_(tiles.reshape(self.memory[name].shape))

    def read(self, name: str) -> Tensor:
        """[rows, cols, *tile]"""
        return self.memory[name].clone().unflatten(-1, self.schedule.buffers[name].tile)


def _broadcast(one: Exchange, source: Tensor, target: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return runs of receivers on a mesh row or column, each with the tiles that it receives."""
    dim, cuts = int(one.axis == "x"), np.flatnonzero(np.diff(one.moves.recv) != 1) + 1
    given = source.narrow(dim, int(one.moves.send[0]), 1)
    return [(target.narrow(dim, int(run[0]), len(run)), given) for run in np.split(one.moves.recv, cuts)]


def _span(at: Any) -> slice | None:
    """Return positions as a slice where they are evenly spaced upwards, else None."""
    steps = np.diff(at)
    if len(at) > 1 and (steps[0] < 1 or (steps != steps[0]).any()):
        return None
    step = int(steps[0]) if len(at) > 1 else 1
    return slice(int(at[0]), int(at[-1]) + 1, step)


def _products(c: Tensor, a: Tensor, b: Tensor, m: int, k: int, n: int, *, add: bool) -> dict[str, Call]:
    """Return ways to c (+)= a @ b for all cores, c in fp32."""
    c, a, b = c.view(-1, m, n), a.view(-1, m, k), b.view(-1, k, n)
    beta = int(add)
    if a.dtype == b.dtype == FP32:
        return {"baddbmm": lambda: c.baddbmm_(a, b, beta=beta)}

    def outer() -> None:
        if not add:
            c.zero_()
        for number in range(k):
            c.addcmul_(a[:, :, number, None], b[:, number, None, :])

    def widened() -> None:
        c.baddbmm_(a.float(), b.float(), beta=beta)

    def in_place() -> None:
        torch.baddbmm(c, a, b, out_dtype=FP32, beta=beta, out=c)

    def in_two() -> None:
        product = torch.bmm(a, b, out_dtype=FP32)
        c.add_(product) if add else c.copy_(product)

    ways: dict[str, Call] = {"baddbmm to fp32": in_place, "bmm to fp32, add": in_two, "widened baddbmm": widened}
    if k <= 4:
        ways["addcmul"] = outer
    return ways


def layer(
    x: Tensor,
    weights: dict[str, Tensor],
    config: DecoderConfig,
    keys: Tensor,
    values: Tensor,
    rotary: tuple[Tensor, Tensor],
) -> Tensor:
    """Run one Llama decoder layer on one token x [1, width]; the last row of the cache [tokens, heads, dim] is free.

    Plain PyTorch in the dtype of x: the reference in fp64, and the work of the GPU's libraries in 16 bits.
    """
    heads, dim = config.num_attention_heads, config.head_dim
    names = {name.split(".", 3)[-1].removesuffix(".weight"): weight for name, weight in weights.items()}
    h = F.rms_norm(x, x.shape[-1:], names["input_layernorm"], config.rms_norm_eps)
    q, k, v = ((h @ names[f"self_attn.{part}_proj"].mT).view(-1, dim) for part in "qkv")
    q, k = (_rotated(projected, *rotary) for projected in (q, k))
    group = heads // config.num_key_value_heads
    keys[-1], values[-1] = k, v
    scores = torch.einsum("gqd,tgd->gqt", q.view(-1, group, dim), keys) * dim**-0.5
    att = torch.einsum("gqt,tgd->gqd", scores.softmax(-1), values)
    x = x + att.reshape(1, -1) @ names["self_attn.o_proj"].mT
    h = F.rms_norm(x, x.shape[-1:], names["post_attention_layernorm"], config.rms_norm_eps)
    act = F.silu(h @ names["mlp.gate_proj"].mT) * (h @ names["mlp.up_proj"].mT)
    return x + act @ names["mlp.down_proj"].mT


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
