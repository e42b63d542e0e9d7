"""One peer, one side of the mesh: CPU seconds of a product, and its largest error against numpy, as a JSON line.

`first_cpu_seconds` is the CPU time of the process until its first result, imports included; `peak_mb` its memory until
then, in MiB on Linux.

    python measure.py by_hand 8 32 0.5   # the peer, cores a side, rows and columns of a tile, CPU seconds

It runs in the peer's own environment, so it imports numpy and the peer alone.
"""

import json
import resource
import sys
from importlib import import_module, metadata
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import ours


def measured(peer: str, side: int, tile: int, seconds: float) -> dict[str, object]:
    """Time calls after a first one, which compiles, for at least `seconds` and at least once."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((tile * side, tile * side), dtype=np.float32) for _ in range(2))
    if peer in ours.PEERS:
        module, call = ours, ours.prepare(side, a, b, peer)
    else:
        module = import_module(peer)
        call = module.prepare(side, a, b)
    call()
    once = {"first_cpu_seconds": process_time(), "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    times: list[float] = []
    while sum(times) < seconds:
        before = process_time()  # of all threads
        found = call()
        times.append(process_time() - before)
    error = float(np.abs(np.asarray(found) - a.astype(np.float64) @ b.astype(np.float64)).max())
    assert error < 1e-3, f"{peer}: off by {error}"
    versions = {name: metadata.version(name) for name in module.PACKAGES}
    return {"cpu_seconds": median(times), "calls": len(times), **once, "error": error, "versions": versions}


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], *map(int, sys.argv[2:4]), float(sys.argv[4]))))
