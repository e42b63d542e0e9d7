"""Streamed products against autograd, with each operand moving, on every kind of group."""

import os
from dataclasses import replace

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from wafer_triton.count.account import account
from wafer_triton.emulate.reference import Reference
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.errors import ScheduleError, SramError
from wafer_triton.train.cost import die_cost
from wafer_triton.train.dies import wafer
from wafer_triton.train.product import PASSES, Team, product

pytestmark = pytest.mark.slow

WAFER = wafer("wafer-48")
TEAMS = [
    ("relay", (1, 1), (1, 1)), ("relay", (2, 2), (2, 2)), ("cycle", (2, 2), (2, 2)), ("cycle", (2, 4), (2, 4)),
    ("relay", (3, 3), (3, 3)), ("relay", (3, 3), (1, 3)), ("relay", (1, 5), (1, 5)), ("interleaved", (1, 7), (1, 7)),
    ("relay", (1, 8), (1, 8)), ("wrap", (2, 3), (1, 3)), ("relay", (4, 2), (4, 1)),
]  # fmt: skip


def spread(team, blocks):
    """Return blocks [groups, N, ...] of all positions of all groups as tiles of dies [rows, cols, ...]."""
    tiles = blocks.new_zeros(*team.mesh.shape, *blocks.shape[2:])
    for group, own in zip(team.groups, blocks, strict=True):
        for position, die in enumerate(group):
            tiles[die] = own[position]
    return tiles


def collected(team, tiles):
    """Return the inverse of `spread`."""
    return torch.stack([torch.stack([tiles[die] for die in group]) for group in team.groups])


def ran(team, moving, which, sizes, executor, **tensors):
    """Return the outputs of a pass: in fp64 by the reference, without an executor, else in fp32."""
    schedule = product(team, moving, which, *sizes)
    outs = [name for name, buffer in schedule.buffers.items() if buffer.role == "output"]
    if executor is None:
        machine = Reference(schedule, tensors, exact=True)
        for name, tiles in tensors.items():  # unrounded
            machine.memory[name][:] = tiles.reshape(machine.memory[name].shape)
    else:
        machine = executor.bind(schedule, {name: tiles.flatten(2) for name, tiles in tensors.items()})
    machine.run()
    return {name: machine.read(name) for name in outs}


def slots(team, blocks, inverse=False):
    """Return tiles [rows, cols, N, ...] by block in the order of computing, or with `inverse` the other way round."""
    found = torch.empty_like(blocks)
    for group in team.groups:
        for position, die in enumerate(group):
            order = torch.tensor(team.moves.order[position])
            found[die] = blocks[die][order.argsort() if inverse else order]
    return found


def whole_product(team, moving, m, k, n, executor):
    """Return pairs of Y, dX and dW [groups, ...]: by a streamed product, and by autograd."""
    dtype = torch.float64 if executor is None else torch.float32
    N, G = team.size, len(team.groups)
    torch.manual_seed(m + 10 * k + 100 * n)
    by_k, by_n = (N, 1) if moving == "y" else (1, N)
    X = torch.randn(G, N * m, by_k * k, dtype=dtype, requires_grad=True)
    W = torch.randn(G, by_k * k, by_n * n, dtype=dtype, requires_grad=True)
    dY = torch.randn(G, N * m, by_n * n, dtype=dtype)
    Y = X @ W
    Y.backward(dY)

    def rows(t):
        return t.detach().unflatten(1, (N, -1))  # [G, N, rows, cols]

    def cols(t):
        return t.detach().unflatten(2, (N, -1)).transpose(1, 2)  # [G, N, rows, cols]

    def blocks_of(t):  # [G, N rows, N blocks of columns, m, n]
        return t.detach().unflatten(2, (N, -1)).unflatten(1, (N, -1)).permute(0, 1, 3, 2, 4)

    if moving == "y":
        parts = blocks_of(X).transpose(1, 2), rows(W), rows(dY)
        want = rows(Y), blocks_of(X.grad).transpose(1, 2), rows(W.grad)
    else:
        by_die = {"w": lambda t: blocks_of(t), "x": lambda t: blocks_of(t).transpose(1, 2)}[moving]
        parts = rows(X), cols(W), by_die(dY)
        want = by_die(Y), rows(X.grad), cols(W.grad)
    x, w, dy = (spread(team, part) for part in parts)
    sizes = m, k, n
    if moving == "y":
        x = slots(team, x)
        y = ran(team, moving, "forward", sizes, executor, x=x, w=w)["y"]
        back = ran(team, moving, "backward", sizes, executor, x=x, w=w, dy=dy)
        dx, dw = slots(team, back["dx"].view(x.shape), inverse=True), back["dw"]
    else:
        dy = slots(team, dy)
        y = slots(team, ran(team, moving, "forward", sizes, executor, x=x, w=w)["y"].view(dy.shape), inverse=True)
        dx = ran(team, moving, "dx", sizes, executor, dy=dy, w=w)["dx"]
        dw = ran(team, moving, "dw", sizes, executor, x=x, dy=dy)["dw"]
    got = (collected(team, y), collected(team, dx), collected(team, dw))
    return list(zip(got, want, strict=True))


