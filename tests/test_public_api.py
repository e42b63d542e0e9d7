"""Public names, the cost of importing, and the direction of imports."""

import ast
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from pydoc import plain, render_doc
from types import ModuleType

import pytest

import wafer_triton

ROOT = Path(wafer_triton.__file__).parent
# `kernels` and `models` lie at the top of the repository
FOLDERS = {"wafer_triton": ROOT} | {
    name: Path(import_module(f"wafer_triton.{name}").__file__).parent for name in ("kernels", "models")
}


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- names ---


MODULES = {"distributed", "draw", "estimate"}  # modules of functions: estimate.gemm, draw.links


def test_all_is_sorted_complete_and_listed():
    assert wafer_triton.__all__ == sorted(set(wafer_triton.__all__))
    assert set(wafer_triton.__all__) <= set(dir(wafer_triton))
    assert set(wafer_triton.__all__) >= MODULES | {
        "Device", "Mesh", "as_mesh", "MeshTensor", "scatter", "Schedule", "Builder", "Account", "mesh_gemm",
        "mesh_gemm_t", "mesh_gemm_tn", "mesh_gemv", "all_reduce", "rms_norm", "softmax", "WaferError", "account",
        "price", "check", "Intent", "routes", "executor",
    }  # fmt: skip


def test_every_public_name_has_a_module_and_a_docstring():
    # in this process all submodules are loaded, and each is an attribute of the package
    for name in sorted(set(wafer_triton.__all__) - MODULES):
        value = getattr(wafer_triton, name)
        assert value.__doc__ and not isinstance(value, ModuleType), name


def test_only_draw_is_a_public_name_and_a_module():
    """Check names against modules: an imported module is an attribute of its package and would replace the name."""
    modules = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert {"kernels", "models"} <= modules
    assert set(wafer_triton.__all__) & modules == {"draw"}


def test_a_name_does_not_depend_on_earlier_imports():
    found = "*[n for n in w.__all__ if type(getattr(w, n)).__name__ == 'module']"
    assert set(python(f"from wafer_triton import *; import wafer_triton as w; print({found})").split()) == MODULES
    names = wafer_triton.__all__
    assert {name for name in names if isinstance(getattr(wafer_triton, name), ModuleType)} == MODULES, "after others"


def test_an_unknown_name_is_named():
    with pytest.raises(AttributeError, match="wafer_triton.*meshgemm"):
        _ = wafer_triton.meshgemm


@pytest.mark.parametrize(
    "name", ["all_reduce", "mesh_gemm", "mesh_gemm_t", "mesh_gemm_tn", "mesh_gemv", "rms_norm", "softmax"]
)
def test_help_of_an_operation_has_its_keywords(name):
    text = plain(render_doc(getattr(wafer_triton, name)))
    assert all(f"{key}: " in text for key in ("mesh", "exchange", "backend", "executor", "record")), text


def test_every_error_is_a_wafer_error():
    from wafer_triton import errors

    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    assert len(classes) > 5
    assert all(issubclass(kind, wafer_triton.WaferError) and kind.__doc__ for kind in classes)


# --- weight ---


def loaded(*lines: str) -> list[set[str]]:
    """Return the heavy packages that a process has loaded after each line of code."""
    heavy = ["torch", "triton", "transformers", "safetensors", "rich", "matplotlib", "einops"]
    code = "\n".join(f"{line}; print(*[n for n in {heavy} if n in sys.modules])" for line in lines)
    return [set(names.split()) for names in python(f"import sys; {code}").split("\n")]


def test_importing_the_package_and_reading_a_schedule_are_light():
    names = "from wafer_triton import account, check, draw, price, routes"
    assert loaded(f"import wafer_triton, wafer_triton.local; {names}") == [set()]


def test_ops_need_no_triton_and_no_transformers():
    operations, models = loaded("from wafer_triton import mesh_gemm", "import wafer_triton.models.decoder")
    assert operations <= {"torch", "einops"} and models <= {"torch", "einops", "safetensors"}


BLOCKED = "import sys; sys.modules.update(dict.fromkeys(('torch', 'triton', 'transformers', 'einops'))); "
PLAN = """
import numpy as np
from wafer_triton import Builder, Mesh

from wafer_triton.count.account import account
from wafer_triton.device import device
from wafer_triton.algorithms.align import align
from wafer_triton.algorithms.gemm import meshgemm

from wafer_triton.algorithms.gemv import meshgemv

b = Builder(Mesh(8, 8, device('wse3')), 'plan')
for name in ('a', 'w'): b.buffer(name, (4, 4), 'fp16', 'input')
b.buffer('c', (4, 4), 'fp32', 'output')
align(b, 'a', 'x'); align(b, 'w', 'y')
meshgemm(b, 'a', 'w', 'c', m=4, k=4, n=4)

meshgemv(b, 'a', 'w', 'c', 'y', m=4, k=4, n=4)
print(account(b.build()).stages, device('wse2').cores)
"""


