"""The replay of docs/examples equals a buffer in numpy, bit by bit."""

import runpy

import numpy as np
import pytest
import torch

import walk
from examples import FOLDER, with_names_of_operations
from wafer_triton import WaferError, check
from wafer_triton.errors import SramError

pytestmark = pytest.mark.slow
COLUMNS = {"observations": 7, "reward": 1}


@pytest.fixture(scope="module")
def replay_of():
    with with_names_of_operations():
        yield runpy.run_path(str(FOLDER / "replay.py"))["Replay"]


class Buffer:
    """The same ring of slots in numpy."""

    def __init__(self, capacity):
        self.weights, self.next, self.filled = np.zeros(capacity, np.float32), 0, 0
        self.columns = {name: np.zeros((capacity, width), np.float32) for name, width in COLUMNS.items()}

    def insert(self, weights, columns):
        ids = (self.next + np.arange(len(weights))) % len(self.weights)
        self.weights[ids] = weights
        for name, rows in columns.items():
            self.columns[name][ids] = rows
        self.next = (self.next + len(ids)) % len(self.weights)
        self.filled = min(self.filled + len(ids), len(self.weights))

    def select(self, kind, n, numbers):
        if kind == "uniform":
            return np.floor(numbers * self.filled)
        if kind == "weighted":
            ends = self.weights.cumsum()
            return np.searchsorted(ends, numbers * ends[-1], side="right")
        keys = self.weights if kind == "top" else np.divide(self.weights, numbers)
        return np.lexsort((np.arange(len(keys)), -keys))[:n]


@pytest.mark.parametrize(("mesh", "capacity"), [("1x4", 5), ("3x3", 9), ("2x5", 11), ("5x2", 23)])
def test_300_operations_equal_those_on_a_buffer_in_numpy(replay_of, mesh, capacity):
    """Weights are few whole numbers, so that sums are exact and ties and zeros are common."""
    replay, buffer, random = replay_of(mesh, capacity, COLUMNS), Buffer(capacity), np.random.default_rng(0)
    seen = dict.fromkeys(["uniform", "weighted", "distinct", "top", "all", "row"], 0)
    for step in range(300):
        n = int(random.integers(1, 5))
        if step == 0 or random.random() < 0.4:
            weights = random.integers(0, 4, n).astype(np.float32)
            columns = {name: random.standard_normal((n, width), np.float32) for name, width in COLUMNS.items()}
            replay.insert(weights, **{name: torch.from_numpy(rows) for name, rows in columns.items()})
            buffer.insert(weights, columns)
            continue
        kind, to = random.choice(["uniform", "weighted", "distinct", "top"]), random.choice(["all", "row"])
        numbers = random.integers(0, 1024, n).astype(np.float32) / 1024
        if kind == "distinct":
            numbers = random.exponential(size=capacity).astype(np.float32)
        positive, filled = (buffer.weights > 0).sum(), buffer.filled
        if {"uniform": 0, "weighted": 1, "distinct": n, "top": 0}[kind] > positive or (kind == "top" and n > filled):
            with pytest.raises(WaferError):
                replay.select(kind, n, torch.from_numpy(numbers))
            continue
        ids = replay.select(kind, n, torch.from_numpy(numbers))
        assert ids.tolist() == buffer.select(kind, n, numbers).tolist()
        for name, rows in replay.collect(ids, to).items():
            assert np.array_equal(rows.numpy(), buffer.columns[name][ids.numpy()])
        seen[kind] += 1
        seen[to] += 1
    assert min(seen.values()) > 0, seen


def test_slots_are_drawn_as_often_as_their_weights_say(replay_of):
    """Of 1,024 numbers that are evenly spaced each slot gets its weight, to the last slot."""
    replay, weights = replay_of("3x2", 12, {"reward": 1}), torch.randint(0, 200, (12,))
    weights[4], weights[-1] = 0, 3
    weights[5] += 1024 - weights.sum()
    replay.insert(weights, reward=torch.zeros(12, 1))
    ids = torch.cat([replay.select("weighted", 64, u) for u in (torch.arange(1024) / 1024).view(16, 64)])
    assert torch.equal(ids.bincount(minlength=12), weights)


def test_bad_input_is_refused_and_nothing_is_lost(replay_of):
    replay, rewards = replay_of("2x2", 4, {"reward": 1}), torch.arange(3.0)[:, None]
    with pytest.raises(WaferError, match="select: 1 of 0 trajectories; insert more, or select fewer"):
        replay.select("top", 1)
    replay.insert([0, 0, 0], reward=rewards)
    for call, message in (
        (lambda: replay.insert([1, -2], reward=rewards[:2]), "insert: weight -2.0; give numbers of at least 0"),
        (lambda: replay.insert([1, float("inf")], reward=rewards[:2]), "insert: weight inf; give numbers of at least"),
        (lambda: replay.insert([1] * 5, reward=rewards), "insert: 5 trajectories for 4 slots; insert at most so many"),
        (lambda: replay.insert([1], reward=rewards), r"insert: column 'reward' is \(3, 1\); give \[1, 1\] numbers"),
        (lambda: replay.select("weighted", 2, torch.zeros(2)), "select: all weights are 0; insert one above 0, or"),
        (lambda: replay.select("distinct", 2, torch.ones(4)), "select: 2 distinct of 0 trajectories with a weight"),
        (lambda: replay.select("top", 4), "select: 4 of 3 trajectories; insert more, or select fewer"),
        (lambda: replay.select("uniform", 1, torch.ones(1)), "select: numbers must be at least 0 and below 1"),
        (lambda: replay.select("distinct", 1, torch.zeros(4)), "select: numbers must be exponential ones, above 0"),
        (lambda: replay.select("best", 1), "select: 'best'; choose one of uniform, weighted, distinct, top"),
        (lambda: replay.collect(torch.tensor([0, 3])), "collect: slot 3; give slots from 0 to 2, which are filled"),
    ):
        with pytest.raises(WaferError, match=message):
            call()
    with pytest.raises(SramError, match="weights"):
        replay_of("2x2", 4, {"reward": 2**16})
    assert torch.equal(replay.collect(torch.arange(3))["reward"], rewards)


def test_schedules_of_three_meshes_are_healthy_and_counted_as_the_walk_counts_them(replay_of):
    made = {}
    for mesh, capacity in (("2x3", 6), ("3x2", 9), ("4x1", 8)):
        replay, n = replay_of(mesh, capacity, {"reward": 4}), 3
        schedules = [replay.insertion(n), replay.collection(n, "all")[0]]
        schedules += [replay.selection(kind, n) for kind in ("weighted", "distinct", "top")]
        made |= {f"{one.name} on {mesh}": one for one in schedules}
    assert all(check(one).ok for one in made.values())
    walk.check(made)
