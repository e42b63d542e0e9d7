"""The KV cache: the core of every token, the messages, the capacity, and the values after hundreds of appends."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pairs import in_turn
from wafer_triton.algorithms.kv_cache import KvCache
from wafer_triton.count.account import account
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import CacheError, WaferError
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.schedule import Schedule

rows_and_entries = given(rows=st.integers(1, 9), entries=st.integers(1, 7))


def appending(cache: KvCache, count: int, cols: int = 2) -> Schedule:
    b = Builder(Mesh(cache.rows, cols), "append")
    for name in ("k", "v"):
        b.buffer(f"{name}_cache", (3,), "fp32", "cache", cache.slots)
        b.buffer(name, (3,), "fp32", "input")
    cache.append(b, {"k_cache": "k", "v_cache": "v"}, count)
    return b.build()


@rows_and_entries
def test_shift_keeps_rows_even_and_entries_in_order(rows, entries):
    cache = KvCache(rows, entries)
    assert cache.capacity == rows * entries
    for count in range(cache.capacity + 1):
        edges = cache.windows(count)
        sizes = np.diff(edges)
        assert (edges[0], edges[-1], len(edges)) == (0, count, rows + 1)
        assert sizes.max() - sizes.min() <= 1 and sizes.max() <= entries
        assert (np.diff(sizes) >= 0).all(), "the last rows are the fuller ones"
        table = cache.positions(count)
        assert table.shape == (rows, entries + 1)
        for row in range(rows):
            assert sorted(table[row][table[row] >= 0]) == list(range(edges[row], edges[row + 1]))
        assert (cache.row_of(count) == np.repeat(np.arange(rows), sizes)).all()


@pytest.mark.slow
@settings(max_examples=15)
@rows_and_entries
def test_only_neighbours_talk_and_only_upwards(rows, entries):
    cache = KvCache(rows, entries)
    for count in range(cache.capacity):
        made = appending(cache, count)
        (round_,) = made.rounds
        for exchange in round_.exchanges:
            assert exchange.axis == "y" and exchange.moves.lines is None
            assert (exchange.moves.send - exchange.moves.recv == 1).all()
        found = account(made)
        assert found.hops == (1 if count % rows else 0)
        assert found.messages == 2 * 2 * (count % rows)  # k and v, on two columns


@rows_and_entries
def test_an_entry_stays_in_its_slot_number(rows, entries):
    cache = KvCache(rows, entries)
    for count in range(cache.capacity):
        table = cache.positions(count)
        held, slots = np.nonzero(table >= 0)
        assert (table[held, slots] % cache.slots == slots).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "exchange"),
    in_turn([(1, 1, 40), (1, 3, 5), (2, 2, 30), (3, 1, 7), (5, 2, 60), (7, 3, 1), (16, 1, 12)], ("explicit", "elided")),
)
def test_values_after_hundreds_of_appends(sizes, exchange):
    rows, cols, entries = sizes
    cache = KvCache(rows, entries)
    executor = TorchExecutor(exchange=exchange, poison=True)
    tokens = torch.randn(2, cache.capacity, cols, 3)  # k and v
    memory: dict[str, torch.Tensor] = {}
    for count in range(cache.capacity):
        made = appending(cache, count, cols)
        given = {name: tokens[i, count].expand(rows, cols, 3) for i, name in enumerate("kv")}
        for name in made.buffers:
            if name not in memory:
                memory[name] = executor.allocate(made, made.buffers[name])
        program = executor.bind(made, given, memory)
        program.run()
        if count % 13 == 0 or count > cache.capacity - 3:
            table = torch.from_numpy(cache.positions(count + 1))
            held, slots = (table >= 0).nonzero(as_tuple=True)
            for i, name in enumerate("kv"):
                found = program.read(f"{name}_cache")  # [rows, cols, slots, 3]
                assert torch.equal(found[held, :, slots], tokens[i, table[held, slots]]), f"{name} at {count}"


@pytest.mark.parametrize(("rows", "entries"), [(1, 1), (3, 4)])
def test_the_error_of_a_full_cache_has_its_capacity(rows, entries):
    cache = KvCache(rows, entries)
    appending(cache, cache.capacity - 1)
    cache.room(cache.capacity)
    with pytest.raises(CacheError) as caught:
        appending(cache, cache.capacity)
    assert str(caught.value) == (
        f"the KV cache (shift) is full: it holds {rows * entries} tokens, {entries} on each of {rows} rows; "
        f"{rows * entries + 1} are wanted. Give a larger max_length"
    )


@pytest.mark.parametrize("prefilled", [0, 1, 7, 12])
def test_concat_fills_its_last_row(prefilled):
    cache = KvCache(3, 4, "concat", prefilled)
    share = -(-prefilled // 3)
    assert cache.capacity == prefilled + 4 - share
    for count in range(prefilled, cache.capacity):
        made = appending(cache, count)
        assert not made.rounds[0].exchanges
        assert cache.row_of(count + 1)[-1] == 2
        assert np.diff(cache.windows(count + 1)).tolist() == [
            *np.diff(cache.windows(prefilled))[:2],
            share + 1 + count - prefilled,
        ]
    with pytest.raises(
        CacheError, match=r"\(concat\) is full: .* on the last of 3 rows; .* a larger max_length, or policy 'shift'"
    ):
        appending(cache, cache.capacity)


@pytest.mark.parametrize("sizes", [("8", 4), (-8, 4), (8, 0), (8, 4, "shift", -1)])
def test_a_cache_without_rows_or_entries_is_refused(sizes):
    with pytest.raises(WaferError, match="must be a whole number"):
        KvCache(*sizes)


def test_an_unknown_policy_lists_the_known():
    with pytest.raises(CacheError, match="KV policy 'ring': choose one of shift, concat"):
        KvCache(3, 4, "ring")
