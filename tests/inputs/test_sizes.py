"""A model by its sizes, alone or after a model, in Python and on every command; and refusals."""

import json
from dataclasses import replace
from math import comb
from pathlib import Path

import numpy as np
import pytest

from wafer_triton import estimate
from wafer_triton.cli import main as cli
from wafer_triton.decoder.expert_places import expected_demand
from wafer_triton.errors import ConfigError, WaferError
from wafer_triton.shape.published import MODELS
from wafer_triton.shape.read import of_sizes, positions, shape_of

SIZES = "dim=96,ffn=160,heads=4,kv_heads=2,layers=2"


def test_sizes_alone_are_a_shape() -> None:
    assert shape_of(SIZES) == replace(of_sizes(96, 160, 4, 2, 2), name=SIZES)
    assert shape_of("dim=96, ffn=160, heads=4, layers=2, vocab=50, head_dim=32, name=mine") == replace(
        of_sizes(96, 160, 4, 4, 2), head_dim=32, vocab_size=50, name="mine"
    )
    assert positions(SIZES) is None


def test_sizes_after_a_model_replace_its_own(tmp_path: Path) -> None:
    assert shape_of("llama3-8b,layers=16").num_hidden_layers == 16
    assert replace(shape_of("llama3-8b,layers=16"), num_hidden_layers=32, name="llama3-8b") == shape_of("llama3-8b")
    assert positions("llama3-8b,layers=16") == positions("llama3-8b")
    (tmp_path / "config.json").write_text(json.dumps(MODELS["llama3-8b"]))
    for place in (tmp_path, tmp_path / "config.json"):
        assert shape_of(f"{place},layers=4,kv_heads=4").num_key_value_heads == 4


def test_a_folder_whose_name_has_a_sign_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a=b,c"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODELS["llama3-8b"]))
    assert shape_of(str(folder)).hidden_size == 4096


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dim=96,ffn=160,heads=4", "layers missing; give them, or a model first"),
        ("llama3-8b,layer=16", "no size 'layer'; did you mean 'layers'?"),
        ("llama3-8b,layers=x", "layers = 'x' must be a whole number"),
        ("llama3-8b,layers=0", "llama3-8b,layers=0': layers = 0 must be a positive integer"),
        ("llama3-8b,layers=", "'layers=' is no size; write KEY=VALUE"),
        ("llama3-8b,layers=2,layers=3", "layers is given twice"),
        ("llama3-8b,16,layers=2", "'16' is no size"),
        ("llama3-8c,layers=16", "unknown model 'llama3-8c'; did you mean 'llama3"),
        ("llama3-8b,weights=int4", "weights = 'int4' must be one of fp16, bf16, int8, fp8"),
        ("llama3-8b,kv_heads=5", "is not a multiple of"),
        ("dim=97,ffn=160,heads=4,layers=2", "dim = 97 is not a multiple of heads = 4"),
    ],
)
def test_wrong_sizes_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shape_of(text)
    assert message in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "estimate decode --mesh 8 --context 8",
        "check --mesh 4",
        "serve --rate 1 --input 8 --output 8 --count 3 --prefill-mesh 8 --decode-mesh 8",
    ],
)
def test_commands_take_sizes(line: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*line.split(), "--model", SIZES + ",vocab=200"]) == 0, capsys.readouterr().err
    assert cli.main([*line.split(), "--model", "dim=96,ffn=160"]) == 2
    assert "heads, layers missing" in capsys.readouterr().err


def test_a_size_is_a_whole_number():
    for value in (True, np.bool_(True), 4.0, "4"):
        with pytest.raises(WaferError, match="k = .* must be a whole number of at least 1"):
            estimate.gemv(mesh=4, k=value, n=64)


def test_many_tokens_are_expected_by_logarithms():
    """Binomial coefficients of thousands of rows are beyond floats; of few rows both ways agree."""
    assert 512 * 8 // 4 < expected_demand(8, 4, 512, 16) < 512 * 8
    for top_k, regions, tokens, rows in ((8, 16, 17, 240), (2, 4, 9, 8), (8, 64, 40, 100)):
        n, odds, above = tokens * top_k, 1 / regions, 1.0
        for most in range(n):
            above -= comb(n, most) * odds**most * (1 - odds) ** (n - most)
            if rows * regions * above < 1:
                break
        assert expected_demand(top_k, regions, tokens, rows) == max(1, most)
