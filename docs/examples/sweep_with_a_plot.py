"""A sweep over a number of the device with a plot: what slower hops do to a vector-matrix product."""

from wafer_triton import draw
from wafer_triton.compare.sweep import sweep

if __name__ == "__main__":
    rows = sweep("gemv", "hop_cycles", [0.5, 1, 2, 4, 8], mesh=240, k=4096, n=4096)
    draw.sweep(rows, "hops.svg", show="cycles", title="MeshGEMV on 240 x 240 cores like those of a WSE-2")
    print("written: hops.svg;", ", ".join(f"{row['hop_cycles']}: {row['cycles']:,.0f}" for row in rows), "cycles")
