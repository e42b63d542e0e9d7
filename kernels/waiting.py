"""Waiting of programs for each other, with a bound: a core that waits too long says so, and nothing hangs.

Counters are zero between launches. A core that gives up writes once, to a word that all launches of an executor share,
which launch, core and round it was, and goes on without what it waited for. From then on nobody waits for long, so that
all that is queued ends soon, with void results. The host looks at the word before it gives results away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import ref

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import globaltimer
from triton.language.target_info import is_cuda

from wafer_triton.errors import BackendError
from wafer_triton.kernels._common import INTERPRET

# A wait ends within one launch, which takes milliseconds. Where a target has no clock, failed looks are counted; one
# takes about a microsecond.
PATIENCE_NS = tl.constexpr(10_000_000_000)
PATIENCE_LOOKS = tl.constexpr(2_000 if INTERPRET else 10_000_000)
LOOKS = tl.constexpr(1024)  # looks at a counter between two looks at the clock and the word
CORE_BITS, ROUND_BITS = tl.constexpr(24), tl.constexpr(16)


class Alarm(NamedTuple):
    """The word of those who give up, int64 [1], and the number of the launch that a kernel belongs to, from 1 on."""

    word: Tensor
    launch: int


@triton.jit
def _ticks(looks):
    if INTERPRET:
        return looks.to(tl.int64)
    elif is_cuda():
        return globaltimer()
    else:
        return looks.to(tl.int64)


@triton.jit
def _patience():
    if INTERPRET:
        return PATIENCE_LOOKS
    elif is_cuda():
        return PATIENCE_NS
    else:
        return PATIENCE_LOOKS


@triton.jit
def wait(counter_ptr, awaited, alarm_ptr, launch, core, round_):
    """Wait until the counter is `awaited` and take it down to 0 in the same instruction, or give up."""
    seen = tl.atomic_cas(counter_ptr, awaited, 0, sem="acquire", scope="gpu")
    looks = seen * 0
    begun = _ticks(looks)
    while (seen != awaited) & (looks >= 0):
        if looks % LOOKS == 0:
            late = _ticks(looks) - begun > _patience()
            if late:
                where = (tl.cast(launch, tl.int64) << ROUND_BITS) + round_
                where = (where << CORE_BITS) + core
                tl.atomic_cas(alarm_ptr, where * 0, where, sem="relaxed", scope="gpu")
            if late | (tl.load(alarm_ptr, volatile=True) != 0):
                looks = looks * 0 - 2
        looks += 1
        seen = tl.atomic_cas(counter_ptr, awaited, 0, sem="acquire", scope="gpu")


class _Launch(NamedTuple):
    what: str
    cols: int
    counters: tuple[ref[Tensor], ...]
    round_of: Callable[[int, int], int]


class Watch:
    """Looks after the launches of an executor whose programs wait."""

    def __init__(self, device: str) -> None:
        self.word = torch.zeros(1, dtype=torch.int64, device=device)
        self._launches: list[_Launch] = []

    def alarm(self, what: str, cols: int, counters: Sequence[Tensor], round_of: Callable[[int, int], int]) -> Alarm:
        """What a launch is given that waits at `counters`, on a mesh of `cols` columns.

        `round_of(core, number)` is the round of the schedule that the kernel calls `number`.
        """
        self._launches.append(_Launch(what, cols, tuple(map(ref, counters)), round_of))
        return Alarm(self.word, len(self._launches))

    def check(self) -> None:
        """BackendError if a core gave up; all counters are zero again then, so that programs can run anew."""
        value = int(self.word.item())
        if value == 0:
            return
        number, core = value >> CORE_BITS.value, value % 2**CORE_BITS.value
        launch = self._launches[(number >> ROUND_BITS.value) - 1]
        for counters in (one() for each in self._launches for one in each.counters):
            if counters is not None:
                counters.zero_()
        self.word.zero_()
        round_ = launch.round_of(core, number % 2**ROUND_BITS.value)
        raise BackendError(
            f"{launch.what}: core {divmod(core, launch.cols)} gave up waiting for its neighbours in round {round_}, so "
            f"the results are void. Programs that it needs were not on the GPU, which others may be using; run again, "
            f"or take launch='rounds'"
        )
