"""Counts of random steps are those of the definitions, and do not depend on names or on how exchanges are written."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from steps_at_random import facts, schedule
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.rounds import Exchange, Local, Moves, Round, Slot
from wafer_triton.schedule.steps import Loop, Part, Ring, Rounds, Step, Tree
from walk import check


def test_random_steps_have_the_counts_of_the_definitions():
    check({one.name: one for one in map(schedule, range(200))})


def spelled(step: Step, mesh: Mesh, names: dict[str, str], rng: Generator) -> Step:
    """Return a step with other names of buffers and labels, its exchanges split or merged and in another order."""
    if isinstance(step, Loop):
        return replace(step, body=tuple(spelled(one, mesh, names, rng) for one in step.body))

    def slot(one: Slot) -> Slot:
        return replace(one, buffer=names[one.buffer])

    def local(op: Local) -> Local:
        return replace(op, outs=tuple(map(slot, op.outs)), ins=tuple(map(slot, op.ins)))

    if isinstance(step, Ring):
        hands = tuple(tuple(map(slot, hand)) for hand in step.hands)
        return replace(step, product=local(step.product), hands=hands)
    if isinstance(step, Tree):
        parts = tuple(Part(slot(acc), tuple(map(slot, mail)), size) for acc, mail, size in step.parts)
        return replace(step, parts=parts)
    together: dict[tuple[str, Slot, Slot], list[np.ndarray]] = {}
    for one in step.exchanges:
        rows, cols = np.divmod(np.stack(one.moves.ends(mesh)), mesh.shape[1])
        (send, recv), lines = (cols, rows[0]) if one.axis == "x" else (rows, cols[0])
        together.setdefault((one.axis, slot(one.src), slot(one.dst)), []).append(np.stack([send, recv, lines]))
    exchanges = []
    for (axis, src, dst), ends in together.items():
        every = np.concatenate(ends, 1)
        part = rng.integers(0, rng.integers(1, 4), every.shape[1])  # of which of up to three exchanges a message is
        for some in (every[:, part == number] for number in np.unique(part)):
            exchanges.append(Exchange(Moves(axis, *some, paired=True), src, dst))
    order = rng.permutation(len(exchanges))
    return Round(tuple(exchanges[at] for at in order), tuple(map(local, step.locals)), str(rng.integers(3)))


def test_names_labels_and_the_spelling_of_exchanges_are_of_no_account():
    wrong = {}
    for seed in range(300):
        rng, one = np.random.default_rng(seed), schedule(seed)
        names = dict(zip(one.buffers, rng.permutation([*one.buffers]).tolist(), strict=True))
        buffers = {names[name]: replace(buffer, name=names[name]) for name, buffer in one.buffers.items()}
        steps = [spelled(step, one.mesh, names, rng) for step in one.rounds.steps]
        before, after = facts(one), facts(replace(one, buffers=buffers, rounds=Rounds(steps)))
        before["sram_by_buffer"] = {names[name]: size for name, size in before["sram_by_buffer"].items()}
        found = [f"{name}: {before[name]} and {after[name]}" for name in before if before[name] != after[name]]
        if found:
            wrong[one.name] = found
    assert not wrong, next(iter(wrong.items()))
