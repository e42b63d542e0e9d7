"""Loads in flight, read from a kernel's machine code (SASS)."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import triton

LOAD = re.compile(r"LDG\.E\.(?:\w+\.)*128")
WIDTH = 4  # registers that a 16-byte load fills


def cuobjdump(cubin: bytes, option: str) -> str:
    """Return what a tool that comes with Triton says of a binary, such as its machine code by "-sass"."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True).stdout


def loads_in_flight(sass: str) -> int:
    """Return how many 16-byte loads from global memory begin, at most, before the first of their results is read.

    Instructions are taken in their order in the binary, and all that waits for one load waits for all.
    """
    most = 0
    flying: list[range] = []
    for name, written, read in _instructions(sass):
        if any(register in one for one in flying for register in read) or (not LOAD.match(name) and any(
            register in one for one in flying for register in written
        )):  # fmt: skip
            flying = []
        if LOAD.match(name):
            flying.append(range(written[0], written[0] + WIDTH))
            most = max(most, len(flying))
    return most


def _instructions(sass: str) -> Iterator[tuple[str, list[int], list[int]]]:
    """Yield the name of each instruction, the first registers that it writes and the registers that it reads."""
    for line in sass.splitlines():
        found = re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);", line)
        if found is None:
            continue
        name, operands = found.groups()
        first, _, others = operands.partition(",")
        numbers = lambda text: [int(number) for number in re.findall(r"\bR(\d+)", text)]  # noqa: E731
        stores = name.startswith(("ST", "RED", "BRA", "ATOM"))
        yield name, [] if stores else numbers(first), numbers(operands if stores else others)
