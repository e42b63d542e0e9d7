import re
from dataclasses import dataclass, replace

import pytest
import torch

from wafer_triton import ops
from wafer_triton.device import PRESETS
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.emulate.executor import Executor
from wafer_triton.errors import SramError, WaferError
from wafer_triton.schedule import sram
from wafer_triton.schedule.builder import Builder


def small(sram_bytes: int):
    return replace(PRESETS["wse2"], name="small", sram_bytes=sram_bytes)


def three_rounds(mesh: Mesh) -> Builder:
    """Build in -> a -> b -> out beside a weight: bytes a core in powers of two, so that every sum names its buffers."""
    b = Builder(mesh, "three")
    b.buffer("w", (256,), "fp16", "weight")  # 512 B
    b.buffer("in", (16,), "fp32", "input")  # 64 B
    b.buffer("a", (8,), "fp16", slots=2)  # 32 B
    b.buffer("b", (32,), "fp32")  # 128 B
    b.buffer("out", (64,), "fp32", "output")  # 256 B
    b.buffer("unused", (4096,), "fp32")
    b.round(b.local("copy", "a", "in", size=8))
    b.round(b.local("copy", "b", "a", size=8))
    b.round(b.local("copy", "out", "b", size=32))
    return b


@pytest.mark.parametrize("role", ["input", "output", "state"])
def test_a_schedule_without_rounds_holds_its_values(role):
    b = Builder(Mesh(2, 1), "still")
    b.buffer("x", (16,), "fp32", role)
    assert sram.account(b.build()).by_buffer == {"x": 64}


def test_buffers_live_from_first_use_to_last():
    found = sram.account(three_rounds(Mesh(2, 3)).build())
    assert (found.peak_bytes, found.peak_round) == (512 + 128 + 256, 2)
    assert list(found.by_buffer.items()) == [("w", 512), ("out", 256), ("b", 128)]


def test_the_limit_is_met_exactly():
    assert three_rounds(Mesh(2, 3, small(896))).build()
    with pytest.raises(SramError) as caught:
        three_rounds(Mesh(2, 3, small(895), origin=(4, 5))).build()
    assert str(caught.value) == (
        "three on mesh 2x3: core (4, 5) (and every other) needs 896 B in round 2, 1 B over the 895 B of SRAM on small: "
        "w 512 B, out 256 B, b 128 B"
    )
    assert isinstance(caught.value, WaferError)


@dataclass(frozen=True)
class Case:
    """An operation whose operands overflow a mesh."""

    name: str
    mesh: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        return f"{self.name}-mesh{self.mesh}-{str(self.dtype).removeprefix('torch.')}"

    def run(self, mesh: Mesh) -> None:
        getattr(ops, self.name)(*(torch.zeros(shape, dtype=self.dtype) for shape in self.shapes), mesh=mesh)

    def overflow(self, mesh: Mesh) -> str:
        with pytest.raises(SramError) as caught:
            self.run(mesh)
        return str(caught.value)


CASES = [
    Case("mesh_gemm", "1", ((200, 200), (200, 200))),
    Case("mesh_gemm", "3", ((500, 300), (300, 411)), torch.float16),
    Case("mesh_gemm", "5", ((997, 997), (997, 997)), torch.bfloat16),
    Case("mesh_gemm", "2x3", ((150, 150), (150, 150))),
    Case("mesh_gemm", "2x4", ((300, 300), (300, 300))),
    Case("mesh_gemm", "4x1", ((300, 200), (200, 300))),
    Case("mesh_gemm_t", "2", ((200, 300), (100, 300))),
    Case("mesh_gemv", "4", ((500,), (500, 900))),
    Case("mesh_gemv", "2x4", ((3, 500), (500, 900)), torch.float16),
    Case("rms_norm", "2x3", ((300, 300), (300,))),
    Case("softmax", "3x2", ((300, 300),)),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_overflow_says_how_many_bytes_are_missing(case):
    mesh = as_mesh(case.mesh)
    needed, over = re.search(r"needs ([\d,]+) B in round \d+, ([\d,]+) B over", case.overflow(mesh)).groups()
    needed, over = (int(number.replace(",", "")) for number in (needed, over))
    assert needed - over == mesh.device.sram_bytes
    case.run(replace(mesh, device=replace(mesh.device, name="exact", sram_bytes=needed)))
    case.overflow(replace(mesh, device=replace(mesh.device, name="short", sram_bytes=needed - 1)))


def test_overflow_stops_before_anything_runs(monkeypatch):
    monkeypatch.setattr(Executor, "bind", lambda *_: pytest.fail("bound"))
    with pytest.raises(SramError, match="needs 480,000 B"):
        ops.mesh_gemm(torch.zeros(200, 200), torch.zeros(200, 200), mesh=1)
