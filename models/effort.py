"""An estimate of the seconds to emulate a placed model on this machine, before its weights are read."""

from __future__ import annotations

import os

from wafer_triton.cost.layers import PhasesOf, decode_phases, prefill_phases
from wafer_triton.decoder.block import Block
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.ranks.executor import DistributedExecutor
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.place.regions import Placement
from wafer_triton.text.progress import emulation_seconds


def seconds(placement: Placement, executor: Executor, *, tokens: int, steps: int) -> float:
    """Return seconds for a prompt of `tokens` tokens and `steps` decode steps; 0 for an executor on a GPU."""
    inside = executor.inside if isinstance(executor, DistributedExecutor) else executor
    interpreted = not isinstance(inside, TorchExecutor)
    if interpreted and os.environ.get("TRITON_INTERPRET") != "1":
        return 0.0
    decode, prefill = placement.decode, placement.prefill
    rows = -(-tokens // prefill.mesh.shape[0])
    prompt = _seconds(prefill, prefill_phases(prefill, rows, placement.chunk(tokens)), interpreted)
    step = _seconds(decode, decode_phases(decode, decode.entries * decode.mesh.shape[0]), interpreted)
    return prompt + steps * step


def _seconds(block: Block, phases: PhasesOf, interpreted: bool) -> float:
    """Return seconds for a token or a prompt through all layers, and for the products of the head."""
    shape, cores = block.shape, block.mesh.cores
    each = [(one, one.times * shape.layers_of[kind]) for kind, phases_ in phases.items() for one in phases_]
    rounds = sum(times * one.rounds for one, times in each)
    computing = sum(times * one.rounds for one, times in each if one.kind in ("local", "product"))
    macs = cores * sum(times * one.macs for one, times in each) + shape.hidden_size * shape.vocab_size
    return emulation_seconds(rounds, cores, macs, computing=computing, interpreted=interpreted)
