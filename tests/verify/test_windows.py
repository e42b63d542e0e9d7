"""Windows of rounds: as many in a launch as programs that wait can do with room for some of them."""

import numpy as np
import pytest

import window as window_tool
from wafer_triton.kernels.protocol import (
    LAUNCH_STEPS,
    SUMS_STEPS,
    compute_shift,
    launch_steps,
    neighbours,
    rounds_at_once,
    window,
)
from wafer_triton.mesh import Mesh
from wafer_triton.schedule.product import recipe
from wafer_triton.schedule.ring import ring
from wafer_triton.verify.interleavings import explore
from window import tables


@pytest.mark.slow
@pytest.mark.parametrize("size", (5, 6, 8))
def test_on_a_two_hop_ring_a_window_of_programs_is_enough_for_some_rounds(size):
    """As many as `rounds_at_once` says are free of faults in every interleaving, and one more can deadlock."""
    to = np.empty(size, np.int64)
    to[ring(size)] = np.roll(ring(size), -1)
    for resident in range(1, min(size, 6)):
        rounds = rounds_at_once([to], np.arange(size), resident)
        found = explore(compute_shift([to.tolist()], rounds), resident=resident)
        assert found.finding is None and found.complete
        found = explore(compute_shift([to.tolist()], rounds + 1), resident=resident)
        assert found.finding is not None and found.finding.verdict == "deadlock"


def test_rounds_at_once_of_meshgemm_and_cannon():
    shifts = {}
    for algorithm in ("mesh", "cannon"):
        made = recipe("gemm", Mesh(32, 32), "fp32", ((32, 32), (32, 32)), (("algorithm", algorithm),)).schedule
        shift = next(one for one in made.rounds if any(op.op == "gemm" for op in one.locals))
        shifts[algorithm] = [np.array(one) for one in neighbours(shift, made.mesh)]
    order = np.arange(32 * 32)
    assert rounds_at_once(shifts["mesh"], order, 528) == 9, "two rows of 32 away at most: 528 programs are 8 such steps"
    assert rounds_at_once(shifts["cannon"], order, 528) == 1, "the wrap-around crosses the mesh"
    assert rounds_at_once(shifts["mesh"], order[::-1], 528) == 9
    assert all(rounds_at_once(one, order, 1024) > 10**6 for one in shifts.values()), "all there at once"


@pytest.mark.parametrize(("side", "resident", "serial"), [(64, 660, 6), (32, 660, 11)])
def test_the_largest_safe_window_works_a_mesh_off_core_by_core(side, resident, serial):
    to, order = tables(side), np.arange(side * side)
    assert rounds_at_once(to, order, resident) == serial
    chosen = window(to, order, resident, side)
    assert 1 <= chosen < serial
    steps = {rounds: launch_steps(to, order, resident, rounds, side) for rounds in range(1, serial + 1)}
    assert steps[serial] > 4 * steps[chosen], "nearly all programs wait for one that is not there"
    assert steps[chosen] == min(steps.values())


def test_a_mesh_that_fits_runs_all_rounds_in_one_launch():
    to = tables(16)
    assert window(to, np.arange(256), 256, 16) == 16
    assert launch_steps(to, np.arange(256), 256, 16, 16) < launch_steps(to, np.arange(256), 256, 4, 16)
    assert window(to, np.arange(256), 255, 16) < 16


@pytest.mark.parametrize("resident", [1, 5, 20])
def test_steps_of_windows_are_those_of_programs_one_by_one(resident):
    """The same count by hand: in a step, programs that are there and whose neighbours are as far do a round."""
    to = tables(4)
    rounds = min(rounds_at_once(to, np.arange(16), resident), 4)
    done, begun, steps = [0] * 16, set(range(min(resident, 16))), 0
    near = [{int(table[core]) for table in to} | {int(np.flatnonzero(table == core)[0]) for table in to}
            for core in range(16)]  # fmt: skip
    while min(done) < rounds:
        ready = [
            core for core in begun if done[core] < rounds and all(done[other] >= done[core] for other in near[core])
        ]
        assert ready, "a safe window never stands still"
        for core in ready:
            done[core] += 1
        steps += 1
        running = sum(done[core] < rounds for core in begun)
        waiting = [core for core in range(16) if core not in begun]
        begun |= set(waiting[: resident - running])
    whole = launch_steps(to, np.arange(16), resident, rounds, rounds)
    assert whole == steps + LAUNCH_STEPS + SUMS_STEPS * 16 / resident


def test_the_model_of_windows_is_a_tool(capsys):
    window_tool.main(["32", "660"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 11 and sum("chosen" in line for line in lines) == 1
    assert "chosen" not in lines[-1], "the largest that is safe is the slowest"
