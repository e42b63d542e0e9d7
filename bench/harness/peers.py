"""Peers: the fastest emulation of a mesh that plain PyTorch has, and a decoder layer without any mesh.

The emulation is the torch executor, so a schedule's own tables say what moves. Where there are several ways to write a
step (which copy, which batched product), each step takes the one that is the fastest on this device at this size.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from timing import fastest
from wafer_triton.emulate.plan import Memory, Place, Step
from wafer_triton.emulate.program import Program
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.models.config import DecoderConfig
from wafer_triton.schedule.rounds import Exchange, Local, Round, Schedule

FP32 = torch.float32


class Emulation(TorchExecutor):
    """The torch executor with 16-bit products on matrix units: batched `baddbmm` with fp32 sums, and indexed copies.

    `chosen` counts the ways that steps were given.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.chosen: dict[str, int] = {}
        self._best: dict[object, str] = {}

    def bind(self, schedule: Schedule, tensors: Mapping[str, Tensor], *more: Any, **options: Any) -> Program:
        program = super().bind(schedule, tensors, *more, **options)
        for name, tensor in tensors.items():  # what trials spoilt
            program.memory[name].copy_(tensor.reshape(program.memory[name].shape))
        return program

    def fuse(self, memory: Memory, schedule: Schedule, rounds: tuple[Round, ...]) -> tuple[int, list[Step]] | None:
        fused = super().fuse(memory, schedule, rounds)
        if fused is not None:
            self.chosen["rounds together"] = self.chosen.get("rounds together", 0) + fused[0]
        return fused

    def move(self, memory: Memory, exchanges: Sequence[Exchange], src: Place) -> Step:
        exchange, *more = exchanges
        target, source = memory.tensors[exchange.dst.buffer], memory.tensors[exchange.src.buffer]
        ways: dict[str, Step] = {"slices or index_select": super().move(memory, exchanges, src)}
        if more:
            ways["both ways at once"] = self.indexed(memory, exchanges, src)
            sizes = tuple(len(exchange.receivers.flat(memory.mesh)) for exchange in exchanges)
            return self._fastest(("moves", exchange.axis, sizes, source.shape, source.dtype), ways)
        fixed = exchange.src.is_fixed and exchange.dst.is_fixed and src.lies_in(exchange.src)
        numel = memory.buffers[exchange.src.buffer].numel
        alone = memory.buffers[exchange.src.buffer].slots == memory.buffers[exchange.dst.buffer].slots == 1
        every = exchange.recv.size and len(exchange.receivers.flat(memory.mesh)) == memory.mesh.cores
        if fixed and alone and every and target.data_ptr() != source.data_ptr():
            sent, got = self._ends(memory, exchanges, src)
            rows = sent[got.argsort()]
            for name, word in (
                ("rows", None),
                ("rows of 8 bytes", torch.int64),
                ("rows of 16 bytes", torch.complex128),
            ):
                if word is None or (numel * source.element_size()) % word.itemsize == 0:
                    into, out_of = (_words(tensor, word) for tensor in (target, source))
                    ways[name] = lambda into=into, out_of=out_of: torch.index_select(out_of, 0, rows, out=into)
        return self._fastest(("move", exchange.axis, exchange.recv.size, numel, source.dtype, every), ways)

    def compute(self, memory: Memory, op: Local, ins: tuple[Place, ...]) -> Step:
        slots = (*op.outs, *(place.slot for place in ins))
        plain = op.where is None and all(slot.index == 0 and memory.buffers[slot.buffer].slots == 1 for slot in slots)
        plain = plain and all(place.is_own for place in ins)
        tensors = [memory.tensors[slot.buffer].flatten(0, 1) for slot in slots]
        ways: dict[str, Step] = {"definition": super().compute(memory, op, ins)}
        if plain and op.op == "copy" and tensors[0].shape == tensors[1].shape:
            ways["copy"] = lambda: tensors[0].copy_(tensors[1])
        one_head = op.params.get("heads", 1) == 1 and op.params.get("accumulate", "fp32") == "fp32"
        if plain and op.op == "gemm" and one_head and tensors[0].dtype == FP32:
            ways |= _products(*tensors, *(op.params[size] for size in "mkn"), add=bool(op.params.get("add")))
        return self._fastest((op.op, *sorted(op.params.items()), tensors[0].shape, plain), ways)

    def _fastest(self, kind: object, ways: dict[str, Step]) -> Step:
        """The fastest way, tried out once for each kind of step; trials spoil the memory that they run on."""
        if kind not in self._best or self._best[kind] not in ways:
            names = list(ways)
            self._best[kind] = names[fastest(self.device, list(ways.values()))] if len(names) > 1 else names[0]
        name = self._best[kind]
        self.chosen[name] = self.chosen.get(name, 0) + 1
        return ways[name]


def _words(tensor: Tensor, word: torch.dtype | None) -> Tensor:
    flat = tensor.flatten(0, 1)
    return flat if word is None else flat.view(word)


def _products(c: Tensor, a: Tensor, b: Tensor, m: int, k: int, n: int, *, add: bool) -> dict[str, Step]:
    """Ways to c (+)= a @ b for all cores, c in fp32."""
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

    ways: dict[str, Step] = {"baddbmm to fp32": in_place, "bmm to fp32, add": in_two, "widened baddbmm": widened}
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
    """One Llama decoder layer on one token x [1, width]; the last row of its static cache [tokens, heads, dim] is free.

    Plain PyTorch in the dtype of x: the reference in fp64, and what the GPU's libraries need for it in 16 bits.
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
