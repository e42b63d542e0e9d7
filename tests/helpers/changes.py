"""Changes of a schedule, each with a random place and kind, from which mutants are made."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

import numpy as np
from numpy.random import Generator

from drafts import moving
from wafer_triton.schedule.rounds import Cores, Exchange, Local, Round, Slot
from wafer_triton.schedule.schedule import Schedule

Change = Callable[[Schedule, Generator], Schedule | None]  # None where a schedule has nothing to change


# --- changes of rounds ---


def edited(schedule: Schedule, number: int, *rounds: Round) -> Schedule:
    """Return a draft with `rounds` in place of round `number`."""
    return replace(schedule, rounds=(*schedule.rounds[:number], *rounds, *schedule.rounds[number + 1 :]))


def drop_round(schedule: Schedule, rng: Generator) -> Schedule:
    return edited(schedule, pick(rng, schedule.rounds))


def duplicate_round(schedule: Schedule, rng: Generator) -> Schedule:
    number = pick(rng, schedule.rounds)
    return edited(schedule, number, *[schedule.rounds[number]] * 2)


def swap_rounds(schedule: Schedule, rng: Generator) -> Schedule | None:
    if len(schedule.rounds) < 2:
        return None
    rounds = list(schedule.rounds)
    first, second = rng.choice(len(rounds), 2, replace=False)
    rounds[first], rounds[second] = rounds[second], rounds[first]
    return replace(schedule, rounds=tuple(rounds))


def drop_step(schedule: Schedule, rng: Generator) -> Schedule | None:
    """Leave out rounds that follow one another and have the same label."""
    steps = [list(own) for _, own in groupby(range(len(schedule.rounds)), lambda n: schedule.rounds[n].label)]
    gone = steps[pick(rng, steps)]
    return replace(schedule, rounds=schedule.rounds[: gone[0]] + schedule.rounds[gone[-1] + 1 :])


def drop_half(schedule: Schedule, rng: Generator) -> Schedule | None:
    """Leave out a run of up to half of all rounds, such as a pass."""
    if len(schedule.rounds) < 4:
        return None
    count = int(rng.integers(2, len(schedule.rounds) // 2 + 1))
    first = int(rng.integers(len(schedule.rounds) - count + 1))
    return replace(schedule, rounds=schedule.rounds[:first] + schedule.rounds[first + count :])


def pick(rng: Generator, items: Sequence[object]) -> int:
    return int(rng.integers(len(items)))


# --- changes of exchanges ---


def of_an_exchange(change: Callable[[Exchange, Schedule, Generator], tuple[Exchange, ...] | None]) -> Change:
    """Apply the change to one random exchange that moves anything."""
    return of_a_step(
        "exchanges", lambda exchange, *rest: change(exchange, *rest) if (exchange.moves.recv >= 0).any() else None
    )


def of_a_step(name: str, change: Callable[..., tuple[Exchange | Local, ...] | None]) -> Change:
    """Replace one random step of a round by others; steps for which `change` returns None are passed over."""

    def changed(schedule: Schedule, rng: Generator) -> Schedule | None:
        places = [(n, i) for n, round_ in enumerate(schedule.rounds) for i in range(len(getattr(round_, name)))]
        for number, which in rng.permutation(places).tolist() if places else ():
            steps = list(getattr(schedule.rounds[number], name))
            new = change(steps[which], schedule, rng)
            if new is not None:
                steps[which : which + 1] = new
                return edited(schedule, number, replace(schedule.rounds[number], **{name: tuple(steps)}))
        return None

    return changed


def line_by_line(exchange: Exchange, schedule: Schedule) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return senders and receivers of each mesh row or column separate, [lines, n], and their lines."""
    send, recv, lines = exchange.moves.table
    lines = np.arange(schedule.mesh.length("y" if exchange.axis == "x" else "x")) if lines is None else lines
    send, recv = (np.broadcast_to(at, (len(lines), at.shape[-1])).copy() for at in (send, recv))
    return send, recv, lines


def drop_message(exchange: Exchange, schedule: Schedule, rng: Generator) -> tuple[Exchange, ...]:
    """Leave out one message of one mesh row or column, or of every one."""
    moves = exchange.moves
    if not moves.paired and len(moves.recv) > 1 and rng.integers(2):
        gone = pick(rng, moves.recv)
        return (moving(exchange, send=np.delete(moves.send, gone), recv=np.delete(moves.recv, gone)),)
    send, recv, lines = line_by_line(exchange, schedule)
    place = tuple(rng.choice(np.argwhere(recv >= 0)))
    send[place] = recv[place] = -1
    return (moving(exchange, send=send, recv=recv, lines=lines),)


