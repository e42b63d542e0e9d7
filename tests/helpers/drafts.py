"""Drafts of a schedule in which one thing is changed, beside their intent."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from wafer_triton.schedule.rounds import Exchange, Moves, Round, Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.verify.faults import Intent

Case = tuple[Schedule, Intent]


def moving(exchange: Exchange, **changes: object) -> Exchange:
    """Return an exchange with another `axis`, or other `send`, `recv` or `lines`, as `Moves.table` has them."""
    send, recv, lines = exchange.moves.table
    return replace(
        exchange, moves=Moves(**{"axis": exchange.axis, "send": send, "recv": recv, "lines": lines} | changes)
    )


def with_round(schedule: Schedule, number: int, change: Callable[[Round], Round]) -> Schedule:
    """Return a draft in which one round is changed."""
    rounds = (change(one) if at == number else one for at, one in enumerate(schedule.rounds))
    return replace(schedule, rounds=tuple(rounds))


def with_exchange(case: Case, number: int, change: Callable[[Exchange], Exchange | None]) -> Case:
    """Return a draft in which the first exchange of one round is changed or left out."""

    def other(round_: Round) -> Round:
        first, *rest = round_.exchanges
        changed = change(first)
        return replace(round_, exchanges=(*rest,) if changed is None else (changed, *rest))

    return with_round(case[0], number, other), case[1]


def on(case: Case, **numbers: int) -> Case:
    """Return a draft on another device."""
    schedule, intent = case
    mesh = replace(schedule.mesh, device=replace(schedule.mesh.device, **numbers))
    return replace(schedule, mesh=mesh), intent


def first(schedule: Schedule, label: str) -> int:
    return next(number for number, round_ in enumerate(schedule.rounds) if round_.label == label)


def without_add(case: Case, number: int) -> Case:
    """Return a round whose arrivals are not combined."""
    return with_round(case[0], number, lambda one: replace(one, locals=())), case[1]


def twice(case: Case, number: int) -> Case:
    schedule, intent = case
    rounds = (*schedule.rounds[: number + 1], *schedule.rounds[number:])
    return replace(schedule, rounds=rounds), intent


def with_local(case: Case, number: int, **changes: object) -> Case:
    """Return a draft in which the first local operation of a round is another."""

    def other(round_: Round) -> Round:
        op, *rest = round_.locals
        return replace(round_, locals=(replace(op, **changes), *rest))

    return with_round(case[0], number, other), case[1]


def with_operand(case: Case, number: int, place: int, name: str) -> Case:
    """Return a draft in which the first local operation of a round reads another buffer."""
    ins = list(case[0].rounds[number].locals[0].ins)
    ins[place] = Slot(name)
    return with_local(case, number, ins=tuple(ins))


def with_operation(case: Case, old: str, new: str) -> Case:
    """Return a draft with one operation in place of another everywhere."""
    changed = lambda op: replace(op, op=new) if op.op == old else op  # noqa: E731
    rounds = (replace(each, locals=tuple(map(changed, each.locals))) for each in case[0].rounds)
    return replace(case[0], rounds=tuple(rounds)), case[1]


def relabelled(case: Case, number: int, new: int) -> Case:
    """Return a shift along x whose receiver 0 becomes `new`."""

    def changed(one: Exchange) -> Exchange:
        recv = one.moves.table[1]
        return moving(one, recv=np.where(recv == 0, new, recv))

    return with_exchange(case, number, changed)


def short(case: Case, number: int, end: str) -> Case:
    return with_exchange(case, number, lambda one: moving(one, **{end: getattr(one.moves, end)[:-1]}))


def half_a_message(case: Case, number: int, line: int) -> Case:
    def half(one: Exchange) -> Exchange:
        _, recv, lines = one.moves.table
        return moving(one, recv=np.where(lines[:, None] == line, -1, recv))

    return with_exchange(case, number, half)


def without_exchange(case: Case, number: int) -> Case:
    return with_exchange(case, number, lambda one: None)
