"""Words of patterns, executors and devices' files: one line with the remedy."""

import pytest
import torch

from wafer_triton import Mesh, executor, scatter
from wafer_triton.device import PRESETS, device
from wafer_triton.device.layout import axes
from wafer_triton.errors import BackendError, DeviceError, ShapeError


def test_an_executor_lists_its_options():
    with pytest.raises(
        BackendError, match=r"^executor: backend 'torch' has no option 'foo'; options: emulate_on, exchange, poison$"
    ):
        executor("torch", emulate_on="cpu", foo=3)
    with pytest.raises(BackendError, match="no option 'posion'; did you mean 'poison'?"):
        executor("torch", emulate_on="cpu", posion=True)
    with pytest.raises(BackendError, match="no option 'device'; a device is given as emulate_on"):
        executor("torch", device="cpu")
    assert executor("torch", emulate_on="cpu", poison=True).device == "cpu"


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(y a (x b)", "'(y a (x b)': the parenthesis at '(y a (x b)' is not closed; write unnested pairs"),
        ("(y a) (x b", "'(y a) (x b': the parenthesis at '(x b' is not closed"),
        ("y a) (x b)", "'y a) (x b)': the parenthesis at ') (x b)' is not opened"),
        ("(y a) (x b) -> (a b", "'(a b': the parenthesis at '(a b' is not closed"),
    ],
)
def test_a_parenthesis_without_its_pair_is_named(pattern, said):
    with pytest.raises(ShapeError) as error:
        scatter(torch.ones(6, 8), Mesh(3, 4), pattern)
    assert said in str(error.value)
    if "->" not in pattern:
        with pytest.raises(ShapeError, match="the parenthesis at "):
            axes(pattern)


@pytest.mark.parametrize("name", ["wse2.yaml", "WSE2.TXT", "folder/wse2", "wse2_copy"])
def test_a_device_s_file_of_another_kind_names_the_kinds(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for exists in (False, True):
        if exists:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("like: wse2")
        if exists or name != "wse2_copy":
            with pytest.raises(DeviceError) as error:
                device(name)
            assert str(error.value) == f"{name}: a device's file ends in .toml or .json; write it as one of them"


def test_a_file_of_the_name_of_a_preset_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wse2").write_text("")
    assert device("wse2") is PRESETS["wse2"]
