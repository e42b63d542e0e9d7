"""Every public callable, called with missing, unknown and surplus arguments: one line that names it and the fault."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from public import PUBLIC
from wafer_triton.errors import ArgumentError


class Wrong(NamedTuple):
    """A call of a public callable that Python itself would refuse."""

    call: Callable[[], Any]
    label: str


def methods(kind: type) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Yield the public methods of a class, and the arguments that a call through an object or the class gives."""
    for name in dir(kind):
        value = inspect.getattr_static(kind, name)
        own = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if name[0] != "_" and inspect.isfunction(own) and own.__module__.startswith("wafer_triton"):
            yield getattr(kind, name), () if own is not value else (object.__new__(kind),)


def wrong(value: Callable[..., Any], own: tuple[Any, ...] = ()) -> Iterator[Wrong]:
    """Yield calls of a callable without an argument, with an unknown name, and with an argument too many."""
    parameters = list(inspect.signature(value).parameters.values())[len(own) :]
    kinds = {each.kind for each in parameters}
    needed = [each for each in parameters if each.default is each.empty and each.kind in (0, 1, 3)]
    placed = (None,) * sum(each.kind != inspect.Parameter.KEYWORD_ONLY for each in needed)
    label = value.__name__
    if needed:
        yield Wrong(lambda: value(*own), f"{label}: {needed[0].name}")
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        yield Wrong(lambda: value(*own, *placed, no_such_name=1), f"{label}: no parameter 'no_such_name'")
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        most = sum(each.kind in (0, 1) for each in parameters)
        plural = "" if most == 0 else "s"
        surplus = (None,) * (most + 1)
        yield Wrong(lambda: value(*own, *surplus), f"{label}: {most + 1} argument{plural} by place, but at most {most}")


@pytest.mark.parametrize("name", PUBLIC)
def test_a_wrong_call_names_the_callable_and_the_argument(name):
    value = PUBLIC[name]
    calls = [*wrong(value, (None,) if "self" in inspect.signature(value).parameters else ())]
    if isinstance(value, type):
        calls += [each for method, own in methods(value) for each in wrong(method, own)]
    assert calls
    for call, label in calls:
        with pytest.raises(ArgumentError) as error:
            call()
        assert label in str(error.value)
        assert error.value.__suppress_context__ or error.value.__context__ is None  # no second traceback


def test_the_walk_has_all_rooms():
    assert len(PUBLIC) > 110
    homes = {name.split(".")[1] for name in PUBLIC}
    assert homes >= {"compare", "cost", "count", "draw", "models", "ops", "schedule", "serve", "train", "verify"}
