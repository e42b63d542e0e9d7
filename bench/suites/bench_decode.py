"""Decode: the layers of a Llama on one token, beside plain PyTorch."""

from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

import torch
from torch.nn import functional as F

from cases import EXCHANGES, ROOMY, close, executor, ways
from peers import layer
from timing import Runs, Timing, elapsed, sets
from wafer_triton.cost.constants import constants
from wafer_triton.cost.layers import head_group_choices
from wafer_triton.decoder.block import Block
from wafer_triton.decoder.decode import head_block
from wafer_triton.device import Device
from wafer_triton.device.dtype import torch_dtype
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.program import Program
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.run.decode import Decode
from wafer_triton.models.run.head import Head
from wafer_triton.place.need import param_shapes
from work import Work, exchanged_bytes, record, shares

SMALL = DecoderConfig(
    hidden_size=96, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
    head_dim=24, vocab_size=16, max_position_embeddings=512, rms_norm_eps=1e-5, name="small llama",
)  # fmt: skip


@dataclass(frozen=True)
class DecodeStep:
    """One token through all layers on side x side cores, `held` tokens in the cache before it.

    Where they are several, the LM head follows them.
    """

    config: DecoderConfig
    side: int
    held: int
    dtype: str
    rows: tuple[str, ...] = (*EXCHANGES, "blas")
    emulated: Device = ROOMY

    def __str__(self) -> str:
        what = f"{self.name} after {self.held} tokens"
        return f"{what} on {self.side} x {self.side} cores, {self.dtype}"

    @property
    def name(self) -> str:
        """A layer, or how many."""
        layers = self.config.num_hidden_layers
        return f"decode {'layer' if layers == 1 else f'step, {layers} layers'}, {self.config.name}"

    @property
    def slug(self) -> str:
        what = f"layers{self.config.num_hidden_layers}-{self.config.name.replace(' ', '-')}"
        return f"{what}-held{self.held}-on{self.side}-{self.dtype}"

    @property
    def head(self) -> bool:
        return self.config.num_hidden_layers > 1

    @property
    def block(self) -> Block:
        """The block as a model of these sizes places it, with its head groups."""
        block = Block(
            self.config, Mesh(self.side, self.side, self.emulated), self.dtype, entries=-(-(self.held + 1) // self.side)
        )
        return head_group_choices(block, constants(self.emulated))[0]


SHAPES = [
    DecodeStep(SMALL, 8, 20, "fp32"),
    DecodeStep(SMALL, 16, 20, "fp32", rows=EXCHANGES),
    DecodeStep(replace(SMALL, num_hidden_layers=3), 8, 20, "fp32"),
]


class Inputs:
    """Weights, context and the token of a step, made on the device."""

    def __init__(self, step: DecodeStep, device: str) -> None:
        c, dtype = step.config, torch_dtype(step.dtype)
        self.step, self.device, self.dtype = step, device, dtype
        draw = lambda *shape: torch.randn(shape, device=device).to(dtype)  # noqa: E731
        self.weights = {
            name: draw(*shape) * (1 if "norm" in name else 0.02)
            for name, shape in param_shapes(c).items()
            if ".layers." in name or (step.head and "embed" not in name)
        }
        # of every layer, with room for the token of the step
        self.caches = [
            tuple(draw(step.held + 1, c.num_key_value_heads, c.head_dim) for _ in "kv")
            for _ in range(c.num_hidden_layers)
        ]
        self.x = draw(1, c.hidden_size)
        angle = torch.tensor([[float(step.held)]]) * c.inv_freq()[0]
        self.rotary = tuple(factor.to(device, dtype) for factor in (angle.cos(), angle.sin()))

    def plain(self, dtype: torch.dtype) -> torch.Tensor:
        x, *rotary = (tensor.to(dtype) for tensor in (self.x, *self.rotary))
        for number, cache in enumerate(self.caches):
            own = {name: weight.to(dtype) for name, weight in self.weights.items() if f".layers.{number}." in name}
            x = layer(x, own, self.step.config, *(tensor.to(dtype) for tensor in cache), (rotary[0], rotary[1]))
        if not self.step.head:
            return x
        norm, head = (self.weights[name].to(dtype) for name in ("model.norm.weight", "lm_head.weight"))
        return F.rms_norm(x, x.shape[-1:], norm, self.step.config.rms_norm_eps) @ head.mT


class OnMesh:
    """The layers on a mesh, their caches filled."""

    def __init__(self, inputs: Inputs, executor) -> None:
        self.inputs, self.block = inputs, inputs.step.block
        self.head = Head(head_block(self.block), executor, inputs.weights) if inputs.step.head else None
        self.decode = Decode(self.block, executor, inputs.weights, head=self.head)
        self.cache = self.block.cache(inputs.step.held)
        self.fill()

    def fill(self) -> None:
        held = self.inputs.step.held
        fill = self.decode.filler(0, self.cache, held)
        for which, layers in zip("kv", zip(*self.inputs.caches, strict=True), strict=True):
            fill(which, torch.stack([values[:held] for values in layers]))

    def whole(self) -> torch.Tensor:
        """Run the step as the decoder does it: the host's plans and writes, and the replay."""
        held = self.inputs.step.held
        return self.decode.run(self.inputs.x, self.inputs.rotary, [held], [self.cache], [0])

    def run(self) -> None:
        """Run the replay alone."""
        self.decode.step((0,))

    @cached_property
    def programs(self) -> list[Program]:
        programs = [
            program
            for layer_ in self.decode.layers
            for program in (layer_.project, layer_.append[0], layer_.attend[0], layer_.output, layer_.ffn)
        ]
        return programs if self.head is None else [*programs, *self.head.programs.values()]

    @cached_property
    def work(self) -> Work:
        moved = sum(exchanged_bytes(program.schedule) for program in self.programs)
        stays = {}
        for program in self.programs:
            stays |= {
                program.memory[buffer.name].data_ptr(): program.memory[buffer.name].nbytes
                for buffer in program.schedule.buffers.values()
                if buffer.given and buffer.kept
            }
        return Work(moved, sum(stays.values()), sum(stays.values()))


def time_step(shape: DecodeStep, row: str, device: str) -> Timing:
    """Check a step against fp64, time it over rotating weights, and return the record."""
    inputs = Inputs(shape, device)
    reference, plain = inputs.plain(torch.float64), inputs.plain(inputs.dtype)
    weights = sum(weight.nbytes for weight in inputs.weights.values())
    turns = sets(device, weights)  # as many in every row
    flops = 2 * sum(weight.numel() for weight in inputs.weights.values())
    facts = {
        "what": shape.name, "mesh": f"{shape.side}x{shape.side}", "dtype": shape.dtype,
        "cores": shape.side**2, "context": shape.held, "emulated_device": shape.emulated.name,
        "head_groups": shape.block.head_groups,
    }  # fmt: skip
    if row == "blas":
        work, rotated = Work(0, 0, weights), weights * turns
        others = [Inputs(shape, device) for _ in range(turns - 1)]
        runs = [lambda turn=turn: turn.plain(turn.dtype) for turn in (inputs, *others)]
        close(runs[0](), reference, plain, str(shape))
        facts |= {"what": f"{shape.name}, plain PyTorch", "checked": "sets the bound"}
    else:
        backend = executor(row, device)
        layers = [OnMesh(inputs, backend)]
        close(layers[0].whole(), reference, plain, str(shape))
        layers[0].whole()  # a GPU records it, and replays it from now on
        host = median(elapsed(device, layers[0].whole) for _ in range(5))
        layers[0].fill()
        work = layers[0].work
        while len(layers) < turns:
            layers.append(OnMesh(inputs, backend))
            layers[-1].whole()
        inputs.weights.clear()  # other rows of the group need the memory
        runs, rotated = [on_mesh.run for on_mesh in layers], len(layers) * work.others
        launched = [launch for program in layers[0].programs for launch in ways(backend, program).get("launches", ())]
        facts |= {"launches": launched} if launched else ways(backend, None)
        facts |= {"rounds": sum(len(program.schedule.rounds) for program in layers[0].programs)}
        facts |= {"checked": "within bound of fp64", "whole_step_seconds": host}
    times = yield Runs(runs)
    if row == "elided":
        work = replace(work, exchanged=0)
    facts |= {"sets": len(runs), "rotated_bytes": rotated}
    return record(shape, row, times, facts | shares(times.seconds, device, shape.dtype, flops, work, rotated))


def test_group(records, shape):
    records(time_step, shape)
