"""The same fp32 product by this emulator and by other tools on this CPU: python bench/peers/run.py

Each tool has an environment of its own in build/peers, made by package name, and each size a process of its own. Times
are CPU seconds of one call, of all threads, after a first call; the result is checked against numpy in fp64. Emulation
times, never a wafer's. A size is left out where the next smaller one says that a call takes more than a minute.
"""

import argparse
import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = {"jax": ("jax",), "tt-lang": ("tt-lang-sim", "torch")}  # besides this one
PEERS = {  # its name in the table, its environment
    "elided": ("wafer_triton, elided exchange", None),
    "explicit": ("wafer_triton, explicit exchange", None),
    "recorded": ("wafer_triton, explicit exchange, with a record", None),
    "by_hand": ("batched PyTorch by hand", None),
    "shard_map": ("JAX shard_map, a device a core", "jax"),
    "tt_lang": ("tt-lang's simulator, tiles from DRAM", "tt-lang"),
    "interpreted": ("wafer_triton, explicit exchange, Triton interpreter", None),
    "triton_interpreter": ("the Triton interpreter, one file", None),
    "pallas": ("JAX Pallas interpreted, remote copies", "jax"),
}
SIDES, TILES = (4, 8, 16, 32), (16, 32)
LONGEST = 60.0  # CPU seconds of a call
Row = dict[str, Any]


def environment(name: str | None) -> Path:
    """Return the folder of programs of an environment, which is made if it is missing."""
    if name is None:
        return Path(sys.executable).parent
    folder = ROOT / "build/peers" / name
    if not (folder / "bin/pip").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    constraints = ROOT / ".ci/constraints.txt"
    install = [str(folder / "bin/pip"), "install", "-q", *ENVIRONMENTS[name], "-c", str(constraints)]
    subprocess.run(install, check=True)
    return folder / "bin"


def rows(seconds: float) -> list[Row]:
    """Measure all peers, from small meshes to large ones."""
    found: list[Row] = []
    for peer, (_, name) in PEERS.items():
        programs = environment(name)
        run = str(programs / ("tt-lang-sim" if peer == "tt_lang" else "python"))
        for tile in TILES if peer != "tt_lang" else (32,):  # which its hardware has, and no other
            growth = 0.0  # of the time of a call, from one side to the next: as the products of tiles, at least
            for side in SIDES:
                if growth > LONGEST:
                    break
                call = [run, str(ROOT / "bench/peers/measure.py"), peer, str(side), str(tile), str(seconds)]
                one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
                done = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True, env=one_thread)
                row: Row = {"peer": peer, "side": side, "tile": tile, **json.loads(done.stdout.splitlines()[-1])}
                growth = 8 * row["cpu_seconds"]
                found.append(row)
                print(f"{peer} {side}x{side}, tiles of {tile}: {row['cpu_seconds'] * 1e3:.3g} ms", file=sys.stderr)
    return found


def table(found: list[Row]) -> str:
    """Return the CPU time of each peer: in ms of the elided exchange here, of all others as a multiple of it."""
    times = {(row["peer"], row["tile"], row["side"]): row["cpu_seconds"] for row in found}
    columns = [(tile, side) for tile in TILES for side in SIDES]
    lines = [
        "| | " + " | ".join(f"{side} x {side}, {tile}" for tile, side in columns) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for peer, (label, _) in PEERS.items():
        cells = []
        for size in columns:
            known, ours = times.get((peer, *size)), times["elided", *size]
            own = f"{ours * 1e3:.3g} ms" if peer == "elided" else None
            cells.append("-" if known is None else own or f"{float(f'{known / ours:.2g}'):,g} x")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def machine() -> str:
    """Return the processor's name."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{names[0].partition(': ')[2]}, {os.cpu_count()} cores" if names else "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU seconds of a size, at least one call")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/peers.json")
    given = parser.parse_args()
    found = rows(given.seconds)
    kept = {"machine": machine(), "date": str(date.today()), "rows": found}
    given.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(table(found), end="")


if __name__ == "__main__":
    main()
