"""Arguments of public functions, checked against the annotations before a function begins.

Without this a wrong kind is found late, deep inside, by an error of Python that names neither function nor parameter.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from wafer_triton.errors import ArgumentError, article, shown
from wafer_triton.text.calls import bound, call_check

F = TypeVar("F", bound=Callable[..., Any])


class _Kind(NamedTuple):
    """The alternatives of an annotation, in words, and the test of a value."""

    words: str
    fits: Callable[[Any], bool]


def checked(function: F) -> F:
    """Return a function, or a class, that raises ArgumentError for an argument of another kind than its annotation.

    Unknown and missing parameters are refused as in `call_check`.
    Text, truth values, whole numbers of numpy become Python's own. A whole number without a default below 1 counts
    something. Parameters of a kind that is not listed here, such as `Any`, are the function's own to check.
    """
    made = isinstance(function, type)
    begin = cast(Any, function).__init__ if made else function
    names = list(signature(begin).parameters)
    label = f"{function.__name__}: "
    check = call_check(begin, label)

    @wraps(begin)
    def call(*given: Any, **named: Any) -> Any:
        check(given, named)
        kinds = _kinds(begin)
        positional = [_checked(label, name, kinds.get(name), value) for name, value in zip(names, given, strict=False)]
        named = {name: _checked(label, name, kinds.get(name), value) for name, value in named.items()}
        return begin(*positional, *given[len(names) :], **named)

    if not made:
        return cast(F, call)
    cast(Any, function).__init__ = call
    return bound(function)


def check_fields(of: Any, label: str = "") -> None:
    """Check the fields of a new dataclass object as `checked` does arguments; a message begins with `label`."""
    for name, kind in _kinds(cast(Any, type(of))).items():
        object.__setattr__(of, name, _checked(label, name, kind, getattr(of, name)))


def _checked(label: str, name: str, kind: _Kind | None, value: Any) -> Any:
    if kind is None or (value is None and "None" in kind.words):
        return value
    if "whole number" in kind.words and not isinstance(value, bool) and hasattr(value, "__index__"):
        try:
            return operator.index(value)
        except (TypeError, RuntimeError, ValueError):  # of arrays and tensors with several numbers
            pass
    if not kind.fits(value):
        if kind.words.startswith(("a whole number", _PLAIN["bool"].words)):
            raise ArgumentError(f"{label}{name} = {shown(value)} must be {kind.words}")
        raise ArgumentError(f"{label}{name} is of type {type(value).__name__}; give {kind.words}")
    if isinstance(value, list) and kind.words.startswith("a tuple"):
        return tuple(value)
    if isinstance(value, str) and not _is_utf8(value):
        raise ArgumentError(f"{label}{name} = {shown(value)} is not UTF-8 text; leave out its lone surrogate")
    return value.item() if isinstance(value, np.generic) else value


@cache
def _kinds(function: Callable[..., Any]) -> dict[str, _Kind]:
    """Return the kinds of a function's parameters, as far as all alternatives of an annotation are listed."""
    found = {}
    for name, parameter in signature(function).parameters.items():
        plain = parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_ONLY)
        parts = _alternatives(str(parameter.annotation))
        each = [_kind(part, parameter.default, vars(sys.modules[function.__module__])) for part in parts]
        if plain and all(each):
            kinds = [kind for kind in each if kind]
            found[name] = _Kind(" or ".join(kind.words for kind in kinds), _any(kinds))
    return found


def _any(kinds: list[_Kind]) -> Callable[[Any], bool]:
    return lambda value: any(kind.fits(value) for kind in kinds)


def _alternatives(annotation: str) -> list[str]:
    """Return the parts of "A | B[C | D]": "A" and "B[C | D]"."""
    parts, depth = [""], 0
    for letter in annotation:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _kind(annotation: str, default: Any, names: Mapping[str, Any]) -> _Kind | None:
    base, _, inner = annotation.partition("[")
    if annotation == "int":
        below = isinstance(default, int) and default < 1
        return _Kind("a whole number" if below else "a whole number of at least 1", lambda value: type(value) is int)
    if base == "Sequence" and inner == "str]":
        return _Kind("a list of str", _is_texts)
    if annotation == "tuple[int, ...]":
        return _Kind("a tuple of whole numbers", _is_numbers)
    if base in _PLAIN:
        return _PLAIN[base]
    named = names.get(base)
    origin = getattr(getattr(named, "__origin__", None), "__name__", "")  # such as Sequence for Rows = Sequence[Row]
    if origin in _PLAIN:
        return _PLAIN[origin]
    if isinstance(named, type) and named is not Any and not getattr(named, "_is_protocol", False):
        return _Kind(article(base), lambda value: isinstance(value, named))
    return None


def _is_utf8(text: str) -> bool:
    with suppress(UnicodeEncodeError):
        return text.isascii() or bool(text.encode())
    return False


def _is_single(value: Any) -> bool:
    """Return whether a value is one thing although it has an iterator: a text, a number of numpy or torch."""
    return isinstance(value, str | bytes) or getattr(value, "ndim", 1) == 0


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(type(each) is int for each in value)


_PLAIN = {
    "None": _Kind("None", lambda value: value is None),
    "str": _Kind("a str", lambda value: isinstance(value, str)),
    "bool": _Kind("true or false", lambda value: isinstance(value, bool | np.bool_)),
    "Path": _Kind("a Path", lambda value: isinstance(value, Path)),
    "Sequence": _Kind("a list", lambda value: isinstance(value, list | tuple | range)),
    "tuple": _Kind("a tuple", lambda value: isinstance(value, list | tuple)),
    "Mapping": _Kind("a dict", lambda value: isinstance(value, Mapping)),
    "Iterable": _Kind("a list", lambda value: isinstance(value, Iterable) and not _is_single(value)),
    "Callable": _Kind("a function", callable),
}