def test_planning_and_counting_work_without_torch():
    aligning, shifts, tree, broadcast = 4 + 4, 8, 2 + 1, 1
    assert python(BLOCKED + PLAN) == f"{aligning + shifts + tree + broadcast} 745500"


# --- layers ---

# Left to right: a module imports only from its own layer or one further left. A name stands for a module or a folder;
# the longest that fits a module is its own.
LAYERS = [
    {"errors"},
    {"text"},
    {"device"},
    {"local", "shape"},
    {"schedule"},
    {"algorithms"},
    {"decoder"},
    {"count", "place"},
    {"cost", "kernels"},
    {"emulate", "serve"},
    {"ops", "verify"},
    {"train"},
    {"compare", "models"},
    {"draw", "cli", "__main__"},
]
# Planning, checking and costing work where torch is missing.
PLAIN = ("errors", "text", "device", "shape", "local")
PLAIN += ("schedule", "algorithms", "decoder", "count", "place", "cost", "verify", "serve")

Files = dict[str, Path]


@cache
def modules() -> Files:
    """Return every module, by its name without `wafer_triton.`; a package goes by its folder's name."""
    files = {}
    for package, folder in FOLDERS.items():
        for path in folder.rglob("*.py"):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            files[".".join(part for part in parts if part not in ("wafer_triton", "__init__"))] = path
    del files[""]  # the package itself loads its names when they are asked for
    return files


@cache
def imports(path: Path) -> frozenset[str]:
    """Return modules that a file imports, in functions too, outside `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text())
    skipped = {
        node for top in ast.walk(tree) if isinstance(top, ast.If) and getattr(top.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(top)
    }  # fmt: skip
    names = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def internal(module: str, files: Files) -> set[str]:
    """Return the project's modules that a module imports."""
    names = {name.removeprefix("wafer_triton.") for name in imports(files[module])}
    return (names & files.keys()) - {module}


def within(module: str, names: Iterable[str]) -> list[str]:
    """Return the names that are `module` or a package above it, the longest last."""
    return sorted((name for name in names if f"{module}.".startswith(f"{name}.")), key=len)


def layer(module: str) -> int:
    """Return the number of a module's layer; AssertionError if it has none."""
    numbers = {name: number for number, names in enumerate(LAYERS) for name in names}
    homes = within(module, numbers)
    assert homes, f"{module} has no layer: name it, or its folder, in LAYERS"
    return numbers[homes[-1]]


def circle(files: Files) -> tuple[str, ...]:
    """Return modules of which each imports the next and the last the first, in functions too; () if there are none."""
    done: set[str] = set()

    def follow(module: str, way: tuple[str, ...]) -> tuple[str, ...]:
        if module in way:
            return way[way.index(module) :]
        if module in done:
            return ()
        for name in sorted(internal(module, files)):
            if ring := follow(name, (*way, module)):
                return ring
        done.add(module)
        return ()

    return next((ring for module in sorted(files) if (ring := follow(module, ()))), ())


def test_imports_point_left():
    files = modules()
    assert [f"{at} imports {name}" for at in files for name in internal(at, files) if layer(name) > layer(at)] == []


def test_no_imports_go_in_a_circle():
    assert circle(modules()) == ()


def test_planning_imports_neither_torch_nor_triton():
    planning = [f"wafer_triton.{name}" for name in modules() if within(name, PLAIN)]
    assert len(planning) > 50
    python(f"{BLOCKED}import {', '.join(planning)}")


def test_transformers_computes_nothing():
    """Check imports of transformers: configs and tokenizers, and in the demo the model to compare with."""
    readers = {"AutoConfig", "AutoTokenizer", "PreTrainedConfig", "PreTrainedTokenizerFast"}
    for name, path in modules().items():
        taken = {item.removeprefix("transformers.") for item in imports(path) if item.startswith("transformers.")}
        assert name == "models.demo" or taken <= readers, name


def test_kernels_import_no_schedule():
    for name, path in modules().items():
        if name.startswith("kernels."):
            assert not [
                item for item in imports(path) if item.startswith(("wafer_triton.schedule", "wafer_triton.device"))
            ]
