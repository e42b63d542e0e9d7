"""Kernels that send tokens' rows to the regions of their experts and back; see `wafer_triton.local.dispatch`."""

from __future__ import annotations

import triton
import triton.language as tl

from wafer_triton.kernels._common import block, load, read, store, tile_ptr, write
from wafer_triton.kernels.fused import each, local_kernel


@local_kernel(lambda ins, m, k, **_: {"BLOCK": triton.next_power_of_2(m * k)})
@triton.jit
def enqueue(args, core, P):
    slots, ranks, demand, expert_ids, real = args
    # [BLOCK] expert ids, token by token
    offs = tl.arange(0, P.BLOCK)
    mask = offs < P.M * P.K
    expert = read(expert_ids, core, offs // P.K * P.PER_TOKEN + offs % P.K, mask).to(tl.int32)
    taken = mask & (read(real, core, offs // P.K, mask) > 0)
    slot = expert % P.REGIONS * P.HELD + expert // P.REGIONS
    write(slots, core, offs, tl.where(taken, slot, -1).to(tl.float32), mask)
    tl.debug_barrier()
    rank = tl.zeros([P.BLOCK], tl.int32)
    for other in range(P.M * P.K):
        place = tl.load(tile_ptr(slots, core) + other).to(tl.int32)
        rank += ((place >= 0) & (place // P.HELD == slot // P.HELD) & (other < offs)).to(tl.int32)
    write(ranks, core, offs, tl.where(taken, rank, 0).to(tl.float32), mask)
    tl.store(tile_ptr(demand, core), tl.max(tl.where(taken, rank + 1, 0), axis=0).to(tl.float32))


@triton.jit
def _place(slot, rank, P):
    """Return the slot of a choice, its row of [REGIONS, CAPACITY], and whether it has one in this pass."""
    slot, rank = slot.to(tl.int32), rank.to(tl.int32) - P.FIRST
    return slot, slot // P.HELD * P.CAPACITY + rank, (slot >= 0) & (rank >= 0) & (rank < P.CAPACITY)


@local_kernel(lambda ins, n, **_: {"BLOCK": 1024, "ROW": block(n + 1, 1024)})
@triton.jit
def dispatch(args, core, P):
    out, h, slots, ranks = args
    SIZE: tl.constexpr = P.REGIONS * P.CAPACITY * (P.N + 1)
    for start in range(0, SIZE, P.BLOCK):
        # [BLOCK] of [REGIONS, CAPACITY, N + 1]
        offs = start + tl.arange(0, P.BLOCK)
        write(out, core, offs, tl.zeros([P.BLOCK], tl.float32), offs < SIZE)
    tl.debug_barrier()
    for token in range(P.M):
        for choice in range(P.K):
            at = token * P.K + choice
            slot, row, sent = _place(tl.load(tile_ptr(slots, core) + at), tl.load(tile_ptr(ranks, core) + at), P)
            out_ptr = tile_ptr(out, core) + row * (P.N + 1)
            for start in range(0, P.N + 1, P.ROW):
                # [ROW], the row, then its expert
                offs_n = start + tl.arange(0, P.ROW)
                value = load(tile_ptr(h, core) + token * P.N + offs_n, sent & (offs_n < P.N))
                value = tl.where(offs_n < P.N, value, (slot % P.HELD).to(tl.float32))
                store(out_ptr + offs_n, value, sent & (offs_n < P.N + 1))


@each(lambda sources, capacity, n: sources * capacity * sources * n)
@triton.jit
def permute(args, core, offs, mask, P):
    a, ids, arrived = args
    # [BLOCK] of [SOURCES, CAPACITY, SOURCES, N]
    column, row = offs // P.N % P.SOURCES, offs // (P.N * P.SOURCES)
    came = (row // P.CAPACITY * P.SOURCES + column) * P.CAPACITY + row % P.CAPACITY
    came_ptr = tile_ptr(arrived, core) + came * (P.N + 1)
    write(a, core, offs, load(came_ptr + offs % P.N, mask), mask)
    first = mask & (offs % (P.SOURCES * P.N) == 0)
    write(ids, core, row, load(came_ptr + P.N, first), first)


@each(lambda sources, capacity, n: sources * sources * capacity * n)
@triton.jit
def unpermute(args, core, offs, mask, P):
    out, y = args
    # [BLOCK] of [SOURCES, SOURCES, CAPACITY, N]
    to, row = offs // (P.CAPACITY * P.N), offs // P.N % P.CAPACITY
    lies = (to // P.SOURCES * P.CAPACITY + row) * P.SOURCES + to % P.SOURCES
    write(out, core, offs, read(y, core, lies * P.N + offs % P.N, mask), mask)


@each(lambda m, n, **_: m * n)
@triton.jit
def combine(args, core, offs, mask, P):
    y, back, slots, ranks, shares = args
    # [BLOCK] of [M, N]
    token, total = offs // P.N, tl.zeros([P.BLOCK], tl.float32)
    for choice in range(P.K):
        at = token * P.K + choice
        _, row, came = _place(read(slots, core, at, mask), read(ranks, core, at, mask), P)
        value = read(back, core, row * P.N + offs % P.N, mask & came)
        total += value * read(shares, core, token * P.PER_TOKEN + choice, mask)
    write(y, core, offs, total, mask)


@each(lambda m, n, **_: m * n)
@triton.jit
def scale_rows(args, core, offs, mask, P):
    out, a, shares = args
    share = read(shares, core, offs // P.N * P.PER_TOKEN + P.COLUMN, mask)
    write(out, core, offs, read(a, core, offs, mask) * share, mask)
