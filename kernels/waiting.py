"""Waiting of programs for each other, with a bound: a core that waits too long reports it, and nothing hangs.

Counters are zero between launches. A core that gives up writes its launch, core and round once, to a word that all
launches of an executor share, and goes on. From then on no wait is long, so all queued launches end soon, with void
results. The host reads the word before it returns results.
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
    """The word, int64 [1], in which the cores of a launch give up, and the launch's number, from 1 on.

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
    """The alarms of an executor's launches whose programs wait, as long as there are any."""

    def __init__(self, device: str) -> None:
        self.word = torch.zeros(1, dtype=torch.int64, device=device)
        self._alarms: WeakValueDictionary[int, Alarm] = WeakValueDictionary()
        self._numbers = count(1)

    def alarm(self, what: str, cols: int, counters: Sequence[Tensor], round_of: Callable[[int, int], int]) -> Alarm:
        """Return the alarm of a launch that waits at `counters`, on a mesh of `cols` columns."""
        alarm = Alarm(self.word, next(self._numbers), what, cols, counters, round_of)
        self._alarms[alarm.launch] = alarm
        return alarm

    def check(self) -> None:
        """Raise BackendError if a core gave up; all counters are zero again then, so that programs can run anew."""
        number, core = divmod(int(self.word.item()), 2**CORE_BITS.value)
        launch, number = divmod(number, 2**ROUND_BITS.value)
        if launch == 0:
            return
        for counters in (self.word, *(each for alarm in self._alarms.values() for each in alarm.counters)):
            counters.zero_()
        alarm = self._alarms.get(launch, Alarm(self.word, launch, "a program that is gone"))
        raise BackendError(
            f"{alarm.what}: core {divmod(core, alarm.cols)} gave up waiting for its neighbours in round "
            f"{alarm.round_of(core, number)}, so the results are void. Programs that it needs were not on the GPU, "
            f"which others may be using; run again, or use backend='torch'"
        )
