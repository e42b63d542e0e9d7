"""Every public callable, called with missing, unknown and surplus arguments: one line that names it and the fault."""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import wafer_triton
from wafer_triton.compare import algorithms, best, explain, sweep
from wafer_triton.cost import search
from wafer_triton.count import account
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.program import Held, Program
from wafer_triton.errors import ArgumentError
from wafer_triton.models import convert, precision
from wafer_triton.models.generate import TokenStream
from wafer_triton.ops import testing
from wafer_triton.schedule import block
from wafer_triton.serve import plan, policies, report, simulate, traces, workload
from wafer_triton.shape import routing
from wafer_triton.shape.decoder import DecoderShape

ROOT = Path(wafer_triton.__file__).parent.parent
# Further names: objects that public functions return, and parts of serving and comparisons
MORE = [
    Program, Held, TokenStream, Executor.bind, convert.MeshLinear, convert.MeshRMSNorm, convert.account,
    convert.predicted, convert.off_mesh, precision.perplexity, block.Block, block.schedule, DecoderShape, plan.plan,
    report.report, report.Slo, simulate.simulate, policies.Policy, policies.Shared, policies.Split, policies.Replacing,
    workload.Request, workload.Closed, workload.both, workload.fixed, workload.uniform, workload.lognormal,
    workload.drawn, workload.poisson, workload.bursty, workload.rate_of, workload.rescaled, traces.read_trace,
    routing.read_trace, algorithms.compare_gemm, algorithms.compare_gemv, algorithms.compare_own, explain.bounds,
    best.front, sweep.own, search.plan, account.link_distribution, testing.assert_close,
]  # fmt: skip
BORDER = {"main"}  # starts without an import, so that Ctrl-C is one line from the first moment


class Wrong(NamedTuple):
    """A call of a public callable that Python itself would refuse."""

    call: Callable[[], Any]
    label: str


def imported() -> set[tuple[str, str]]:
    """Return the names that README, docs and their examples import, by module."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    codes = [code for page in pages for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]
    codes += [path.read_text() for path in sorted((ROOT / "docs/examples").glob("*.py"))]
    nodes = [node for code in codes for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    return {(node.module, each.name) for node in nodes if "wafer_triton" in str(node.module) for each in node.names}


def public() -> dict[str, Callable[..., Any]]:
    """Return the public callables by their names; of a class its constructor and its public methods."""
    names = imported() | {("wafer_triton", name) for name in wafer_triton.__all__}
    values = [getattr(import_module(module), name, None) for module, name in sorted(names)]
    for module in (wafer_triton.draw, wafer_triton.estimate, wafer_triton.distributed):
        values += [value for name in module.__all__ if inspect.isfunction(value := getattr(module, name))]
    found: dict[str, Callable[..., Any]] = {}
    for value in [*values, *MORE]:
        if callable(value) and not (isinstance(value, type) and issubclass(value, BaseException)):
            found[f"{value.__module__}.{value.__qualname__}"] = value
    return {name: value for name, value in found.items() if value.__name__ not in BORDER}


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


PUBLIC = public()


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
