"""Policies of serving: the organisation of the wafer, and the chunks of prompts.

An organisation decides when the weights lie in the regions of prefill, and when in the regions of decode. `Replacing`
is WaferLLM's (OSDI'25, section 4): prompts are prefilled, weights and caches move to the regions of decode, and all
answers end before the weights return. `Shared` has both phases on one mesh, where caches stay. A visit is a pause of
decode in which prompts are prefilled; weights are then only transposed and skewed. With `Split` each phase has columns
of the device and weights of its own; only keys and values are re-placed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from wafer_triton.errors import ConfigError, check_counts, shown


@dataclass
class View:
    """The state by which an organisation decides; `startable` is true if a prompt, or a next chunk, could begin now.

    `prefilling` chunks are in the regions of prefill, `ready` prompts wait for decode, `running` sequences decode.
    `visited` counts the tokens that entered prefill since the weights came there. `due` is true once decode has done
    the organisation's `turns` since it resumed; a turn is one token of each sequence.
    """

    prefilling: int = 0
    startable: bool = False
    ready: int = 0
    running: int = 0
    visited: int = 0
    due: bool = True


@dataclass(frozen=True)
class Organisation:
    """Where the weights lie: here they stay, and every chunk enters prefill as it comes.

    If `concurrent`, both phases work at the same time. Decode has at least `turns` turns before it pauses.
    """

    name = ""
    concurrent = False
    turns = 0

    def admits(self, view: View) -> bool:
        """Return whether another chunk may enter prefill."""
        return True

    def wants_prefill(self, at_prefill: bool, view: View) -> bool:
        """Return whether the weights should be in the regions of prefill; `at_prefill` if they are now."""
        return at_prefill


@dataclass(frozen=True)
class Split(Organisation):
    """Prefill and decode on columns of their own, at the same time (`concurrent`): weights never move."""

    name = "split"
    concurrent = True


@dataclass(frozen=True)
class Replacing(Organisation):
    """One phase after the other: prefill of prompts until batch or cache is full, then decode until all answers end."""

    name = "replace"

    def wants_prefill(self, at_prefill: bool, view: View) -> bool:
        """Return whether prefill has chunks or could begin one, and after it whether all answers have ended."""
        if at_prefill:
            return bool(view.prefilling or view.startable or not view.ready)
        return not view.running


@dataclass(frozen=True)
class Shared(Organisation):
    """Both phases on one mesh, one at a time: decode pauses for visits of prefill.

    A visit admits chunks up to `quantum` tokens. Running sequences decode at least `turns` turns before the next visit.
    Raises ShapeError for a number below 1.
    """

    quantum: int = 4096
    turns: int = 64
    name = "shared"

    def __post_init__(self) -> None:
        check_counts(quantum=self.quantum, turns=self.turns)

    def admits(self, view: View) -> bool:
        """Return whether another chunk may enter prefill: the visit has tokens left, or no sequence is in decode."""
        return view.visited < self.quantum or not (view.running or view.ready)

    def wants_prefill(self, at_prefill: bool, view: View) -> bool:
        """Return whether a visit goes on, and after it whether the next one is due."""
        if at_prefill:
            waits = view.running or view.ready
            return bool(view.prefilling or (view.startable and self.admits(view)) or not waits)
        return not view.running or (view.startable and view.due)


KINDS = (Split, Replacing, Shared)
ORGANISATIONS = {one.name: one for one in KINDS}


@dataclass(frozen=True)
class Policy:
    """A policy of serving: the organisation, and the tokens of a chunk in which prompts enter prefill (None: whole).

    Who comes first is served first. A prompt begins when the cache has room for it and one token. If the cache is full
    later, the sequence that arrived last is preempted; its prompt and tokens are prefilled again. Raises ConfigError
    for anything but an organisation, ShapeError for a chunk below 1.
    """

    organisation: Organisation = Replacing()
    chunk: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.organisation, Organisation):
            raise ConfigError(
                f"organisation {shown(self.organisation)}: give {', '.join(f'{one.__name__}()' for one in KINDS)}, or "
                f"organisation(NAME)"
            )
        if self.chunk is not None:
            check_counts(chunk=self.chunk)


def organisation(name: str, **options: int) -> Organisation:
    """Return an organisation by its name; ConfigError for an unknown one, or for options that it does not have."""
    if name not in ORGANISATIONS:
        raise ConfigError(f"policy {name!r}: choose one of {', '.join(ORGANISATIONS)}")
    known = [field.name for field in fields(ORGANISATIONS[name])]
    for option in options:
        if option not in known:
            has = f"it has {', '.join(known)}" if known else "leave it out"
            raise ConfigError(f"policy {name!r} has no option {option!r}; {has}")
    return ORGANISATIONS[name](**options)
