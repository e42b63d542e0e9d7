"""The scripts of docs/examples run, print the promised output, and are named in the documents."""

import runpy

import pytest

from examples import FOLDER, with_names_of_operations
from wafer_triton.cli.main import main

SAID = {
    "own_device": "slower: ",
    "own_all_reduce": "nothing found",
    "one_file": "MeshGEMM on 6 x 6 cores is right",
    "own_gemm": "Fox's product is right; it needs ",
    "own_cache_policy": "rows in turn: ",
    "sweep_with_a_plot": "written: hops.svg",
    "skewed_routing": "skew 1.6: 24.9 of 64 experts a layer",
    "converted_qwen": "the same tokens on 4 x 4 cores",
    "replay": "collected what was inserted",
    "graph": "the same classes by 4 placements",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SAID))
def test_an_example_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [name])
    with with_names_of_operations():
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert SAID[name] in capsys.readouterr().out


@pytest.mark.parametrize("reference", ["own_all_reduce.py:two_sided", "own_gemm.py:fox"])
def test_an_algorithm_of_the_examples_is_compared(reference, capsys):
    assert main(["compare", str(FOLDER / reference)]) == 0
    assert f"{reference.partition(':')[2]} (own)" in capsys.readouterr().out


def test_every_example_is_listed():
    listed = (FOLDER.parent / "tutorial.md").read_text(encoding="utf-8")
    assert {path.stem for path in FOLDER.glob("*.py")} == set(SAID)
    assert all(f"examples/{name}.py" in listed for name in SAID)
