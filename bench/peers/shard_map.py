"""JAX shard_map: Cannon's rounds by ppermute, a virtual CPU device a core."""

import os
from collections.abc import Callable

import numpy as np

PACKAGES = ("jax", "jaxlib")


def prepare(side: int, a: np.ndarray, b: np.ndarray) -> Callable[[], object]:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={side * side}"
    import jax
    from jax import lax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((side, side), ("y", "x"))
    ring = [(at, (at - 1) % side) for at in range(side)]
    cores = [(i, j) for i in range(side) for j in range(side)]
    along_x = [(i * side + j, i * side + (j - i) % side) for i, j in cores]  # alignment: row i moves by i
    along_y = [(i * side + j, (i - j) % side * side + j) for i, j in cores]

    def rounds(a: jax.Array, b: jax.Array) -> jax.Array:
        a, b = lax.ppermute(a, ("y", "x"), along_x), lax.ppermute(b, ("y", "x"), along_y)

        def one(_: int, state: tuple) -> tuple:
            a, b, c = state
            return lax.ppermute(a, "x", ring), lax.ppermute(b, "y", ring), c + a @ b

        zeros = lax.pcast(np.zeros((a.shape[0], b.shape[1]), np.float32), ("y", "x"), to="varying")
        return lax.fori_loop(0, side, one, (a, b, zeros))[2]

    where = P("y", "x")
    product = jax.jit(jax.shard_map(rounds, mesh=mesh, in_specs=(where, where), out_specs=where))
    left, right = (jax.device_put(x, NamedSharding(mesh, where)) for x in (a, b))
    return lambda: product(left, right).block_until_ready()
