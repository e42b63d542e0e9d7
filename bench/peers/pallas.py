"""JAX Pallas, interpreted: Cannon's rounds, a kernel a round, which sends a core's tiles by remote copies."""

import os
from collections.abc import Callable

import numpy as np

PACKAGES = ("jax", "jaxlib")


def prepare(side: int, a: np.ndarray, b: np.ndarray) -> Callable[[], object]:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={side * side}"
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((side, side), ("y", "x"))
    tile = a.shape[0] // side

    def kernel(a_ref, b_ref, c_ref, a_next, b_next, sums, sent, received):  # type: ignore[no-untyped-def]
        i, j = lax.axis_index("y"), lax.axis_index("x")
        ends = (a_ref, a_next, (i, (j - 1) % side)), (b_ref, b_next, ((i - 1) % side, j))
        copies = [
            pltpu.make_async_remote_copy(
                src_ref=source, dst_ref=target, send_sem=sent.at[n], recv_sem=received.at[n],
                device_id=to, device_id_type=pltpu.DeviceIdType.MESH,
            )
            for n, (source, target, to) in enumerate(ends)
        ]  # fmt: skip
        for copy in copies:
            copy.start()
        sums[...] = c_ref[...] + jnp.dot(a_ref[...], b_ref[...])
        for copy in copies:
            copy.wait()

    one = jax.ShapeDtypeStruct((tile, tile), jnp.float32)
    anywhere = pl.BlockSpec(memory_space=pltpu.VMEM)
    step = pl.pallas_call(
        kernel, out_shape=(one, one, one), in_specs=[anywhere] * 3, out_specs=(anywhere,) * 3,
        scratch_shapes=[pltpu.SemaphoreType.DMA((2,)), pltpu.SemaphoreType.DMA((2,))],
        interpret=pltpu.InterpretParams(),
    )  # fmt: skip

    def rounds(a: jax.Array, b: jax.Array) -> jax.Array:
        c = jnp.zeros((tile, tile), jnp.float32)
        for _ in range(side):
            a, b, c = step(a, b, c)
        return c

    where = P("y", "x")
    product = jax.jit(jax.shard_map(rounds, mesh=mesh, in_specs=(where, where), out_specs=where, check_vma=False))
    skewed = np.empty_like(a), np.empty_like(b)  # the host aligns the tiles: core (i, j) begins with k = i + j
    for i in range(side):
        for j in range(side):
            here, k = (slice(i * tile, i * tile + tile), slice(j * tile, j * tile + tile)), (i + j) % side
            along = slice(k * tile, k * tile + tile)
            skewed[0][here], skewed[1][here] = a[here[0], along], b[along, here[1]]
    left, right = (jax.device_put(x, NamedSharding(mesh, where)) for x in skewed)
    return lambda: product(left, right).block_until_ready()
