"""How programs wait for each other, with a bound: a core that waits too long reports it, and nothing hangs.

A core waits for a message in its mailbox, which is `EMPTY` between launches. If it gives up, it writes its launch, core
and round to a word that all launches of an executor share, unless another has, and goes on. From then on a core gives
up soon where it would wait, so queued launches end, with void results. The host reads the word before it returns
results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from weakref import WeakValueDictionary

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.target_info import is_hip

from wafer_triton.errors import BackendError
from wafer_triton.kernels._common import INTERPRET

# A core gives up after this many polls, of about a microsecond each; a launch takes milliseconds.
MAX_POLLS = tl.constexpr(2_048 if INTERPRET else 10_000_000)
POLLS_PER_CHECK = tl.constexpr(1024)  # polls between two looks at the word, which take as long as a poll
EMPTY = tl.constexpr(-2)  # the bits of a place without a message, as an integer of its size: one of the NaNs
CORE_BITS, ROUND_BITS = tl.constexpr(24), tl.constexpr(16)


@dataclass(frozen=True, eq=False)
class Alarm:
    """Where the cores of a launch report that they gave up: `word` int64 [1], and the launch's number, from 1 on.

    For the error: `what` is launched, on a mesh of `cols` columns, and `round_of(core, number)` is the round of the
    schedule that the kernel calls `number`. `reset()` makes the launch ready to run again.
    """

    word: Tensor
    launch: int
    what: str = ""
    cols: int = 1
    reset: Callable[[], object] = lambda: None
    round_of: Callable[[int, int], int] = lambda core, number: number


@triton.jit
def send(ptrs, values, mask):
    """Store messages of which no element has the bits `EMPTY`, but those of another NaN."""
    bits = values.to(ptrs.dtype.element_ty, bitcast=True)
    # .wt: AMD's parts of a GPU have an L2 each, which the message must leave
    modifier: tl.constexpr = ".wt" if is_hip() else ""
    tl.store(ptrs, tl.where(bits == EMPTY, -1, bits), mask=mask, cache_modifier=modifier)


@triton.jit
def receive(ptrs, mask, core, number, alarm_ptr, launch):
    """Return the messages [CORES, BLOCK] to cores `core` [CORES, 1], as bits, once they are there.

    Or give up after `MAX_POLLS`, in round `number`. Each element is its own flag, so nothing orders one after another.
    The caller empties the places once all its warps have read them.
    """
    bits = tl.load(ptrs, mask=mask, other=0, volatile=True)
    late = tl.max(tl.max(tl.where(bits == EMPTY, core + 1, 0), axis=1), axis=0)
    polls = late * 0 + 1
    while (late > 0) & (polls > 0):
        if polls % POLLS_PER_CHECK == 0:
            if polls >= MAX_POLLS:
                where = (tl.cast(launch, tl.int64) << ROUND_BITS) + number
                where = (where << CORE_BITS) + late - 1
                tl.atomic_cas(alarm_ptr, where * 0, where, sem="relaxed", scope="gpu")
            if tl.load(alarm_ptr, volatile=True) != 0:
                polls = polls * 0 - 1
        polls += 1
        bits = tl.load(ptrs, mask=mask, other=0, volatile=True)
        late = tl.max(tl.max(tl.where(bits == EMPTY, core + 1, 0), axis=1), axis=0)
    return bits


class Watch:
    """The alarms of an executor's launches whose programs wait; an alarm lives as long as its launch."""

    def __init__(self, device: str) -> None:
        self.word = torch.zeros(1, dtype=torch.int64, device=device)
        self._alarms: WeakValueDictionary[int, Alarm] = WeakValueDictionary()
        self._numbers = count(1)

    def alarm(
        self, what: str, cols: int, reset: Callable[[], object], round_of: Callable[[int, int], int]
    ) -> Alarm:  # fmt: skip
        """Return a new `Alarm` for a launch; see there."""
        alarm = Alarm(self.word, next(self._numbers), what, cols, reset, round_of)
        self._alarms[alarm.launch] = alarm
        return alarm

    def check(self) -> None:
        """Raise BackendError if a core gave up, after all launches are made ready to run again."""
        number, core = divmod(int(self.word.item()), 2**CORE_BITS.value)
        launch, number = divmod(number, 2**ROUND_BITS.value)
        if launch == 0:
            return
        self.word.zero_()
        for alarm in list(self._alarms.values()):
            alarm.reset()
        alarm = self._alarms.get(launch, Alarm(self.word, launch, "a program that is gone"))
        raise BackendError(
            f"{alarm.what}: core {divmod(core, alarm.cols)} gave up waiting for its neighbours in round "
            f"{alarm.round_of(core, number)}, so the results are void. Programs that it needs were not on the GPU, "
            f"which others may be using; run again, or use backend='torch'"
        )
