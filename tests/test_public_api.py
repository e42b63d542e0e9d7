"""What is public, what importing costs, and which way imports point."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import wafer_triton

ROOT = Path(wafer_triton.__file__).parent
FOLDERS = {"wafer_triton": ROOT, "wafer_triton.schedule": ROOT / "schedule"}
FOLDERS |= {
    f"wafer_triton.{name}": Path(import_module(f"wafer_triton.{name}").__file__).parent
    for name in ("kernels", "models")
}


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- names ---


MODULES = {"draw", "estimate"}  # modules of functions: estimate.gemm, draw.schedule


def test_all_is_sorted_complete_and_listed():
    assert wafer_triton.__all__ == sorted(set(wafer_triton.__all__))
    assert set(wafer_triton.__all__) <= set(dir(wafer_triton))
    assert set(wafer_triton.__all__) >= MODULES | {
        "Device", "Mesh", "as_mesh", "MeshTensor", "scatter", "Schedule", "Builder", "Account", "mesh_gemm",
        "mesh_gemm_t", "mesh_gemv", "all_reduce", "rms_norm", "softmax", "WaferError", "account", "price", "check",
        "Intent", "routes", "executor",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(wafer_triton.__all__) - MODULES))
def test_every_name_is_of_its_home_and_says_what_it_is(name):
    # in this process all submodules are loaded, and each is an attribute of the package
    value = getattr(wafer_triton, name)
    assert value.__doc__ and not isinstance(value, ModuleType)
    assert value.__module__ == f"wafer_triton.{wafer_triton._HOME[name]}"


def test_no_name_is_that_of_a_module():
    """A module, once imported, is an attribute of its package and would take the name's place."""
    modules = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()} | {"kernels", "models"}
    assert set(wafer_triton.__all__) & modules == {"draw"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    ["", "import wafer_triton.ops; ", "from wafer_triton.mesh import Mesh; ", "import wafer_triton.cli.main; "],
)
def test_a_name_does_not_depend_on_what_was_imported_before(first):
    code = f"{first}from wafer_triton import *; import wafer_triton as w; "
    modules = python(code + "print(*[n for n in w.__all__ if type(getattr(w, n)).__name__ == 'module'])")
    assert set(modules.split()) == MODULES


@pytest.mark.parametrize("name", sorted(set(wafer_triton.__all__) & {"account", "price", "check", "routes", "draw"}))
def test_reading_a_schedule_needs_no_torch(name):
    assert loaded(f"from wafer_triton import {name}") == set()


def test_one_schedule_is_counted_priced_checked_and_drawn(tmp_path):
    from wafer_triton import Builder, Intent, Mesh, account, check, draw, price, routes
    from wafer_triton.schedule.reduce import all_reduce

    b = Builder(Mesh(2, 4), "a sum")
    b.buffer("x", (16,), "fp32", "output")
    all_reduce(b, "x", "x")
    schedule = b.build()
    assert account(schedule).rounds == len(schedule.rounds)
    assert price(schedule).rounds == len(schedule.rounds) and price(schedule).cycles > 0
    assert check(schedule, Intent(given={"x": "(y r) (x k)"}, result={"x": {"r": "y"}})).ok
    assert routes(schedule).colours > 0
    assert draw.timeline(schedule).startswith("a sum on mesh 2x4 of wse2\n")
    draw.schedule(schedule, tmp_path / "sum.svg")
    assert "a sum" in (tmp_path / "sum.svg").read_text()


def test_the_three_lines_of_a_device_of_ones_own():
    code = "from dataclasses import replace; from wafer_triton.device import device; "
    assert python(code + "print(replace(device('wse2'), name='mine', sram_bytes=64 * 1024).sram_bytes)") == "65536"


def test_an_unknown_name_lists_the_known():
    with pytest.raises(AttributeError, match="'wafer_triton' has no attribute 'meshgemm'; it has Account, Builder, "):
        _ = wafer_triton.meshgemm


def test_every_error_is_a_wafer_error():
    from wafer_triton import errors

    found = [one for one in vars(errors).values() if isinstance(one, type)]
    assert len(found) > 5
    assert all(issubclass(one, wafer_triton.WaferError) and one.__doc__ for one in found)


# --- weight ---


def loaded(code: str) -> set[str]:
    heavy = ["torch", "triton", "transformers", "safetensors", "rich", "matplotlib", "einops"]
    return set(python(f"{code}; import sys; print(*[n for n in {heavy} if n in sys.modules])").split())


def test_importing_the_package_is_light():
    assert loaded("import wafer_triton") == set()


@pytest.mark.slow
def test_ops_need_no_triton_and_no_transformers():
    assert loaded("from wafer_triton import mesh_gemm") <= {"torch", "einops"}
    assert loaded("import wafer_triton.models.decoder") <= {"torch", "einops", "safetensors"}


