"""Between calls programs wait in a `Pool`, so that a second call plans nothing."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from wafer_triton.emulate.planner import Key
from wafer_triton.emulate.program import Program


class Pool:
    """Programs that no call runs, by what executor, schedule and CUDA stream say. Safe for threads.

    Past `most` bytes the least recently used are dropped. The stream is in the key because work of the last call may
    still run on the GPU: only a later call on the same stream comes after it.
    """

    def __init__(self, most: int = 2**31) -> None:
        self.most, self.bytes = most, 0
        self._programs: OrderedDict[Key, list[Program]] = OrderedDict()
        self._lock = Lock()

    def take(self, key: Key) -> Program | None:
        """Remove a program from the pool and return it; None if there is none."""
        with self._lock:
            programs = self._programs.get(key)
            if not programs:
                return None
            program = programs.pop()
            self.bytes -= program.bytes
            return program

    def give(self, program: Program) -> None:
        """Add a program of `Executor.borrow`, and drop the least recently used if the pool is too large."""
        key = program.key
        assert key is not None
        with self._lock:
            self._programs.setdefault(key, []).append(program)
            self._programs.move_to_end(key)
            self.bytes += program.bytes
            while self.bytes > self.most:
                _, programs = self._programs.popitem(last=False)
                self.bytes -= sum(one.bytes for one in programs)

    def clear(self) -> None:
        """Drop all programs."""
        with self._lock:
            self._programs.clear()
            self.bytes = 0


POOL = Pool()
