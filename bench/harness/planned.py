"""Programs planned for a GPU that this machine need not have: their kernels are compiled, but not run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import torch

from wafer_triton.decoder import decode
from wafer_triton.decoder.block import Block, schedule
from wafer_triton.device import PRESETS
from wafer_triton.device.dtype import torch_dtype
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate import triton as executor
from wafer_triton.emulate.program import Program
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.models.random import config_of

ROOMY = replace(PRESETS["wse2"], name="wse2 with 64 MiB a core", sram_bytes=64 * 2**20)


def without_gpu() -> None:
    """Let `TritonExecutor` plan on the CPU's memory, for the rest of the process."""
    executor.INTERPRET = SimpleNamespace(value=True)  # type: ignore[assignment]


def decode_layer(exchange: str, side: int = 64, held: int = 4095) -> dict[str, Program]:
    """Return the programs of one layer of Llama-3-8B by their titles, on memory of one element."""
    config = replace(config_of("llama3-8b"), num_hidden_layers=1)
    block = Block(config, Mesh(side, side, ROOMY), "bf16", entries=-(-(held + 1) // side))
    programs = {}
    for sub_layer, arguments in decode.layer(block, held):
        made = schedule(sub_layer, block, *arguments)
        space = {
            name: torch.zeros(1, dtype=torch_dtype(one.dtype)).expand(side, side, one.slots * one.numel)
            for name, one in made.buffers.items()
        }
        programs[sub_layer.title] = TritonExecutor(exchange=exchange).bind(made, {}, shared=space)
    return programs
