"""How long MeshGEMM's rounds are expected to take on a GPU, by rounds a launch: python bench/harness/window.py 64 660

SIDE x SIDE cores, of which the GPU holds RESIDENT programs at once. Steps are those of `kernels.protocol.launch_steps`:
in a step every program that is there, and whose neighbours are as far, does a round. A model, not a measurement.
"""

import argparse

import numpy as np

from wafer_triton.kernels.protocol import launch_steps, neighbours, rounds_at_once, window
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.product import recipe


def tables(side: int) -> list[np.ndarray]:
    """Whom each core of MeshGEMM sends its tile of A and of B to."""
    schedule = recipe("gemm", Mesh(side, side), "bf16", ((side, side), (side, side)), ()).schedule
    shift = next(round_ for round_ in schedule.rounds if any(op.op == "gemm" for op in round_.locals))
    return [np.array(table) for table in neighbours(shift, schedule.mesh)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="MeshGEMM's expected time by rounds a launch")
    parser.add_argument("side", type=int)
    parser.add_argument("resident", type=int, help="programs that the GPU holds at once")
    args = parser.parse_args(arguments)
    to, order = tables(args.side), np.arange(args.side**2)
    chosen = window(to, order, args.resident, args.side)
    print("rounds a launch  steps, launches and sums included")
    for rounds in range(1, min(rounds_at_once(to, order, args.resident), args.side) + 1):
        mark = "  chosen" if rounds == chosen else ""
        print(f"{rounds:15}  {launch_steps(to, order, args.resident, rounds, args.side):8,.0f}{mark}")


if __name__ == "__main__":
    main()