def drop_line(exchange: Exchange, schedule: Schedule, rng: Generator) -> tuple[Exchange, ...]:
    *ends, lines = line_by_line(exchange, schedule)
    gone = pick(rng, lines)
    send, recv = (np.delete(at, gone, 0) for at in ends)
    return (moving(exchange, send=send, recv=recv, lines=np.delete(lines, gone)),) if len(lines) > 1 else ()


def change_end(name: str) -> Callable[[Exchange, Schedule, Generator], tuple[Exchange, ...]]:
    """Choose another sender or receiver, on one mesh row or column or on all; now and then off the mesh."""

    def change(exchange: Exchange, schedule: Schedule, rng: Generator) -> tuple[Exchange, ...]:
        send, recv, lines = line_by_line(exchange, schedule) if rng.integers(2) else exchange.moves.table
        ends = {"send": send.copy(), "recv": recv.copy()}
        at = ends[name]
        place = tuple(rng.choice(np.argwhere(at >= 0)))
        length = schedule.mesh.length(exchange.axis)
        at[place] = (at[place] + rng.integers(1, length)) % length if rng.integers(8) else length
        return (moving(exchange, lines=lines, **ends),)

    return change


def turn_around(exchange: Exchange, schedule: Schedule, rng: Generator) -> tuple[Exchange, ...]:
    """Exchange senders and receivers: every tile moves in the opposite direction."""
    send, recv, _ = exchange.moves.table
    return (moving(exchange, send=recv, recv=send),)


def turn_tile_around(exchange: Exchange, schedule: Schedule, rng: Generator) -> tuple[Exchange, ...]:
    """Exchange send and receive, slots included: the tile that was to arrive is sent."""
    (turned,) = turn_around(exchange, schedule, rng)
    return (replace(turned, src=exchange.dst, dst=exchange.src),)


def flip_axis(exchange: Exchange, schedule: Schedule, rng: Generator) -> tuple[Exchange, ...]:
    return (moving(exchange, axis="yx"["xy".index(exchange.axis)]),)


Other = Callable[[Slot, Schedule, Generator], Slot | None]


def change_ends_slot(other: Other) -> Callable[[Exchange, Schedule, Generator], tuple[Exchange, ...] | None]:
    """Choose another slot to send, or another slot to receive into."""

    def change(exchange: Exchange, schedule: Schedule, rng: Generator) -> tuple[Exchange, ...] | None:
        name = ("src", "dst")[rng.integers(2)]
        slot = other(getattr(exchange, name), schedule, rng)
        return None if slot is None else (replace(exchange, **{name: slot}),)

    return change


def other_slot(slot: Slot, schedule: Schedule, rng: Generator) -> Slot | None:
    """Return another slot of the same buffer, on every core or on one position; None if it has one alone."""
    slots = schedule.buffers[slot.buffer].slots
    if slot.index is None or slots == 1:
        return None
    if slot.is_fixed:
        return replace(slot, index=int((slot.index + rng.integers(1, slots)) % slots))
    index = slot.index.copy()
    place = slice(None) if rng.integers(2) else pick(rng, index)
    index[place] = (index[place] + rng.integers(1, slots)) % slots
    return replace(slot, index=index)


def other_buffer(slot: Slot, schedule: Schedule, rng: Generator) -> Slot | None:
    """Return the same slot of another buffer as large; None where there is none."""
    here = schedule.buffers[slot.buffer]
    alike = [b.name for b in schedule.buffers.values() if (b.numel, b.slots) == (here.numel, here.slots)]
    names = [name for name in alike if name != slot.buffer]
    return replace(slot, buffer=names[pick(rng, names)]) if names else None


# --- changes of local operations ---


of_a_local = partial(of_a_step, "locals")


def change_where(op: Local, schedule: Schedule, rng: Generator) -> tuple[Local, ...]:
    """Take one core less, one position less, all cores, or cores moved on by one."""
    kind, mesh = rng.integers(4 if op.where else 2), schedule.mesh
    rows, cols = np.divmod(np.arange(mesh.cores) if op.where is None else op.where.flat(mesh), mesh.shape[1])
    if kind == 2:
        return (replace(op, where=None),)
    if kind == 3:
        return (replace(op, where=Cores.of(rows, (cols + 1) % mesh.shape[1], paired=True)),)
    keep = np.arange(len(rows)) != pick(rng, rows) if kind == 0 else cols != cols[pick(rng, cols)]
    return (replace(op, where=Cores.of(rows[keep], cols[keep], paired=True)),) if keep.any() else ()


def flip_where(op: Local, schedule: Schedule, rng: Generator) -> tuple[Local, ...] | None:
    where = op.where
    return None if where is None else (replace(op, where=Cores.of(where.cols, where.rows, where.paired)),)


OTHER_OP = {"add": "maximum", "maximum": "add", "gemm": "gemm_t", "gemm_t": "gemm"}


