"""A sweep over a number of the device with a plot: the cycles of a vector-matrix product with slower hops."""

from wafer_triton import draw
from wafer_triton.compare.sweep import sweep

if __name__ == "__main__":
    rows = sweep("gemv", {"hop_cycles": [0.5, 1, 2, 4, 8]}, mesh=240, k=4096, n=4096)
    draw.curves(rows, ["hop_cycles"], "cycles", "hops.svg", title="MeshGEMV on 240 x 240 cores like a WSE-2's")
    print("written: hops.svg;", ", ".join(f"{row['hop_cycles']}: {row['cycles']:,.0f}" for row in rows), "cycles")
