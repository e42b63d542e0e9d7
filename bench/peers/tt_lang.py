"""tt-lang's functional simulator: a node a core, which reads a row of A's tiles and a column of B's from DRAM."""

from collections.abc import Callable

import numpy as np
import torch

PACKAGES = ("tt-lang-sim", "torch")


def prepare(side: int, a: np.ndarray, b: np.ndarray) -> Callable[[], torch.Tensor]:
    import ttl
    import ttnn

    torch.set_num_threads(1)
    device = ttnn.open_device(device_id=0)

    def tensor(x: np.ndarray) -> ttnn.Tensor:
        return ttnn.from_torch(torch.from_numpy(x), dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=device)

    @ttl.operation(grid=(side, side))
    def product(a: ttnn.Tensor, b: ttnn.Tensor, c: ttnn.Tensor) -> None:
        a_in, b_in, sums, out = (ttl.make_dataflow_buffer_like(x, shape=(1, 1), block_count=2) for x in (a, b, c, c))

        @ttl.datamovement()
        def read() -> None:
            j, i = ttl.node(dims=2)
            for k in range(side):
                with a_in.reserve() as a_block, b_in.reserve() as b_block:
                    a_move = ttl.copy(a[i : i + 1, k : k + 1], a_block)
                    b_move = ttl.copy(b[k : k + 1, j : j + 1], b_block)
                    a_move.wait()
                    b_move.wait()

        @ttl.compute()
        def compute() -> None:
            with sums.reserve() as block:
                block.store(ttl.block.fill(0, shape=block.shape))
            for _ in range(side):
                with a_in.wait() as a_block, b_in.wait() as b_block, sums.wait() as before, sums.reserve() as block:
                    block.store(before + a_block @ b_block)
            with sums.wait() as block, out.reserve() as last:
                last.store(block)

        @ttl.datamovement()
        def write() -> None:
            j, i = ttl.node(dims=2)
            with out.wait() as block:
                move = ttl.copy(block, c[i : i + 1, j : j + 1])
                move.wait()

    left, right = tensor(a), tensor(b)

    def call() -> torch.Tensor:
        c = tensor(np.zeros(a.shape, np.float32))
        product(left, right, c)
        return ttnn.to_torch(c)

    return call