def error(got, want):
    assert got.shape == want.shape
    return ((got - want).abs().max() / want.abs().max()).item()


@pytest.mark.parametrize("moving", PASSES)
@pytest.mark.parametrize(("kind", "shape", "sides"), TEAMS, ids=str)
def test_y_dx_dw_equal_autograd(kind, shape, sides, moving):
    team = Team(WAFER.mesh(*shape), kind, *sides)
    assert all(error(*pair) < 1e-10 for pair in whole_product(team, moving, 3, 2, 5, None))
    assert all(error(*pair) < 1e-5 for pair in whole_product(team, moving, 3, 2, 5, TorchExecutor()))


@pytest.mark.parametrize("moving", PASSES)
def test_a_product_on_triton_equals_autograd(moving):
    team = Team(WAFER.mesh(1, 2), "relay", 1, 2)
    assert all(error(*pair) < 1e-5 for pair in whole_product(team, moving, 3, 2, 5, TritonExecutor()))


def test_a_product_of_gpt3_175b_fits_only_in_slices():
    team = Team(WAFER.mesh(1, 8), "relay", 1, 8)
    m, k, n = 2048 // 8, 12288, 4 * 12288 // 8  # the first feed-forward product, rows and columns over 8 dies
    with pytest.raises(SramError, match=r"needs 660,602,880 B .* 80,000,000 B of SRAM .*w\.left0 150,994,944 B"):
        product(team, "w", "forward", m, k, n, "bf16")
    for which in PASSES["w"]:
        sliced = product(team, "w", which, m, k, n // 32, "bf16")  # W moves once, 32 slices of it one after the other
        assert account(sliced).sram_peak_bytes <= WAFER.sram_bytes


def test_seconds_are_the_longer_of_products_and_transfers():
    team = Team(WAFER.mesh(1, 4), "wrap", 1, 4)
    schedule = product(team, "w", "forward", 64, 512, 128, "bf16")
    block = 512 * 128 * 2
    cut, stored = (die_cost(schedule, replace(WAFER, forwarding=mode)) for mode in ("cut", "store"))
    assert cut.link == pytest.approx(3 * (3 * 200e-9 + block / 4e12))
    assert stored.link == pytest.approx(3 * 3 * (200e-9 + block / 4e12))  # the wrap has three hops
    assert cut.compute == stored.compute == pytest.approx(4 * 2 * 64 * 512 * 128 / 1800e12)
    assert cut.seconds >= max(cut.compute, cut.link, cut.hbm) and cut.flops == 4 * 4 * 2 * 64 * 512 * 128
    read_and_written = 64 * 512 * 2 + block + 4 * 64 * 128 * 4
    assert cut.hbm_bytes == 4 * read_and_written and cut.hbm == pytest.approx(read_and_written / 1e12)


def test_a_pass_that_does_not_exist_is_refused():
    with pytest.raises(ScheduleError, match="pass 'dx' with 'y' moving: choose 'w' with forward, dx, dw"):
        product(Team(WAFER.mesh(1, 2), "relay", 1, 2), "y", "dx", 1, 1, 1)