def change_op(op: Local, schedule: Schedule, rng: Generator) -> tuple[Local, ...] | None:
    return (replace(op, op=OTHER_OP[op.op]),) if op.op in OTHER_OP else None


def flip_add(op: Local, schedule: Schedule, rng: Generator) -> tuple[Local, ...] | None:
    if op.op not in ("gemm", "gemm_t", "gemm_tn"):
        return None
    return (replace(op, params={**op.params, "add": not op.params.get("add", False)}),)


Setting = Callable[[dict, list[str], Generator], dict[str, object]]


def change_setting(names: Sequence[str], new: Setting) -> Change:
    """Choose another value of one of the parameters that an operation has of `names`."""

    def change(op: Local, schedule: Schedule, rng: Generator) -> tuple[Local, ...] | None:
        given = [name for name in names if name in op.params]
        return (replace(op, params={**op.params, **new(op.params, given, rng)}),) if given else None

    return of_a_local(change)


def other_number(params: dict, names: list[str], rng: Generator) -> dict[str, object]:
    name = names[pick(rng, names)]
    return {name: params[name] * (2, 10, 0.5)[rng.integers(3)]}


def other_of_mixture(params: dict, names: list[str], rng: Generator) -> dict[str, object]:
    name = names[pick(rng, names)]
    if isinstance(params[name], bool):
        return {name: not params[name]}
    capacity = params.get("capacity", 1)
    steps = (1, -1, capacity, -capacity)[: 4 if name == "first" else 2]
    return {name: params[name] + steps[pick(rng, steps)]}


def other_size(params: dict, names: list[str], rng: Generator) -> dict[str, object]:
    """Make a size one larger, one smaller, double, or another dimension's."""
    name, other = names[pick(rng, names)], names[pick(rng, names)]
    size = params[name]
    sizes = [{name: size + 1}, {name: size - 1}, {name: 2 * size}, {name: params[other], other: size}]
    return sizes[rng.integers(4)]


def change_operand(other: Other) -> Callable[[Local, Schedule, Generator], tuple[Local, ...] | None]:
    """Choose another input or output."""

    def change(op: Local, schedule: Schedule, rng: Generator) -> tuple[Local, ...] | None:
        slots = [*op.outs, *op.ins]
        place = pick(rng, slots)
        slot = other(slots[place], schedule, rng)
        if slot is None:
            return None
        slots[place] = slot
        return (replace(op, outs=tuple(slots[: len(op.outs)]), ins=tuple(slots[len(op.outs) :])),)

    return change


def swap_operands(op: Local, schedule: Schedule, rng: Generator) -> tuple[Local, ...] | None:
    """Reorder the inputs if they have equal sizes."""
    sizes = {schedule.buffers[slot.buffer].slot_bytes(slot) for slot in op.ins}
    return (replace(op, ins=op.ins[::-1]),) if len(op.ins) > 1 and len(sizes) == 1 else None


MIXTURE = ("capacity", "first", "held", "normalized", "shared", "experts", "per_token", "column", "regions",
           "sources", "rows", "cols")  # fmt: skip
CHANGES: dict[str, Change] = {
    "drop a round": drop_round,
    "duplicate a round": duplicate_round,
    "swap two rounds": swap_rounds,
    "drop a step": drop_step,
    "drop many rounds": drop_half,
    "drop a message": of_an_exchange(drop_message),
    "drop a line": of_an_exchange(drop_line),
    "drop an exchange": of_an_exchange(lambda *_: ()),
    "another sender": of_an_exchange(change_end("send")),
    "another receiver": of_an_exchange(change_end("recv")),
    "send and receive exchanged": of_an_exchange(turn_around),
    "source and target exchanged": of_an_exchange(turn_tile_around),
    "another axis": of_an_exchange(flip_axis),
    "another slot sent": of_an_exchange(change_ends_slot(other_slot)),
    "another buffer sent": of_an_exchange(change_ends_slot(other_buffer)),
    "drop an operation": of_a_local(lambda *_: ()),
    "duplicate an operation": of_a_local(lambda op, *_: (op, op)),
    "other cores": of_a_local(change_where),
    "another axis of cores": of_a_local(flip_where),
    "another operation": of_a_local(change_op),
    "another add flag": of_a_local(flip_add),
    "another parameter": change_setting(("scale", "width", "eps", "limit"), other_number),
    "another parameter of a mixture": change_setting(MIXTURE, other_of_mixture),
    "another size": change_setting(
        ("m", "k", "n", "size", "heads", "kv_heads", "groups", "kept", "d", "v"), other_size
    ),
    "another slot": of_a_local(change_operand(other_slot)),
    "another operand": of_a_local(change_operand(other_buffer)),
    "operands swapped": of_a_local(swap_operands),
}
