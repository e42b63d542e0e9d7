"""Rounds of moves in one launch: in whatever order a GPU gets to its messages, tiles end where they should."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from wafer_triton.emulate.chains import Move
from wafer_triton.emulate.relays import relayed
from wafer_triton.kernels import Moves, Operand

CORES = 6
BUFFERS = {name: torch.zeros(CORES) for name in ("a", "spare", "b")}


def move(src: str, dst: str, senders: list[int], receivers: list[int]) -> Move:
    operands = [Operand(BUFFERS[name], 0, 1) for name in (dst, src)]
    table = torch.zeros(len(senders), dtype=torch.int32)
    ends = (BUFFERS[name].data_ptr() for name in (src, dst))
    return Move(Moves(*operands, table, table), 1, np.array(receivers), np.array(senders), *ends, broadcast=False)


def turned(by: int) -> list[int]:
    return [(core + by) % CORES for core in range(CORES)]


ROUNDS = [
    (move("a", "spare", turned(0), turned(1)),),
    (move("spare", "a", [0, 1, 2], [1, 2, 0]),),
    (move("a", "b", [0, 1, 2], [2, 3, 4]), move("spare", "spare", [3], [0])),
    (move("b", "spare", [2], [1]),),
    (move("spare", "a", [0, 1, 4, 5], [3, 4, 5, 0]),),
    (move("a", "b", [3], [3]),),  # over a tile that nobody read
]


def carried(order, messages, kinds) -> dict[str, list[str]]:
    """Where tiles lie after messages in an order; each waits as the kernel does, and counters end at zero."""
    names = {tensor.data_ptr(): name for name, tensor in BUFFERS.items()}
    tiles = {name: [f"{name}{core}" for core in range(CORES)] for name in BUFFERS}
    arrived, todo = [0] * len(messages), list(range(len(messages)))
    while todo:
        number = order([one for one in todo if arrived[one] == messages[one][3]])
        todo.remove(number)
        receiver, sender, kind, awaited, *_, first, second = messages[number]
        arrived[number] -= awaited
        tiles[names[kinds[kind].target]][receiver] = tiles[names[kinds[kind].source]][sender]
        for later in (first, second):
            if later >= 0:
                assert later > number, "only later messages wait"
                arrived[later] += 1
    assert not any(arrived)
    return tiles


def test_every_order_that_the_waits_allow_gives_the_same_tiles():
    found = relayed(ROUNDS, CORES)
    messages = found.messages.tolist()
    want = carried(min, messages, found.kinds)
    assert want["a"] == ["a4", "a5", "a0", "a2", "a1", "a3"] and want["b"][2:4] == ["a1", "a2"]
    for seed in range(200):
        assert carried(random.Random(seed).choice, messages, found.kinds) == want


@pytest.mark.parametrize("field", [6, 7])
def test_each_wait_is_needed(field):
    found = relayed(ROUNDS, CORES)
    messages = found.messages.tolist()
    want = carried(min, messages, found.kinds)
    for message in messages:
        if message[field] >= 0:
            messages[message[field]][3] -= 1
            message[field] = -1
    results = [carried(random.Random(seed).choice, messages, found.kinds) for seed in range(50)]
    assert any(result != want for result in results)


def test_what_cannot_be_one_launch():
    part = replace(move("b", "a", [1], [2]), numel=2)
    assert relayed([(move("a", "b", [0], [1]),), (part,)], CORES) is None, "a slot and more than a slot"
    assert relayed([(move("a", "b", [0, 0], [1, 2]),)] * 2, CORES) is None, "one tile to two cores"
    assert relayed([(move("a", "b", [0], [1]),), (move("a", "spare", [0], [1]),)], CORES) is None, "in two rounds"
    assert relayed([(move("a", "b", [0], [1]),), (move("a", "b", [2], [3]),)], CORES) is None, "nobody waits"
