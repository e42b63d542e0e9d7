"""Fixtures of all tests.

Triton reads TRITON_INTERPRET when it is first imported, which transformers may do, so it is set before any test module
loads. On a machine with CUDA, TRITON_INTERPRET=0 has the same tests judge the compiled kernels. Kernels are not tuned.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ["WAFER_TRITON_TUNE"] = "0"

from dataclasses import replace

import pytest
import torch
from hypothesis import settings

from wafer_triton.device import PRESETS, Device

settings.register_profile("wafer", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("wafer")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws the same numbers, alone or in company."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def roomy() -> Device:
    """A WSE-2 with 64 MiB of SRAM per core, for tests that are about values."""
    return replace(PRESETS["wse2"], name="roomy", sram_bytes=64 * 2**20)
