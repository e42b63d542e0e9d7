"""A training step with values on a wafer of dies: forward, backward, gradient accumulation, AdamW, all as schedules.

A position of a group holds rows of activations, and one block of the weights and of their gradients
(`wafer_triton.train.shards`). Products and all exchanges between dies are streams; the rest are local operations. A
reduce stream between dies of equal position sums gradients over the data parallel groups. Each of these dies updates
its part of the block and sends it to the others by a gather stream: moments are cut over groups (ZeRO-1). HbmError is
raised if the tensors that a die keeps exceed its HBM.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from wafer_triton.errors import ConfigError, ScheduleError, shown
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.stream import peers, relay
from wafer_triton.text.progress import Progress, silent
from wafer_triton.train.cost import DieCost
from wafer_triton.train.layers import MicroBatch, Saved
from wafer_triton.train.linear import Linear, orders, take
from wafer_triton.train.machine import Machine
from wafer_triton.train.model import Parameters, Sizes, check_batch, check_parameters
from wafer_triton.train.product import Team, collective, stream_blocks
from wafer_triton.train.shards import DieGroups, Rows, Shards, first_group, micro_batches, padded, spread


@dataclass(frozen=True)
class AdamW:
    """The constants of the optimizer: `lr`, `eps` and `weight_decay` of torch.optim.AdamW, and its two `betas`.

    The default of `lr` is 1e-2, torch's is 1e-3; the other defaults are torch's.
    """

    lr: float = 1e-2
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            real = isinstance(value, Real) and not isinstance(value, bool)
            if not real or not 0 <= value < (1 if name.startswith("beta") else inf):
                below = " and below 1" if name.startswith("beta") else ", and finite"
                raise ConfigError(f"AdamW: {name} = {shown(value)} must be a number of at least 0{below}")


@dataclass(frozen=True)
class StepReport:
    """One step: the mean loss, the predicted cost on the wafer, and the bytes in a die's HBM.

    `hbm` has the bytes of each kind of tensor at the end of forward, when they are most: "weights", "gradients",
    "moments", "vectors" and "activations".
    """

    loss: float
    cost: DieCost
    hbm: dict[str, int]


class Trainer:
    """A model of `sizes` on a machine, cut over `die_groups`; parameters are given whole and read back whole.

    Raises ShapeError for sizes, or a batch, that do not divide over `die_groups`, and for parameters whose names,
    shapes or values do not fit `sizes`. Raises MeshError if `die_groups` has another mesh than the machine, HbmError
    for tensors over a die's HBM.
    """

    def __init__(
        self,
        machine: Machine,
        sizes: Sizes,
        die_groups: DieGroups,
        parameters: Parameters,
        optimizer: AdamW | None = None,
    ) -> None:
        machine.demand(die_groups.team.mesh)
        die_groups.demand(sizes)
        check_parameters(sizes, parameters)
        self.machine, self.sizes, self.die_groups, self.team = machine, sizes, die_groups, die_groups.team
        self.optimizer = optimizer or AdamW()
        self.shards, self.like = Shards(sizes, die_groups), parameters
        blocks = self.shards.blocks(parameters)
        self.weights = {name: spread(self.team, block.to(machine.dtype)) for name, block in blocks.items()}
        self.order, self.place = orders(self.team)
        self.grads: dict[str, Tensor] = {}
        self.steps = 0
        self._peers = peers(machine.mesh, self.team.rows, self.team.cols)
        self._moves = relay(self.team.count).needed()
        each = -(-sum(value[0, 0].numel() for value in self.weights.values()) // self.team.count)
        self.moments = [machine.zeros(each), machine.zeros(each)]
        self.linears: dict[tuple[Any, ...], Linear] = {}

    def parameters(self) -> Parameters:
        """Return the whole parameters, from the first group."""
        return self._whole(self.weights)

    def gradients(self) -> Parameters:
        """Return the whole gradients of the last step, summed over groups; ScheduleError before the first step."""
        if not self.grads:
            raise ScheduleError("Trainer: no gradients before the first step; take a step")
        return self._whole(self.grads)

    def step(self, tokens: Tensor, targets: Tensor, progress: Progress = silent) -> StepReport:
        """Take one step on a batch [samples, length] of whole numbers and report it, with the loss before it.

        Reports "micro-batches" to `progress`.
        Raises ShapeError for tokens and targets that differ in shape, or that the vocabulary or a GPT's positions lack.
        """
        check_batch(self.sizes, tokens, targets)
        self.machine.ran.clear()
        batches = micro_batches(self.die_groups, tokens, targets)
        self.grads = {}
        vectors = self.everywhere(self.weights["vectors"])
        loss, self._most = 0.0, dict[str, int]()
        for number, rows in enumerate(batches, 1):
            loss += self._micro_batch(rows, vectors, 1 / tokens.numel())
            progress("micro-batches", number, len(batches))
        self._update()
        return StepReport(loss, self.machine.cost, self._most)

    # --- one micro-batch ---

    def _micro_batch(self, rows: Rows, vectors: Tensor, scale: float) -> float:
        run, sizes = MicroBatch(self, rows, vectors), self.sizes
        x = run.embed()
        kept: list[Saved] = []
        for layer in range(sizes.layers):
            entry = x
            x, saved = run.layer(layer, x)
            if self.die_groups.recompute == "full":
                saved = {}
            elif self.die_groups.recompute == "selective":
                saved.pop("p")
            kept.append({"x": entry} | saved)
        self._hold(kept, vectors)
        last = run.norm("norm", x)
        logits = run.linear("head", "w", last, sizes.width, self.weights["head"].shape[-1])
        ins = {"logits": logits, "targets": run.real(rows.targets)}
        shape = {"m": rows.m, "n": logits.shape[-1]}
        outs = {"loss": (1,), "dlogits": tuple(shape.values())}
        out = self.machine.local("cross_entropy", outs, ins, **shape, vocab=sizes.vocab, scale=scale)
        d = run.linear_back("head", "w", last, out["dlogits"])
        d = run.norm_back("norm", x, d)
        for layer in reversed(range(sizes.layers)):
            saved = kept.pop()
            if self.die_groups.recompute == "full":
                saved |= run.layer(layer, saved["x"])[1]
            d = run.layer_back(layer, saved, d)
        run.embed_back(d)
        run.finish()
        return float(out["loss"].sum())

    def _hold(self, kept: list[Saved], vectors: Tensor) -> None:
        """Count the bytes in a die's HBM at the end of forward, when they are most; HbmError if they exceed it."""
        size = self.machine.dtype.itemsize

        def held(tensors: list[Tensor]) -> int:
            return sum(tensor[0, 0].numel() for tensor in tensors) * size

        weights = [*self.weights.values()]
        self._most = {
            "weights": held(weights),
            "gradients": held(weights),
            "moments": held(self.moments),
            "vectors": held([vectors]),
            "activations": held([tensor for saved in kept for tensor in saved.values()]),
        }
        self.machine.check_hbm(self._most)

    def everywhere(self, own: Tensor) -> Tensor:
        """Return blocks [size] of a group's positions, on each of its dies as [N * size]."""
        if self.team.size == 1:
            return own
        out = self.machine.run(collective(self.team, "gather", own.shape[-1]), own=own)["out"]
        return take(out, self.place).flatten(2)

    # --- the update ---

    def _update(self) -> None:
        self.steps += 1
        machine, count, names = self.machine, self.team.count, list(self.weights)
        weights, grads = (
            torch.cat([held[name].flatten(2) for name in names], -1) for held in (self.weights, self.grads)
        )
        whole, each = weights.shape[-1], self.moments[0].shape[-1]
        if count > 1:
            grads, own = self._summed(padded(grads, each * count))
            weights = _own(padded(weights, each * count).unflatten(-1, (count, each)), self._peers)
        else:
            own = grads
        o, corrections = self.optimizer, machine.zeros(2)
        corrections[...] = torch.tensor([1 - o.beta1**self.steps, 1 - o.beta2**self.steps], dtype=machine.dtype)
        ins = dict(zip(("w", "one", "two"), (weights, *self.moments), strict=True))
        out = machine.local(
            "adamw", dict.fromkeys(("weight", "first", "second"), (each,)),
            ins | {"grad": own, "corrections": corrections}, size=each,
            lr=o.lr, beta1=o.beta1, beta2=o.beta2, eps=o.eps, weight_decay=o.weight_decay,
        )  # fmt: skip
        self.moments = [out["first"], out["second"]]
        weights = out["weight"] if count == 1 else self._among_peers("gather", out["weight"])
        self.weights = _split(weights[..., :whole], self.weights)
        self.grads = _split(grads[..., :whole], self.weights)

    def _summed(self, grads: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums over groups of all blocks, for `gradients` alone, and of each die's own block."""
        count, each = self.team.count, self.moments[0].shape[-1]
        order = torch.zeros(*self.machine.mesh.shape, count, dtype=torch.long)
        for line in self._peers:
            for position, die in enumerate(line):
                order[die] = torch.tensor(self._moves.order[position])
        parts = take(grads.unflatten(-1, (count, each)), order)
        own = self._run_peers("reduce", each, parts=parts)["own"]
        whole = torch.zeros_like(grads).unflatten(-1, (count, each))
        for line in self._peers:
            for die in line:
                whole[die] = torch.stack([own[other] for other in line])
        return whole.flatten(-2), own

    def _among_peers(self, which: str, own: Tensor) -> Tensor:
        out = self._run_peers(which, own.shape[-1], own=own)["out"]
        place = torch.zeros(*self.machine.mesh.shape, self.team.count, dtype=torch.long)
        for line in self._peers:
            for position, die in enumerate(line):
                place[die] = torch.tensor(self._moves.order[position]).argsort()
        return take(out, place).flatten(2)

    def _run_peers(self, which: str, size: int, **tensors: Tensor) -> dict[str, Tensor]:
        return self.machine.run(_between_groups(self.team, which, size), **tensors)

    def _whole(self, tiles: dict[str, Tensor]) -> Parameters:
        return self.shards.joined({name: first_group(self.team, held) for name, held in tiles.items()}, self.like)


def _own(blocks: Tensor, lines: tuple[tuple[tuple[int, int], ...], ...]) -> Tensor:
    """Return [rows, cols, numel]: from blocks [rows, cols, count, numel], the block of a die's position on its line."""
    own = torch.zeros_like(blocks[:, :, 0])
    for line in lines:
        for position, die in enumerate(line):
            own[die] = blocks[die][position]
    return own


def _split(flat: Tensor, like: dict[str, Tensor]) -> dict[str, Tensor]:
    parts = flat.split([held[0, 0].numel() for held in like.values()], -1)
    return {name: part.reshape(held.shape) for (name, held), part in zip(like.items(), parts, strict=True)}


@lru_cache(maxsize=256)
def _between_groups(team: Team, which: str, size: int) -> Schedule:
    b = Builder(team.mesh, f"{which} of {size} elements between {team.count} groups")
    moves = relay(team.count).needed()
    return stream_blocks(b, moves, peers(team.mesh, team.rows, team.cols), which, size, "fp32")
