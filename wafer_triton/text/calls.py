"""Calls of public functions: names and number of their arguments, refused in words of the function, not of Python."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from inspect import Parameter, isfunction, signature
from typing import Any, TypeVar, cast

from wafer_triton.errors import ArgumentError
from wafer_triton.text.quantity import numbered

C = TypeVar("C", bound=Callable[..., Any])


def bound(made: C) -> C:
    """Return a function, or a class with its public methods, that raises ArgumentError for arguments as `call_check`.

    A call that succeeds is not checked: only the TypeError that Python raises for the call itself is replaced.
    """
    if not isinstance(made, type):
        return _bound(made, made.__qualname__)
    methods = {name: method for name, method in vars(made).items() if name[:1] != "_"}
    cast(Any, made).__init__ = _bound(cast(Any, made).__init__, made.__name__)
    for name, method in methods.items():
        label = f"{made.__name__}.{name}"
        if isinstance(method, classmethod):
            setattr(made, name, classmethod(_bound(method.__func__, label)))
        elif isfunction(method):
            setattr(made, name, _bound(method, label))
    return made


def _bound(function: C, label: str) -> C:
    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except TypeError as error:
            trace = error.__traceback__
            if trace is not None and trace.tb_next is None:  # nothing of the function has run
                try:
                    call_check(function, f"{label}: ")(given, named)
                except ArgumentError as fault:
                    raise fault from None
            raise

    return cast(C, call)


def call_check(function: Callable[..., Any], label: str) -> Callable[[tuple[Any, ...], Mapping[str, Any]], None]:
    """Return the check of a call's positional and named arguments against the parameters of a function or method.

    The check raises ArgumentError for an unknown, missing, second or surplus argument.
    """
    parameters = list(signature(function).parameters.values())
    own = bool(parameters) and parameters[0].name in ("self", "cls")  # which a user does not give
    parameters = parameters[own:]
    by_place = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    by_name = [each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)]
    needed = [name for each in parameters if each.default is each.empty and (name := each.name) in by_place + by_name]
    kinds = {each.kind for each in parameters}

    def check(given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        given = given[own:]
        placed = by_place[: len(given)]
        for name in named:
            if name in placed:
                raise ArgumentError(f"{label}{name} is given twice, by its place and by its name; give it once")
            if name not in by_name and Parameter.VAR_KEYWORD not in kinds:
                has = ", ".join(by_name) or "none"
                raise ArgumentError(f"{label}no parameter {name!r}{near(name, by_name)}; has {has}")
        if len(given) > len(by_place) and Parameter.VAR_POSITIONAL not in kinds:
            others = ", ".join(name for name in by_name if name not in placed)
            remedy = f"give the others by name, of {others}" if others else "leave out the others"
            raise ArgumentError(
                f"{label}{numbered(len(given), 'arguments')} by place, but at most {len(by_place)}; {remedy}"
            )
        if missing := [name for name in needed if name not in named and name not in placed]:
            raise ArgumentError(f"{label}{', '.join(missing)} missing; give a value")

    return check


def near(word: str, known: Collection[str]) -> str:
    """Return the part of a message that names the nearest of several words, "" where none is near."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""
