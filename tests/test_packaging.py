import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
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


def run(*command, cwd):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build from a copy, so that no stale build folder gets in and none is left over."""
    copy = tmp_path_factory.mktemp("source")
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
        elif path.name in SOURCES:
            shutil.copytree(path, copy / path.name, ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", ".", cwd=copy)
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_every_source_file_under_one_name(wheel):
    found = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, package in SOURCES.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".json", ".csv", ".typed", ".html", ".css", ".js")
    }
    assert {name for name in found if ".dist-info/" not in name} == expected
    assert {name.split("/")[0] for name in found if ".dist-info/" not in name} == {"wafer_triton"}
    assert any(name.endswith("licenses/LICENSE") for name in found)


@pytest.mark.slow
def test_the_wheel_works_outside_the_repository(wheel, tmp_path):
    environment = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    # Lends torch and the rest without the repository: a path file does not run the path files in the folder it names.
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    Path(site, "lent.pth").write_text(sysconfig.get_path("purelib"))
    run(python, "-c", SMOKE, cwd=tmp_path)
    assert "wse2" in run(environment / "bin" / "wafer-triton", "devices", cwd=tmp_path)