BLOCKED = "import sys; sys.modules.update(dict.fromkeys(('torch', 'triton', 'transformers', 'einops'))); "
PLAN = """
import numpy as np
from wafer_triton import Builder, Mesh
from wafer_triton.count.account import account
from wafer_triton.device import device
from wafer_triton.schedule.gemm import align, meshgemm
from wafer_triton.schedule.gemv import meshgemv
b = Builder(Mesh(8, 8, device('wse3')), 'plan')
for name in ('a', 'w'): b.buffer(name, (4, 4), 'fp16', 'input')
b.buffer('c', (4, 4), 'fp32', 'output')
align(b, 'a', 'x'); align(b, 'w', 'y')
meshgemm(b, 'a', 'w', 'c', m=4, k=4, n=4)
meshgemv(b, 'a', 'w', 'c', 'y', m=4, k=4, n=4)
print(account(b.build()).stages)
"""


def test_planning_and_counting_work_without_torch():
    aligning, shifts, tree, broadcast = 4 + 4, 8, 2 + 1, 1
    assert int(python(BLOCKED + PLAN)) == aligning + shifts + tree + broadcast
    assert python(BLOCKED + "from wafer_triton.device import device; print(device('wse2').cores)") == "745500"


# --- layers ---

# Left to right; a module imports only from its own layer or one further left. A module that is not named here lies
# where its imports put it, so those who import it are held to that.
LAYERS = [
    {"errors"},
    {"device", "dtype"},
    {"mesh", "sram", "layout"},
    {"local", "schedule"},
    {"account", "routes", "cost", "executor", "torch_executor", "testing"},
    {"kernels"},
    {"triton_executor"},
    {"recipes", "ops"},
    {"models"},
    {"report", "cli"},
]
# Planning and costing work where torch is missing.
PLAIN = {"errors", "device", "dtype", "mesh", "sram", "local", "schedule", "account", "routes", "cost"}
AT_BIRTH = {("schedule.rounds", "schedule.validate")}  # a schedule checks itself


def modules() -> dict[str, Path]:
    return {
        f"{package}.{path.stem}".removeprefix("wafer_triton."): path
        for package, folder in FOLDERS.items()
        for path in folder.glob("*.py")
        if path.stem != "__init__"
    }


def imports(path: Path, *, lazy: bool = True) -> set[str]:
    """Modules that a file imports, outside `if TYPE_CHECKING`; with `lazy` also inside functions."""
    tree = ast.parse(path.read_text())
    skipped = [
        node for top in ast.walk(tree) if isinstance(top, ast.If) and "TYPE_CHECKING" in ast.unparse(top.test)
        for node in ast.walk(top)
    ]  # fmt: skip
    if not lazy:
        functions = (top for top in ast.walk(tree) if isinstance(top, ast.FunctionDef | ast.AsyncFunctionDef))
        skipped += [node for top in functions for node in ast.walk(top)]
    found = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def internal(module: str, known: dict[str, Path]) -> set[str]:
    names = {name.removeprefix("wafer_triton.") for name in imports(known[module]) if name.startswith("wafer_triton.")}
    return {name for name in names & known.keys() if (module, name) not in AT_BIRTH} - {module}


def layer(module: str, known: dict[str, Path], way: tuple[str, ...] = ()) -> int:
    """The layer that lists a module or its package, else the rightmost of its imports'."""
    assert module not in way, f"imports go in a circle: {' -> '.join([*way, module])}"
    for number, names in enumerate(LAYERS):
        if {module, module.split(".")[0]} & names:
            return number
    return max((layer(name, known, (*way, module)) for name in internal(module, known)), default=0)


@pytest.mark.parametrize("module", sorted(modules()))
def test_imports_point_left(module):
    known = modules()
    own = layer(module, known)
    for name in sorted(internal(module, known)):
        assert layer(name, known) <= own, f"{module} imports {name}, which lies further right"


@pytest.mark.parametrize("module", [name for name in sorted(modules()) if name.split(".")[0] in PLAIN])
def test_planning_imports_neither_torch_nor_triton(module):
    heavy = {name.split(".")[0] for name in imports(modules()[module], lazy=False)}
    assert not heavy & {"torch", "triton", "transformers"}


def test_transformers_computes_nothing():
    """It reads configs and tokenizers; in the demo it is also the judge."""
    for name, path in modules().items():
        taken = {one.removeprefix("transformers.") for one in imports(path) if one.startswith("transformers.")}
        assert name == "models.demo" or taken <= {"AutoConfig", "AutoTokenizer"}, name


def test_kernels_know_no_schedule():
    for name, path in modules().items():
        if name.startswith("kernels."):
            assert not {one for one in imports(path) if one.startswith(("wafer_triton.schedule", "wafer_triton.mesh"))}
