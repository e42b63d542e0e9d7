"""Files of a user in the wrong encoding or form: each is read rightly, or refused in one line with a remedy."""

import json
from pathlib import Path

import pytest

from wafer_triton.cost.calibrate.own import read as read_measurements
from wafer_triton.device import device
from wafer_triton.errors import WaferError
from wafer_triton.models.config import DecoderConfig
from wafer_triton.serve.traces import read_trace
from wafer_triton.shape.read import shape_of

CONFIG = json.dumps({
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "vocab_size": 256, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "_name_or_path": "café",
})  # fmt: skip


def _config(path: Path) -> object:
    return shape_of(path).hidden_size, DecoderConfig.from_folder(path.parent).eos_token_ids


def _generation(path: Path) -> object:
    (path.parent / "config.json").write_text(CONFIG)
    return DecoderConfig.from_folder(path.parent).eos_token_ids


# Each kind of file: its name, a right text, its reader and the result.
KINDS = [
    ("a.toml", "like = 'wse2'\nrows = 100\nname = 'café'\n", lambda path: device(str(path)).rows, 100),
    ("a.json", '{"like": "wse2", "rows": 100, "name": "café"}', lambda path: device(str(path)).rows, 100),
    ("config.json", CONFIG, _config, (16, ())),
    ("generation_config.json", '{"eos_token_id": [2, 5], "_from": "café"}', _generation, (2, 5)),
    ("a.csv", "arrival,input,output,café\n0,1,1,2\n", lambda path: len(read_trace(path)), 1),
    ("a.jsonl", '{"arrival": 0, "input": 1, "output": 2, "café": 3}\n', lambda path: len(read_trace(path)), 1),
    ("b.csv", "mesh,tile_m,tile_k,tile_n,cycles\n16,1,1,1,2600\n", lambda path: len(read_measurements(path)), 1),
]
IDS = [name for name, *_ in KINDS]


@pytest.fixture
def refused(tmp_path):
    def said(name, read, held):
        (tmp_path / name).write_bytes(held)
        with pytest.raises(WaferError) as error:
            read(tmp_path / name)
        assert str(error.value).startswith(f"{tmp_path / name}")
        return str(error.value).removeprefix(f"{tmp_path / name}").removeprefix(": ")

    return said


@pytest.mark.parametrize(("name", "text", "read", "wanted"), KINDS, ids=IDS)
def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path, name, text, read, wanted):
    for held in (text.encode(), text.encode("utf-8-sig"), text.replace("\n", "\r\n").encode()):
        (tmp_path / name).write_bytes(held)
        assert read(tmp_path / name) == wanted


@pytest.mark.parametrize(("name", "text", "read", "wanted"), KINDS, ids=IDS)
def test_another_encoding_is_named_with_its_remedy(refused, name, text, read, wanted):
    for held in (*(text.encode(f"UTF-{bits}") for bits in ("16", "32", "16-be")), b"\0" + text.encode(), b"a\xe9b"):
        said = refused(name, read, held)
        assert said.startswith("is not UTF-8 text (") and said.endswith("; save it in UTF-8")


@pytest.mark.parametrize(("name", "text", "read", "wanted"), KINDS, ids=IDS)
def test_a_folder_in_the_place_of_a_file_is_named(tmp_path, name, text, read, wanted):
    (tmp_path / name).mkdir()
    with pytest.raises((WaferError, IsADirectoryError), match=name):
        read(tmp_path / name)


@pytest.mark.parametrize(
    "written", ["", " \n", "[" * 3000, '{"a": ' * 3000, '{"rows": ' + "9" * 5000 + "}", '{"rows": ']
)
def test_a_text_that_is_no_json_has_a_reason_and_a_remedy(refused, written):
    for name, _, read, _ in KINDS:
        if name.endswith(".json"):
            said = refused(name, read, written.encode())
            assert said.startswith("not valid JSON (") and said.endswith("; mend it, or give another file")


@pytest.mark.parametrize(("name", "text", "read", "wanted"), [k for k in KINDS if k[0].endswith(("json", "jsonl"))])
def test_a_key_that_is_given_twice_is_refused(refused, name, text, read, wanted):
    where = ", line 1: " if name.endswith("l") else ""
    twice = text.rstrip()[:-1] + ', "x": {"rows": 1, "rows": 2}}'
    assert refused(name, read, twice.encode()) == f"{where}key 'rows' is given twice; give it once"


def test_toml_that_is_nested_too_deep_or_has_a_key_twice_is_refused(refused):
    for text in ("x = " + "[" * 3000, "x = " + "9" * 5000, "rows = 1\nrows = 2\n"):
        said = refused("a.toml", lambda path: device(str(path)), text.encode())
        assert said.startswith("not valid TOML (") and said.endswith("; mend it, or give another file")
