import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PIP = (sys.executable, "-m", "pip")
SOURCES = {"wafer_triton": "wafer_triton", "kernels": "wafer_triton/kernels", "models": "wafer_triton/models"}

SMOKE = """
import importlib.util, pathlib, sys
import wafer_triton
from wafer_triton.models.config import DecoderConfig
import wafer_triton.kernels, wafer_triton.schedule

installed = pathlib.Path(sys.prefix)
for module in (wafer_triton, wafer_triton.kernels, wafer_triton.schedule, sys.modules[DecoderConfig.__module__]):
    assert installed in pathlib.Path(module.__file__).parents, module.__file__
assert importlib.util.find_spec("models") is None
"""


USER = """
import torch
from wafer_triton import estimate, mesh_gemm

a, b = torch.ones(8, 8), torch.ones(8, 8)
mesh_gemm(a, b, mesh=4, exchnge="elided")  # mistake
estimate.gemm(mesh=4, m="8", k=8, n=8)  # mistake
mesh_gemm(a, b, mesh=4, record=True).shape  # mistake
mesh_gemm(a, b, mesh=4)[1].hops  # mistake
mesh_gemm(a, b, mesh=4, algorithm="canon")  # mistake
c, record = mesh_gemm(a, b, mesh=4)
print(record.hops)  # mistake, but a tensor can be unpacked, and mypy does not know into what
d, counted = mesh_gemm(a, b, mesh="4x4", record=True)
print(d.shape, counted.hops, estimate.gemm(mesh=(4, 4), m=8, k=8, n=8).cycles)
"""


def run(*command, cwd, code=0):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Copy the tree, so that no stale build folder gets in and none is left over."""
    copy = tmp_path_factory.mktemp("source")
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
        elif path.name in (*SOURCES, "src"):
            shutil.copytree(path, copy / path.name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def wheel(source):
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", ".", cwd=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


def installed(folder, *what):
    """Return the Python of a new environment with the package, and with torch and the rest lent from here."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    # a path file does not run the path files in the folder it names, so the repository is not lent
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    Path(site, "lent.pth").write_text(sysconfig.get_path("purelib"))
    run(*PIP, "--python", python, "install", "--no-deps", "--no-index", "--no-build-isolation", *what, cwd=folder)
    return python


def test_the_wheel_holds_every_source_file_under_one_name(wheel):
    found = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, package in SOURCES.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".json", ".pyi", ".csv", ".typed", ".html", ".css", ".js")
    }
    assert {name for name in found if ".dist-info/" not in name} == expected
    assert {name.split("/")[0] for name in found if ".dist-info/" not in name} == {"wafer_triton"}
    assert any(name.endswith("licenses/LICENSE") for name in found)


def test_the_wheel_works_outside_the_repository(wheel, tmp_path):
    python = installed(tmp_path / "venv", wheel)
    run(python, "-c", SMOKE, cwd=tmp_path)
    assert "wse2" in run(python.with_name("wafer-triton"), "devices", cwd=tmp_path)


@pytest.mark.parametrize("editable", [False, True], ids=["wheel", "editable"])
def test_type_checkers_find_the_mistakes_of_a_user(source, wheel, editable, tmp_path):
    python = installed(tmp_path / "venv", *(("-e", source) if editable else (wheel,)))
    (tmp_path / "user.py").write_text(USER)
    wrong = {number for number, line in enumerate(USER.splitlines(), 1) if "# mistake" in line}
    # with our configuration mypy leaves out parts of torch that none of these types meets, and half of the time
    mypy = ["mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", source.parent / "mypy"]
    mypy += ["--python-executable", python]
    found = {}
    for checker in (mypy, ["pyright", "--pythonpath", python]):
        said = run(sys.executable, "-m", *checker, "user.py", cwd=tmp_path, code=1)
        found[checker[0]] = {int(number) for number in re.findall(r"user\.py:(\d+):.*error", said)}
    assert found == {"mypy": wrong - {max(wrong)}, "pyright": wrong}
