"""Waiting of programs for each other, with a bound: a core that waits too long says so, and nothing hangs.

Counters are zero between launches. A core that gives up writes once, to a word that all launches of an executor share,
which launch, core and round it was, and goes on without what it waited for. From then on nobody waits for long, so that
all that is queued ends soon, with void results. The host looks at the word before it gives results away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from weakref import WeakValueDictionary

import torch
import triton
import triton.language as tl
from torch import Tensor

from wafer_triton.errors import BackendError
from wafer_triton.kernels._common import INTERPRET

# A wait ends within one launch, which takes milliseconds; a poll takes about a microsecond.
PATIENCE = tl.constexpr(2_048 if INTERPRET else 10_000_000)
POLLS = tl.constexpr(1024)  # polls of a counter between two of the word
CORE_BITS, ROUND_BITS = tl.constexpr(24), tl.constexpr(16)


@dataclass(frozen=True, eq=False)
class Alarm:
    """What a launch tells by: the word of those who give up, int64 [1], and its number, from 1 on.

    `round_of(core, number)` is the round of the schedule that the kernel calls `number`.
    """

    word: Tensor
    launch: int
    what: str = ""
    cols: int = 1
    counters: Sequence[Tensor] = ()
    round_of: Callable[[int, int], int] = lambda core, number: number


@triton.jit
def wait(counter_ptr, awaited, alarm_ptr, launch, core, round_):
    """Wait until the counter is `awaited` and take it down to 0 in the same instruction, or give up."""
    seen = tl.atomic_cas(counter_ptr, awaited, 0, sem="acquire", scope="gpu")
    polls = seen * 0
    while (seen != awaited) & (polls >= 0):
        if polls % POLLS == 0:
            late = polls >= PATIENCE
            if late:
                where = (tl.cast(launch, tl.int64) << ROUND_BITS) + round_
                where = (where << CORE_BITS) + core
                tl.atomic_cas(alarm_ptr, where * 0, where, sem="relaxed", scope="gpu")
            if late | (tl.load(alarm_ptr, volatile=True) != 0):
                polls = polls * 0 - 2
        polls += 1
        seen = tl.atomic_cas(counter_ptr, awaited, 0, sem="acquire", scope="gpu")


class Watch:
    """Looks after the launches of an executor whose programs wait, as long as there are any."""

    def __init__(self, device: str) -> None:
        self.word = torch.zeros(1, dtype=torch.int64, device=device)
        self._alarms: WeakValueDictionary[int, Alarm] = WeakValueDictionary()
        self._numbers = count(1)

    def alarm(self, what: str, cols: int, counters: Sequence[Tensor], round_of: Callable[[int, int], int]) -> Alarm:
        """What a launch is given that waits at `counters`, on a mesh of `cols` columns."""
        number = next(self._numbers)
        alarm = Alarm(self.word, number, what, cols, counters, round_of)
        self._alarms[number] = alarm
        return alarm

    def check(self) -> None:
        """BackendError if a core gave up; all counters are zero again then, so that programs can run anew."""
        value = int(self.word.item())
        if value == 0:
            return
        number, core = divmod(value, 2**CORE_BITS.value)
        launch, number = divmod(number, 2**ROUND_BITS.value)
        for counters in (each for alarm in self._alarms.values() for each in alarm.counters):
            counters.zero_()
        self.word.zero_()
        alarm = self._alarms.get(launch, Alarm(self.word, launch, "a program that is gone"))
        raise BackendError(
            f"{alarm.what}: core {divmod(core, alarm.cols)} gave up waiting for its neighbours in round "
            f"{alarm.round_of(core, number)}, so the results are void. Programs that it needs were not on the GPU, "
            f"which others may be using; run again, or take launch='rounds'"
        )
