"""Files of a user: inputs of a command are never written over, and tables of measurements come in every form."""

import json
import os
import shlex
import shutil
import sys
import threading
from dataclasses import replace
from functools import partial

import pytest

from commands import answer, refused
from tiny import CONFIG, checkpoint
from wafer_triton.cli.main import main
from wafer_triton.compare.grid import parsed
from wafer_triton.device import device
from wafer_triton.shape.read import shape_of
from wafer_triton.text.files import read_text

ROW = "16,1,1,1,2600\n"
HEAD = "mesh,tile_m,tile_k,tile_n,cycles\n"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def wrong(capsys, tmp_path, monkeypatch):
    """Run a line that is a mistake in a folder of its own; its one line on stderr."""
    monkeypatch.chdir(tmp_path)
    return partial(refused, capsys=capsys)


@pytest.mark.parametrize(
    ("name", "option"),
    [("config.json", "--profile"), ("tokenizer.json", "--routing-out"), ("tokenizer_config.json", "--profile")],
)
def test_files_of_a_checkpoint_are_not_written_over(wrong, tiny, name, option):
    before = (tiny / name).read_bytes()
    said = wrong(f"generate --model {tiny} --prompt a --mesh 2 {option} {tiny}/{name}")
    assert f"{option} {tiny}/{name}: is read as {name} of --model already; give each a file of its own" in said
    assert (tiny / name).read_bytes() == before


@pytest.mark.parametrize(
    ("link", "given"),
    [
        (os.link, "--over mesh=4,8 --set model=own.json"),
        (os.symlink, "--over model=own.json,smollm2-135m --set mesh=4"),
    ],
)
def test_a_swept_model_s_file_is_not_written_over_by_another_name(wrong, tmp_path, link, given):
    (tmp_path / "own.json").write_text(json.dumps(CONFIG))
    link("own.json", "out.csv")
    assert "out.csv: is read as --" in wrong(f"sweep decode {given} --set context=8 --out out.csv")
    assert json.loads((tmp_path / "own.json").read_text()) == CONFIG


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--config config.json", "config.json: vocab_size is missing; training is planned with embedding and head"),
        ("--workload gpt3-175b --wafer wafer-32 --no-baselines", " B over the 72,000,000,000 B of"),
    ],
)
def test_a_plan_of_training_that_makes_no_sense(wrong, tmp_path, options, message):
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in CONFIG.items() if k != "vocab_size"}))
    assert message in wrong(f"plan-training {options}")


def test_a_prompt_without_a_token_is_named(wrong, tmp_path):
    folder = checkpoint(tmp_path / "none")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = {}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "the prompt 'a' has no token by the tokenizer of " in wrong(f"generate --prompt a --model {folder} --mesh 2")


@pytest.mark.parametrize(
    ("make", "held"),
    [
        (lambda file: file.mkdir(), "model.safetensors"),
        (lambda file: file.symlink_to("none"), "model.safetensors"),
        (os.mkfifo, "model.safetensors"),
        (lambda file: file.with_name("adapter_model.safetensors").touch(), "adapter_model.safetensors"),
        (lambda file: file.with_name("model-00001-of-00002.safetensors").touch(), "model-00001-of-00002.safetensors"),
        (lambda file: file.with_suffix(".gguf").touch(), "model.gguf"),
    ],
)
def test_weights_that_are_no_file(wrong, tmp_path, make, held):
    folder = checkpoint(tmp_path / "odd")
    (folder / "model.safetensors").unlink()
    make(folder / "model.safetensors")
    assert f"{folder}: no file model.safetensors and no file model.safetensors.index.json, but {held}; give" in wrong(
        f"generate --prompt a --model {folder} --mesh 2"
    )


def test_a_device_is_judged_before_a_search_is_announced(wrong, tiny):
    assert "unknown device 'wse9'" in wrong(f"generate --prompt a --mesh plan --device wse9 --model {tiny}")


def test_a_pipe_that_a_shell_gives_is_read_once_and_kept(tmp_path, capsys):
    text = json.dumps({
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 31,
    })  # fmt: skip
    source, sink = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(sink, text.encode()), os.close(sink)))
    writer.start()
    try:
        assert main(["estimate", "decode", "--mesh", "4", "--model", f"/dev/fd/{source}"]) == 0
    finally:
        writer.join()
        os.close(source)
    assert "KV cache by shift" in capsys.readouterr().out


def test_a_working_directory_that_is_gone_is_named_with_the_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    line = "sweep gemv --over k=8 --set n=8 --set mesh=4 --out sweep.csv"
    code = main(shlex.split(line))
    assert (code, capsys.readouterr().err) == (
        2, "wafer-triton: error: sweep.csv: No such file or directory; give another path\n"
    )  # fmt: skip


def test_notes_do_not_go_to_standard_output_where_stderr_is_closed(monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        assert main(["fly"]) == 2
    assert capsys.readouterr().out == ""


def test_a_file_that_is_no_stream_is_read_anew(tmp_path):
    path = tmp_path / "text"
    for text in ("one", "two"):
        path.write_text(text)
        assert read_text(path) == text


def test_a_list_of_devices_has_files_with_commas_and_numbers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a,b.toml", "x=1.toml"):
        (tmp_path / name).write_text('like = "wse2"\nsram_kib = 96\n')
    line = "sweep gemv --over device={} --set mesh=4 --set k=8 --set n=8"

    def devices(given: str) -> list[str]:
        return [row["device"] for row in answer(line.format(given), capsys)[0]["rows"]]

    assert devices("a,b.toml") == ["a,b"]
    assert devices("wse2,a,b.toml,wse3") == ["wse2", "a,b", "wse3"]
    assert devices("wse2,wse2,sram_kib=96,hop_cycles=2,a,b.toml,sram_kib=64") == [
        "wse2", "wse2,sram_kib=96,hop_cycles=2", "a,b,sram_kib=64"
    ]  # fmt: skip
    assert devices("x=1.toml,wse2") == ["x=1", "wse2"]
    assert device("x=1.toml,sram_kib=64").sram_bytes == 64 * 1024
    said = refused(line.format("sram_kib=96"), capsys)
    assert "begins with a number; give a preset or a file first, as wse2,sram_kib=96" in said
    said = refused(line.format("a,c.toml"), capsys)
    assert "unknown device 'a'; give a preset, or a file that ends in .toml or .json" in said


def test_a_model_s_path_may_have_commas(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m,x").mkdir()
    (tmp_path / "m,x/config.json").write_text(json.dumps(CONFIG))
    whole = shape_of("m,x")
    assert whole.num_hidden_layers > 1
    for name in ("m,x", "m,x/config.json"):
        assert shape_of(f"{name},layers=1") == replace(whole, num_hidden_layers=1, name=f"{name},layers=1")
    assert parsed("model=smollm2-135m,m,x,layers=1") == ("model", ["smollm2-135m", "m,x,layers=1"])
