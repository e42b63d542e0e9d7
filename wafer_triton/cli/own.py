"""A schedule of the user's own, given as FILE.py:FUNCTION: the file is run, the function called, its result taken."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from wafer_triton.algorithms.product import Recipe
from wafer_triton.errors import ConfigError, ScheduleError, article, nearest
from wafer_triton.schedule.builder import drafting
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.text.files import read_text
from wafer_triton.verify.intent import Intent

RESULTS = "a Schedule, a Recipe or a pair (Schedule, Intent)"


@dataclass(frozen=True)
class OwnSchedule:
    """The result of a user's function: a schedule, and its intent if there is one."""

    function: str
    schedule: Schedule
    intent: Intent | None

    def demand(self) -> None:
        """Raise ScheduleError for a fault, by which the schedule could read memory or name cores that are not there.

        An intent without a reference is not judged.
        """
        from wafer_triton.verify.faults import check

        judged = self.intent is not None and self.intent.reference is not None
        check(self.schedule, self.intent if judged else None).demand()


def load(reference: str, drafts: bool = False) -> OwnSchedule:
    """Return the schedule of FILE.py:FUNCTION; with `drafts` it is built unchecked, for all its faults to be listed.

    Raises ConfigError for a function that needs arguments, and as `function_of`.
    """
    called = function_of(reference, drafts)
    try:
        inspect.signature(called).bind()
    except TypeError as error:
        file, _, name = reference.rpartition(":")
        raise ConfigError(f"{file}: {name} is called without arguments ({error}); give them defaults") from None
    return called()


def function_of(reference: str, drafts: bool = False) -> Callable[..., OwnSchedule]:
    """Return the function of FILE.py:FUNCTION, with its own parameters and `OwnSchedule` as its result.

    Raises ConfigError without such a file or function, ScheduleError if the file or the function raises, or if the
    function returns anything else. The output of both goes to stderr.
    """
    file, _, name = reference.rpartition(":")
    path = Path(file).expanduser()
    if not file.endswith(".py") or not name:
        raise ConfigError(f"{reference}: give FILE.py:FUNCTION, where the function returns {RESULTS}")
    if not path.is_file():
        fault = "is a folder, not a file; give a file" if path.is_dir() else "there is no such file"
        raise ConfigError(f"{path}: {fault}")
    with _told(path):
        module = _run(path)
    function = _function(module, path, name)

    @functools.wraps(function)
    def called(*args: Any, **arguments: Any) -> OwnSchedule:
        with _told(path), drafting() if drafts else nullcontext():
            result = function(*args, **arguments)
        return _own(result, path, name)

    return called


def _own(result: Any, path: Path, name: str) -> OwnSchedule:
    match result:
        case Schedule():
            return OwnSchedule(name, result, None)
        case Recipe():
            return OwnSchedule(name, result.schedule, Intent.of(result))
        case (Schedule() as schedule, Intent() as intent):
            return OwnSchedule(name, schedule, intent)
    hint = "; end it with .build()" if hasattr(result, "build") else ""
    raise ScheduleError(f"{path}: {name} returns {article(type(result).__name__)}; it must return {RESULTS}{hint}")


def _run(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses need their module here
    sys.path.insert(0, str(path.resolve().parent))  # modules beside the file
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def _function(module: ModuleType, path: Path, name: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if not callable(function):
        own = [
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        has = f"{nearest(name, own)} (functions: {', '.join(own) or 'none'})"
        raise ConfigError(f"{path}: there is no function {name!r}{has}")
    return function


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Whatever the user's code raises, in one line with the line of the file; its output goes to stderr."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:
        name = str(path.resolve())
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == name]
        if isinstance(error, SyntaxError) and error.filename == name:
            lines.append(error.lineno)
        line = lines[-1] if lines else None
        if isinstance(error, SyntaxError) and line is None:
            read_text(path)  # raises for another encoding and for a NUL byte
        where = f"{path}, line {line}" if line else str(path)
        raise ScheduleError(f"{where}: {type(error).__name__}: {error}") from None
