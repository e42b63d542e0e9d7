"""Experts in regions of cores, on one core: queueing for regions, and rows to and from messages."""

from __future__ import annotations

import triton
import triton.language as tl

from wafer_triton.kernels._common import Operand, block, load, store, tile_ptr, warps
from wafer_triton.kernels.fused import FusedOp, LocalKernel, fused_op


@triton.jit
def _enqueue(args, core, P):
    slots, ranks, demand, chosen, real = args
    # [BLOCK] picks, token by token
    offs = tl.arange(0, P.BLOCK)
    mask = offs < P.M * P.K
    chosen_ptr, real_ptr, slots_ptr = tile_ptr(chosen, core), tile_ptr(real, core), tile_ptr(slots, core)
    expert = load(chosen_ptr + offs // P.K * P.PICKS + offs % P.K, mask).to(tl.int32)
    taken = mask & (load(real_ptr + offs // P.K, mask) > 0)
    order = tl.zeros([P.BLOCK], tl.int32)
    for token in range(P.M):
        counts = tl.load(real_ptr + token + 0 * offs) > 0
        for pick in range(P.K):
            same = expert == tl.load(chosen_ptr + token * P.PICKS + pick).to(tl.int32)
            order += (same & (token * P.K + pick < offs) & counts).to(tl.int32)
    slot = expert % P.REGIONS * P.HELD + expert // P.REGIONS
    for copy in tl.static_range(P.COPIES):
        turned = (expert == P.EXPERTS[copy]) & (order % P.TURNS[copy] == P.TURN[copy])
        slot = tl.where(turned, P.SLOTS[copy], slot)
    tl.store(slots_ptr + offs, tl.where(taken, slot, -1).to(tl.float32), mask=mask)
    tl.debug_barrier()
    rank = tl.zeros([P.BLOCK], tl.int32)
    for other in range(P.M * P.K):
        place = tl.load(slots_ptr + other).to(tl.int32)
        rank += ((place >= 0) & (place // P.HELD == slot // P.HELD) & (other < offs)).to(tl.int32)
    tl.store(tile_ptr(ranks, core) + offs, tl.where(taken, rank, 0).to(tl.float32), mask=mask)
    tl.store(tile_ptr(demand, core), tl.max(tl.where(taken, rank + 1, 0), axis=0).to(tl.float32))


@LocalKernel
def enqueue(
    outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, m: int, k: int, picks: int, regions: int, held: int,
    copies: tuple[tuple[int, int], ...],
) -> FusedOp:  # fmt: skip
    """slots, ranks [m, k] and demand [1] of chosen [m, picks] and real [m]; as `local.enqueue_torch`."""
    experts = [expert for expert, _ in copies]
    cap = triton.next_power_of_2(m * k)
    sizes = {
        "M": m, "K": k, "PICKS": picks, "REGIONS": regions, "HELD": held, "BLOCK": cap,
        "COPIES": len(copies), "EXPERTS": tuple(experts), "SLOTS": tuple(slot for _, slot in copies),
        "TURN": tuple(experts[:number].count(expert) + 1 for number, expert in enumerate(experts)),
        "TURNS": tuple(experts.count(expert) + 1 for expert in experts),
    }  # fmt: skip
    return fused_op(_enqueue, (*outs, *ins), sizes, warps(cap))


@triton.jit
def _dispatch(args, core, P):
    out, h, slots, ranks = args
    for start in range(0, P.REGIONS * P.CAPACITY * (P.N + 1), P.BLOCK):
        # [BLOCK] of [REGIONS, CAPACITY, N + 1]
        offs = start + tl.arange(0, P.BLOCK)
        mask = offs < P.REGIONS * P.CAPACITY * (P.N + 1)
        store(tile_ptr(out, core) + offs, tl.zeros([P.BLOCK], tl.float32), mask)
    tl.debug_barrier()
    for token in range(P.M):
        for pick in range(P.K):
            slot = tl.load(tile_ptr(slots, core) + token * P.K + pick).to(tl.int32)
            rank = tl.load(tile_ptr(ranks, core) + token * P.K + pick).to(tl.int32) - P.FIRST
            sent = (slot >= 0) & (rank >= 0) & (rank < P.CAPACITY)
            out_ptr = tile_ptr(out, core) + (slot // P.HELD * P.CAPACITY + rank) * (P.N + 1)
            for start in range(0, P.N + 1, P.BLOCK_N):
                # [BLOCK_N], the row, then its expert
                offs_n = start + tl.arange(0, P.BLOCK_N)
                value = load(tile_ptr(h, core) + token * P.N + offs_n, sent & (offs_n < P.N))
                value = tl.where(offs_n < P.N, value, (slot % P.HELD).to(tl.float32))
                store(out_ptr + offs_n, value, sent & (offs_n < P.N + 1))


@LocalKernel
def dispatch(
    outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, m: int, k: int, n: int, regions: int, held: int,
    capacity: int, first: int,
) -> FusedOp:  # fmt: skip
    """out [regions, capacity, n + 1] of h [m, n], slots and ranks [m, k]; as `local.dispatch_torch`."""
    cap = block(regions * capacity * (n + 1), 1024)
    sizes = {
        "M": m, "K": k, "N": n, "REGIONS": regions, "HELD": held, "CAPACITY": capacity, "FIRST": first, "BLOCK": cap,
        "BLOCK_N": block(n + 1, 1024),
    }  # fmt: skip
    return fused_op(_dispatch, (*outs, *ins), sizes, warps(cap))


@triton.jit
def _permute(args, core, P):
    a, picks, arrived = args
    for start in range(0, P.SOURCES * P.CAPACITY * P.WIDTH, P.BLOCK):
        # [BLOCK] of [SOURCES, CAPACITY, SOURCES, N]
        offs = start + tl.arange(0, P.BLOCK)
        mask = offs < P.SOURCES * P.CAPACITY * P.WIDTH
        row, column = offs // P.WIDTH, offs % P.WIDTH // P.N
        came = (row // P.CAPACITY * P.SOURCES + column) * P.CAPACITY + row % P.CAPACITY
        value = load(tile_ptr(arrived, core) + came * (P.N + 1) + offs % P.N, mask)
        store(tile_ptr(a, core) + offs, value, mask)
    for start in range(0, P.SOURCES * P.CAPACITY, P.BLOCK):
        # [BLOCK] rows
        offs = start + tl.arange(0, P.BLOCK)
        mask = offs < P.SOURCES * P.CAPACITY
        came = offs // P.CAPACITY * P.SOURCES * P.CAPACITY + offs % P.CAPACITY
        store(tile_ptr(picks, core) + offs, load(tile_ptr(arrived, core) + came * (P.N + 1) + P.N, mask), mask)


@LocalKernel
def permute(
    outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, sources: int, capacity: int, n: int
) -> FusedOp:  # fmt: skip
    """a [sources * capacity, sources * n] and picks of [sources, sources, capacity, n + 1]."""
    cap = block(sources * capacity * sources * n, 1024)
    sizes = {"SOURCES": sources, "CAPACITY": capacity, "N": n, "WIDTH": sources * n, "BLOCK": cap}
    return fused_op(_permute, (*outs, *ins), sizes, warps(cap))


@triton.jit
def _unpermute(args, core, P):
    out, y = args
    for start in range(0, P.SIZE, P.BLOCK):
        # [BLOCK] of [SOURCES, SOURCES, CAPACITY, N]
        offs = start + tl.arange(0, P.BLOCK)
        mask = offs < P.SIZE
        to, row = offs // (P.CAPACITY * P.N), offs // P.N % P.CAPACITY
        lies = (to // P.SOURCES * P.CAPACITY + row) * P.SOURCES + to % P.SOURCES
        store(tile_ptr(out, core) + offs, load(tile_ptr(y, core) + lies * P.N + offs % P.N, mask), mask)


@LocalKernel
def unpermute(
    outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, sources: int, capacity: int, n: int
) -> FusedOp:  # fmt: skip
    """out [sources, sources, capacity, n] of y [sources * capacity, sources * n]."""
    size = sources * sources * capacity * n
    cap = block(size, 1024)
    sizes = {"SOURCES": sources, "CAPACITY": capacity, "N": n, "SIZE": size, "BLOCK": cap}
    return fused_op(_unpermute, (*outs, *ins), sizes, warps(cap))


@triton.jit
def _combine(args, core, P):
    y, back, slots, ranks, shares = args
    for token in range(P.M):
        for start in range(0, P.N, P.BLOCK_N):
            # [BLOCK_N]
            offs_n = start + tl.arange(0, P.BLOCK_N)
            mask_n = offs_n < P.N
            total = tl.zeros([P.BLOCK_N], tl.float32)
            for pick in range(P.K):
                slot = tl.load(tile_ptr(slots, core) + token * P.K + pick).to(tl.int32)
                rank = tl.load(tile_ptr(ranks, core) + token * P.K + pick).to(tl.int32) - P.FIRST
                came = (slot >= 0) & (rank >= 0) & (rank < P.CAPACITY)
                row_ptr = tile_ptr(back, core) + (slot // P.HELD * P.CAPACITY + rank) * P.N
                total += load(row_ptr + offs_n, came & mask_n) * tl.load(
                    tile_ptr(shares, core) + token * P.PICKS + pick
                )
            store(tile_ptr(y, core) + token * P.N + offs_n, total, mask_n)


@LocalKernel
def combine(
    outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, m: int, k: int, n: int, picks: int, regions: int,
    held: int, capacity: int, first: int,
) -> FusedOp:  # fmt: skip
    """y [m, n] of back [regions, capacity, n], slots and ranks [m, k], shares [m, picks]; as `local.combine_torch`."""
    cap = block(n, 1024)
    sizes = {
        "M": m, "K": k, "N": n, "PICKS": picks, "HELD": held, "CAPACITY": capacity, "FIRST": first, "BLOCK_N": cap,
    }  # fmt: skip
    return fused_op(_combine, (*outs, *ins), sizes, warps(cap))


@triton.jit
def _scale_rows(args, core, P):
    out, a, shares = args
    for start in range(0, P.M * P.N, P.BLOCK):
        # [BLOCK] of [M, N]
        offs = start + tl.arange(0, P.BLOCK)
        mask = offs < P.M * P.N
        share = load(tile_ptr(shares, core) + offs // P.N * P.PICKS + P.PICK, mask)
        store(tile_ptr(out, core) + offs, load(tile_ptr(a, core) + offs, mask) * share, mask)


@LocalKernel
def scale_rows(
    outs: tuple[Operand, ...], ins: tuple[Operand, ...], *, m: int, n: int, picks: int, pick: int
) -> FusedOp:  # fmt: skip
    """out [m, n] = the rows of a times shares [m, picks] of one pick."""
    cap = block(m * n, 1024)
    return fused_op(
        _scale_rows, (*outs, *ins), {"M": m, "N": n, "PICKS": picks, "PICK": pick, "BLOCK": cap}, warps(cap)
    )
