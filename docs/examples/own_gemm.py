"""A product of matrices of one's own, after Fox (1987): a diagonal of A is multicast along rows, B moves up by one.

`wafer-triton compare docs/examples/own_gemm.py:fox` puts it beside MeshGEMM, Cannon, SUMMA and all-gather.
"""

import numpy as np
import torch

from wafer_triton import Builder, Intent, Mesh, executor, routes


def multiplied(tiles):
    """Return the tiles of C = A B, in plain torch."""
    return {"c": torch.einsum("yzmk,zxkn->yxmn", tiles["a"], tiles["b"])}


def fox(side=4, tile=8):
    """Return C = A B for matrices of side x tile rows, and its intent."""
    b, line = Builder(Mesh(side, side), "Fox's product"), np.arange(side)
    for name in ("a", "b", "a.now", "b.next"):
        b.buffer(name, (tile, tile), "fp32", "input" if name in ("a", "b") else "scratch")
    b.buffer("c", (tile, tile), "fp32", "output")
    hands = ["b", "b.next"]
    for turn in range(side):
        diagonal = np.repeat((line[:, None] + turn) % side, side, 1)  # in row i the tile of column i + turn
        b.round(
            b.exchange("x", "a", "a.now", send=diagonal, recv=np.tile(line, (side, 1))),
            b.exchange("y", *hands, send=line, recv=(line - 1) % side),
            b.local("gemm", "c", ("a.now", hands[0]), m=tile, k=tile, n=tile, add=turn > 0),
            label="turn",
        )
        hands.reverse()
    cuts = {"a": "(y m) (x k)", "b": "(y k) (x n)"}
    return b.build(), Intent(given=cuts, result={"c": "(y m) (x n)"}, reference=multiplied)


if __name__ == "__main__":
    schedule, _ = fox()
    a, b = torch.randn(2, 32, 32)
    tiles = {"a": a, "b": b}
    tiles = {name: whole.view(4, 8, 4, 8).transpose(1, 2) for name, whole in tiles.items()}
    program = executor("torch").bind(schedule, tiles)
    program.run()
    torch.testing.assert_close(program.read("c").transpose(1, 2).reshape(32, 32), a @ b, rtol=1e-4, atol=1e-4)
    print(f"{schedule.name} is right; it needs {routes(schedule).colours} routes, and a WSE-2's routers hold 24")
