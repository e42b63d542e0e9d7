"""Worker processes under supervision: a row that hangs or dies takes no other with it.

A worker times rows, those of a group in turns, and writes a line of JSON as they begin, as each is ready to be timed
and as each ends. If it dies, or takes longer than a row may, the next worker takes up the rest: the rows of that group
one by one, so that the one which killed it is noted as failed.
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
QUIET = 60.0  # seconds for a worker to begin; each row then says how long it may take
GRACE = 10.0  # seconds that the last row may take after the time is up
TIME_IS_UP = "the time was up"
KILLED = 30.0  # seconds to wait for a killed process, which a driver may hold for ever
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
        try:
            return self._process.wait(timeout=KILLED)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL

    def output(self) -> str:
        self._output.seek(0)
        return self._output.read()


def supervise(
    start: Callable[[], Worker], names: list[str], file: Path, quiet: float, until: float, clock: Clock = time
) -> None:
    """Run workers until the file names all rows, or the time is `until`; a worker may take `quiet` seconds to begin."""
    while clock.time() <= until and not set(names) <= {line.get("row") for line in read(file)}:
        before = len(read(file))
        worker = start()
        try:
            why = _watch(worker, file, quiet, until, clock)
        finally:  # also when this process is stopped
            code = worker.end()
        lines = read(file)
        if len(lines) == before and clock.time() <= until:  # it could not even begin
            tail = " ".join(worker.output().split())[-600:]
            write(file, row="the worker", error=f"{why or f'exit {code}'}: {tail}")
            return
        left, alone = unfinished(lines)
        for name in left:
            if why == TIME_IS_UP:
                write(file, row=name, not_measured=why)
            elif alone:
                write(file, row=name, error=why or f"the worker died, exit {code}")


def _watch(worker: Worker, file: Path, quiet: float, until: float, clock: Clock) -> str:
    """Wait until `worker` ends, or no line has come for too long, or the time is up; return why it must end."""
    heard, known = clock.time(), len(read(file))
    while worker.poll() is None:
        lines, now = read(file), clock.time()
        if len(lines) != known:
            heard, known = now, len(lines)
            quiet = next((line["patience"] for line in reversed(lines) if "patience" in line), quiet)
        if now - heard > quiet:
            return f"no result after {quiet:.0f} s"
        if now > until + GRACE:
            return TIME_IS_UP
        clock.sleep(TICK)
    return ""


def read(file: Path) -> list[Row]:
    """Return the lines of the file, without a line that a dying worker left half-written."""
    lines = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def write(file: Path, **line: object) -> None:
    """Add a line; it is on disk when this returns."""
    with file.open("a") as lines:
        lines.write(json.dumps(line, default=str) + "\n")


def unfinished(lines: list[Row]) -> tuple[list[str], bool]:
    """Return the rows that began last and did not end, and whether a row began alone."""
    ended = {line.get("row") for line in lines}
    begun = next((line["begun"] for line in reversed(lines) if "begun" in line), [])
    return [name for name in begun if name not in ended], len(begun) == 1
