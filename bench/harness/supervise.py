"""Worker processes under supervision: a case that hangs or dies takes no other with it.

A worker runs the cases that the log does not name yet, and writes a line of JSON as each case begins and ends. When a
worker dies, or takes longer than the case may, the case is noted as failed and the next worker takes up the rest.
Supervision reads time from a `Clock` and starts workers by a function, so that tests can bring their own of both.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[2]
TICK = 0.1  # seconds between two polls of a worker
GRACE = 10.0  # seconds that the last case may take after the time is up
Row = dict[str, Any]


class Clock(Protocol):
    """Time in seconds; the module `time` is a clock."""

    def time(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class Worker(Protocol):
    """A process that can be watched and ended."""

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""

    def end(self) -> int:
        """Kill the process unless it has ended; return its exit code."""

    def output(self) -> str:
        """Return the output."""


class Command:
    """A command in a process group of its own, so that its children are killed with it."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the command
        self._process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
        )

    def poll(self) -> int | None:
        return self._process.poll()

    def end(self) -> int:
        if self.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def output(self) -> str:
        self._output.seek(0)
        return self._output.read()


def watch(worker: Worker, late: Callable[[float], str], clock: Clock = time) -> str:
    """Wait until `worker` ends; end it when `late(time)` gives a reason, which is returned."""
    while worker.poll() is None:
        if why := late(clock.time()):
            worker.end()
            return why
        clock.sleep(TICK)
    return ""


def supervise(start: Callable[[], Worker], log: Path, quiet: float, until: float, clock: Clock = time) -> list[Row]:
    """Run workers until the log names all cases, or the time is `until`. Returns the log's lines.

    A worker may take `quiet` seconds to begin; each case then says in its line how long it may take.
    """
    while True:
        before = len(read(log))
        worker = start()
        why = watch(worker, _patience(log, quiet, until, clock), clock)
        why = why or f"exit {worker.end()}"
        lines = read(log)
        if len(lines) == before:  # it could not even begin
            tail = " ".join(worker.output().split())[-600:]
            return [*lines, {"ended": "the suites", "error": f"{why}: {tail}"}]
        for case in unfinished(lines):
            error = f"the worker died, {why}" if why.startswith("exit") else why
            lines.append({"ended": case, "error": error})
            with log.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
        left = set(cases(lines)) - {line.get("begun") for line in lines}
        if clock.time() > until or not left:
            return lines


def _patience(log: Path, quiet: float, until: float, clock: Clock) -> Callable[[float], str]:
    """Return a function of the time: why a worker must end then (its log is silent, or time is up), or ""."""
    heard, lines = clock.time(), len(read(log))

    def late(now: float) -> str:
        nonlocal heard, lines, quiet
        written = read(log)
        if len(written) != lines:
            heard, lines = now, len(written)
            quiet = next((line["patience"] for line in reversed(written) if "patience" in line), quiet)
        if now - heard > quiet:
            return f"no result after {quiet:.0f} s"
        return "out of time" if now > until + GRACE else ""

    return late


def read(log: Path) -> list[Row]:
    """Return the lines of the log, without a line that a dying worker left half-written."""
    lines = []
    for line in log.read_text().splitlines() if log.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def cases(lines: list[Row]) -> list[str]:
    """Return the cases that the first worker announced."""
    return next((line["cases"] for line in lines if "cases" in line), [])


def unfinished(lines: list[Row]) -> list[str]:
    ended = {line.get("ended") for line in lines}
    return [line["begun"] for line in lines if "begun" in line and line["begun"] not in ended]
