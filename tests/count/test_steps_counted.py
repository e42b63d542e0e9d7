"""Steps that a user may write have the counts, routes and price of their rounds, however these are written down."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.random import Generator

from steps_at_random import schedule
from wafer_triton import price
from wafer_triton.cost.constants import constants
from wafer_triton.count.account import account, link_loads
from wafer_triton.count.routes import routes
from wafer_triton.count.verdict import verdict
from wafer_triton.device.mesh import Mesh
from wafer_triton.schedule.rounds import Exchange, Local, Moves, Round, Slot
from wafer_triton.schedule.rules import findings
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.steps import Loop, Part, Ring, Rounds, Step, Tree
from walk import check


def facts(made: Schedule) -> dict[str, object]:
    cost, needed = price(made), routes(made)
    parts = {f"price: {name}": round(value, 6) for name, value in vars(cost).items()}
    loads = {way: load.tolist() for way, load in link_loads(made).items()}
    counts = account(made)
    letters = verdict(counts, made.mesh, constants(made.mesh.device).of(made.family), needed.colours, 1.0)
    return vars(counts) | parts | loads | letters | {"routers": needed.per_core.tolist(), "colours": needed.colours}


def differing(made: Schedule) -> list[str]:
    flat = replace(made, rounds=Rounds(made.rounds.flat))
    steps, rounds = facts(made), facts(flat)
    folded = made.mesh.fold[0] > 1  # where rows turn, the links of the first time stand for all times
    bound = {name: 0.01 * rounds["price: cycles"] for name in steps if folded and name.startswith("price: ")}
    return [
        f"{name}: {steps[name]} by the steps, {rounds[name]} by the rounds"
        for name in steps
        if steps[name] != rounds[name] and not (name in bound and abs(steps[name] - rounds[name]) < bound[name])
    ]


def test_random_steps_are_counted_and_priced_as_their_rounds():
    made = [schedule(seed) for seed in range(200)]
    wrong = {one.name: found for one in sorted(made, key=lambda one: len(one.rounds)) if (found := differing(one))}
    assert not wrong, next(iter(wrong.items()))
    kinds = {type(step).__name__ for one in made for step in one.rounds.steps}
    assert kinds == {"Round", "Loop", "Ring", "Tree"}


@pytest.mark.large
def test_random_steps_have_the_counts_of_the_definitions():
    check({one.name: one for one in map(schedule, range(200))})


def test_random_steps_break_rules_of_slots_alone():
    verdicts = {finding.verdict for seed in range(50) for finding in findings(schedule(seed))}
    assert verdicts <= {"two-writers", "overwritten"}


def spelled(step: Step, mesh: Mesh, names: dict[str, str], rng: Generator) -> Step:
    """Return a step with other names of buffers, its exchanges split or merged and in another order."""
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
    return Round(tuple(exchanges[at] for at in order), tuple(map(local, step.locals)), step.label)


@pytest.mark.large
def test_names_of_buffers_and_the_spelling_of_exchanges_are_of_no_account():
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
