"""A worker of bench/gpu.py: it times the rows that the file does not name yet, until the time is up.

python bench/harness/worker.py DEVICE FILE UNTIL
"""

import math
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import torch

import limits
import timing
from cases import UnavailableError, free
from order import Timed, on_a_gpu, rehearsed
from supervise import Clock, read, write


def work(rows: Iterable[Timed], device: str, file: Path, until: float, clock: Clock = time) -> None:
    """Time rows and write a line as each begins and ends; stop when the device refuses to go on."""
    known = {line.get("begun") for line in read(file)}
    for row in rows:
        if row.name in known:
            continue
        if clock.time() > until:
            return
        write(file, begun=row.name, patience=row.patience if timing.is_cuda(device) else math.inf)
        torch.manual_seed(0)
        try:
            line = row.run(device)
        except UnavailableError as why:
            line = {"not_measured": str(why)}
        except Exception as error:  # the next row may do well
            line = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:2000]}
        write(file, row=row.name, **line)
        if "error" in line and timing.broken(device):
            return
        free(device)


def main(device: str, file: str, until: str) -> None:
    torch.set_num_threads(1)
    if device == "cpu":  # a rehearsal shows that rows run
        timing.LONGEST, limits.COPIED, limits.MATRIX["cpu"] = 0.0, 0, 64
    work(rehearsed() if device == "cpu" else on_a_gpu(), device, Path(file), float(until))


if __name__ == "__main__":
    main(*sys.argv[1:])
