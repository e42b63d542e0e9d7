"""The public callables: names of README, docs and their examples, and of objects that these return."""

import ast
import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import wafer_triton
from wafer_triton.compare import algorithms, best, explain, sweep
from wafer_triton.cost import search
from wafer_triton.count import account
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.program import Held, Program
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


PUBLIC = public()
