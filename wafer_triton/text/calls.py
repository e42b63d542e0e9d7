"""Calls of public functions: names and number of their arguments, refused in words of the function, not of Python."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar, cast

from wafer_triton.errors import ArgumentError

C = TypeVar("C", bound=type)


def bound(made: C) -> C:
    """Return a class whose constructor raises ArgumentError for arguments as `call_check` does."""
    begin, check = cast(Any, made).__init__, call_check(made, f"{made.__name__}: ")

    @wraps(begin)
    def call(self: Any, *given: Any, **named: Any) -> None:
        check(given, named)
        begin(self, *given, **named)

    cast(Any, made).__init__ = call
    return made


def call_check(function: Callable[..., Any], label: str) -> Callable[[tuple[Any, ...], Mapping[str, Any]], None]:
    """Return the check of a call's positional and named arguments against the parameters of a function.

    The check raises ArgumentError for an unknown, missing, second or surplus argument.
    """
    parameters = signature(function).parameters.values()
    by_place = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    by_name = [each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)]
    needed = [name for each in parameters if each.default is each.empty and (name := each.name) in by_place + by_name]
    kinds = {each.kind for each in parameters}

    def check(given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        placed = by_place[: len(given)]
        for name in named:
            if name in placed:
                raise ArgumentError(f"{label}{name} is given twice, by its place and by its name; give it once")
            if name not in by_name and Parameter.VAR_KEYWORD not in kinds:
                raise ArgumentError(f"{label}no parameter {name!r}{near(name, by_name)}; has {', '.join(by_name)}")
        if len(given) > len(by_place) and Parameter.VAR_POSITIONAL not in kinds:
            raise ArgumentError(
                f"{label}{len(given)} arguments by place, but at most {len(by_place)}; give the others by name, of "
                f"{', '.join(by_name)}"
            )
        if missing := [name for name in needed if name not in named and name not in placed]:
            raise ArgumentError(f"{label}{', '.join(missing)} missing; give a value")

    return check


def near(word: str, known: Collection[str]) -> str:
    """Return the part of a message that names the nearest of several words, "" where none is near."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""
