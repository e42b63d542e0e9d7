"""MeshGEMM's compute-shift rounds (WaferLLM, OSDI'25, section 5), with explicit exchange.

In a round each core multiplies the tiles in its slots, and while they are in registers copies them into its
neighbours' other slots. As a round reads one slot and writes the other, the order of programs cannot matter. A launch
runs one round; or all rounds, if the GPU holds the whole mesh at once: sums then stay in registers, and programs
synchronize by flags, whose protocol is in `tests/helpers/protocol.py`.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from wafer_triton import kernels
from wafer_triton.kernels._common import Operand, compiling, constants, resident_programs, start, store, tile_ptr
from wafer_triton.kernels.fused import MAX_PROGRAMS
from wafer_triton.kernels.gemm import accumulate, initial_sums, plan, product
from wafer_triton.kernels.waiting import Alarm, wait

FLAGS = tl.constexpr(kernels.FLAGS)
# A tile is both multiplied and sent, for which Triton 3.6 and 3.7 allocate one shared buffer too few: with two stages
# the copy of the next tile overwrites one that the tensor cores still read. One stage or three are safe.
STAGES = 1


@triton.jit
def _round_kernel(c, a, b, next_a, next_b, send_a_ptr, send_b_ptr, cores_ptr, cores, P, LOOPS: tl.constexpr):
    first = tl.program_id(0) * LOOPS
    for number in range(first, first + 1 if LOOPS == 1 else min(first + LOOPS, cores)):
        core = tl.load(cores_ptr + number)
        product(
            tile_ptr(c, core), tile_ptr(a, core), tile_ptr(b, core),
            tile_ptr(next_a, tl.load(send_a_ptr + core)) if send_a_ptr is not None else None,
            tile_ptr(next_b, tl.load(send_b_ptr + core)) if send_b_ptr is not None else None, P,
        )  # fmt: skip


@triton.jit
def _slot_ptr(x, spare, slot, core):
    """Return a pointer to the core's tile in slot 0 (x) or 1 (spare), which have the same offset and stride."""
    return tl.where(slot == 0, x.tensor, spare.tensor) + x.offset + core.to(tl.int64) * x.stride


@triton.jit(do_not_specialize=["launch", "rounds"])
def _rounds_kernel(
    c, out, a, spare_a, b, spare_b, neighbours_ptr, counters_ptr, cores_ptr, cores, alarm_ptr, launch, rounds, P
):
    core = tl.load(cores_ptr + tl.program_id(0))
    # [FLAGS]: the receivers of this core's a and b, then the senders of them
    neighbours_ptr += core * FLAGS
    offs_m, offs_n = tl.arange(0, P.BLOCK_M), tl.arange(0, P.BLOCK_N)
    # [BLOCK_M, BLOCK_N]
    offs_c = offs_m[:, None] * P.N + offs_n[None, :]
    mask_c = (offs_m < P.M)[:, None] & (offs_n < P.N)[None, :]
    total = initial_sums(tile_ptr(c, core) + offs_c, mask_c, P)

    slot = 0
    for number in range(rounds):
        if number > 0:  # until both tiles have arrived, and both receivers have a free slot
            wait(counters_ptr + slot * cores + core, FLAGS, alarm_ptr, launch, core, number)
        # .cg: read from L2, as another SM wrote the tile. Each of the four neighbours gets one arrival, the receivers
        # for the tile, the senders as a credit. None in the last round, so that a launch leaves the counters at zero
        total = accumulate(
            total,
            _slot_ptr(a, spare_a, slot, core), _slot_ptr(b, spare_b, slot, core),
            _slot_ptr(a, spare_a, 1 - slot, tl.load(neighbours_ptr)),
            _slot_ptr(b, spare_b, 1 - slot, tl.load(neighbours_ptr + 1)),
            counters_ptr + (1 - slot) * cores + tl.load(neighbours_ptr + tl.arange(0, FLAGS)),
            (number < rounds - 1).to(tl.int32), 0, 0, ".cg", P,
        )  # fmt: skip
        slot = 1 - slot

    store(tile_ptr(out, core) + offs_c, total, mask_c)


def one_round(
    c: Operand, a: Operand, b: Operand, next_a: Operand, next_b: Operand,
    send_a: Tensor | None, send_b: Tensor | None, cores: Tensor, **params: Any,
) -> None:  # fmt: skip
    """Compute c (+)= a @ b on every core, and copy core i's tile of a to next_a of core send_a[i]; b likewise.

    `send_a` and `send_b` are int32 [cores]; None sends nothing.
    """
    sizes, options = plan(a, b, **params)
    loops = -(-cores.numel() // MAX_PROGRAMS)
    start(
        _round_kernel, -(-cores.numel() // loops), c, a, b, next_a, next_b, send_a, send_b, cores, cores.numel(),
        constants(sizes), LOOPS=loops, **options | {"num_stages": STAGES},
    )  # fmt: skip


def all_rounds(
    c: Operand, out: Operand, a: tuple[Operand, Operand], b: tuple[Operand, Operand],
    neighbours: Tensor, counters: Tensor, cores: Tensor, alarm: Alarm, *, rounds: int, **params: Any,
) -> Any:  # fmt: skip
    """Run `rounds` compute-shift rounds in one launch, from the first slots of a and b, with the bits of `one_round`.

    `neighbours` int32 [cores, 4]: to whom core i sends a and b, then from whom it receives a and b. `counters` int32
    [2, cores] is 0 before and after. All programs must be on the GPU at once; CUDA refuses a launch of more. Returns
    the compiled kernel.
    """
    sizes, options = plan(a[0], b[0], **params)
    # a tile must not be fetched before its round: no pipelining over rounds
    return start(
        _rounds_kernel, cores.numel(), c, out, *a, *b, neighbours, counters, cores, counters.shape[1], alarm.word,
        alarm.launch, rounds, constants(sizes), launch_cooperative_grid=True, **options | {"num_stages": 1},
    )  # fmt: skip


def residency(
    c: Operand, out: Operand, a: tuple[Operand, Operand], b: tuple[Operand, Operand], *rest: Any, **params: Any
) -> int:
    """Return how many programs of `all_rounds` this GPU holds at once, by its driver; 0 if it cannot run the product.

    A core's sums must be one block, and both slots of an operand at the same offset and stride in their tensors.
    """
    sizes, _ = plan(a[0], b[0], **params)
    same_layout = all(x.offset == y.offset and x.stride == y.stride for x, y in (a, b))
    one_block = sizes["HEADS"] == 1 and sizes["M"] <= sizes["BLOCK_M"] and sizes["N"] <= sizes["BLOCK_N"]
    if sizes["MODE"] == "rows" or not same_layout or not one_block:
        return 0
    with compiling():
        kernel = all_rounds(c, out, a, b, *rest, rounds=1, **params)
    return resident_programs(kernel, c.tensor.device)
