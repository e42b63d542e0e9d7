"""Models that are broken, too large or interrupted: the errors of the commands that run them."""

import shlex
from pathlib import Path

import pytest
import torch

from tiny import CONFIG, checkpoint
from wafer_triton.cli.main import main
from wafer_triton.models.checkpoint.text import tokenizer_of
from wafer_triton.models.decoder import WaferForCausalLM

GENERATE = "generate --prompt hello --mesh 2 --model {}"
CHECK = "check --mesh 4 --model {}/config.json"
CONFIGS = {
    "hidden_size": (2**40, "is more than the 16,777,216 that are taken here"),
    "num_hidden_layers": (10**9, "is more than the 10,000 that are taken here"),
    "dtype": ("float99", "is no dtype of weights; take one of auto, float64"),
    "max_position_embeddings": (-5, "must be a positive integer"),
    "architectures": (["LlamaForSequenceClassification"], "is not computed here; only decoders that end in For"),
    "model_type": (None, "is missing (null)"),
}


ESTIMATE = "estimate decode --mesh 4 --context 8 --model {}"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def wrong(capsys):
    """Run a line that is a mistake; the last line on stderr."""

    def run(line):
        assert main(shlex.split(line)) == 2, line
        out, err = capsys.readouterr()
        assert out == "" and err.splitlines()[-1].startswith("wafer-triton: error: ")
        return err.splitlines()[-1]

    return run


@pytest.mark.parametrize("key", CONFIGS)
def test_a_wrong_setting_names_file_and_key(wrong, tmp_path, key):
    value, message = CONFIGS[key]
    folder = checkpoint(tmp_path / "wrong", {key: value})
    said = wrong(ESTIMATE.format(folder))
    assert f"{folder}/config.json: {key}" in said and message in said


def test_an_unknown_option_of_a_model_is_named_with_those_that_there_are():
    with pytest.raises(TypeError, match="^a model has no option 'maxlength'; its options are .*, max_length, .*mesh"):
        WaferForCausalLM.from_config(CONFIG, mesh=2, maxlength=8)


READERS = (
    CHECK,
    ESTIMATE,
    "estimate prefill --mesh 4 --tokens 8 --model {}",
    "estimate request --prefill-mesh 4 --decode-mesh 4 --input 4 --output 4 --model {}",
    "estimate decode --mesh 4 --model {}",
    "estimate decode --mesh 4 --context 8 --model {} --routing uniform",
    "plan --step 300 --input 4 --output 4 --model {}",
    "sweep decode --over context=8 --set mesh=4 --set model={}",
    GENERATE,
)


@pytest.mark.parametrize("line", READERS)
def test_every_command_has_the_same_rule_for_an_unknown_key(wrong, tmp_path, line):
    folder = checkpoint(tmp_path / "own", {"attention_chunks": 4})
    said = wrong(line.format(folder))
    assert f"{folder}/config.json: unknown key 'attention_chunks'; read are hidden_size, " in said
    assert said.endswith("mend its name, or take it out if it changes nothing that a layer computes")


def test_a_family_that_is_not_computed_is_named_before_its_own_keys(wrong, tmp_path):
    folder = checkpoint(tmp_path / "own", {"model_type": "gemma", "use_bidirectional_attention": None})
    assert f"{folder}/config.json: model_type = 'gemma' is not computed here" in wrong(ESTIMATE.format(folder))


def test_control_characters_of_a_name_are_printed_as_escapes(capsys, tmp_path):
    folder = checkpoint(tmp_path / "a\x1b[31m\x07b")
    assert main(["estimate", "decode", "--mesh", "4", "--model", str(folder)]) == 0
    printed = "".join(capsys.readouterr().out.split())  # a long path goes on in the next line
    assert "/a\\x1b[31m\\x07b,mesh4" in printed and "\x1b" not in printed
    (folder / "config.json").write_text("{")
    assert main(["estimate", "decode", "--mesh", "4", "--model", str(folder)]) == 2
    assert "/a\\x1b[31m\\x07b/config.json: not valid JSON" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "\ufeff{}"])
def test_a_broken_config_is_not_blamed_on_the_tokenizer(wrong, tmp_path, text):
    folder = checkpoint(tmp_path / "broken")
    (folder / "config.json").write_text(text)
    assert f"{folder}/config.json: " in wrong(GENERATE.format(folder))


def test_settings_of_rope_and_generation_name_their_file(wrong, tmp_path):
    folder = checkpoint(tmp_path / "rope", {"rope_scaling": {"type": "linear", "factor": 0}})
    assert f"{folder}/config.json: rope_scaling: factor = 0 must be" in wrong(GENERATE.format(folder))
    folder = checkpoint(tmp_path / "ends")
    (folder / "generation_config.json").write_text('{"eos_token_id": "x"}')
    assert f"{folder}/generation_config.json: eos_token_id = 'x' must be" in wrong(GENERATE.format(folder))
    folder = checkpoint(tmp_path / "own", {"eos_token_id": "x"})
    assert f"{folder}/config.json: eos_token_id = 'x' must be a token id" in wrong(GENERATE.format(folder))


@pytest.fixture
def early(monkeypatch):
    """Neither a tokenizer is made nor weights are placed."""

    def late(*args, **options):
        raise AssertionError("too late")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", late)
    monkeypatch.setattr("wafer_triton.models.decoder.Head", late)
    tokenizer_of.cache_clear()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--mesh 2 --head-groups 3", "head_groups = 3, but 2 query heads on 2 columns take a whole number from 1 to 2"),
        ("--mesh 31x37", "mesh 31x37: products of matrices fold it"),
        ("--mesh 2 --max-new-tokens 1000000000", "1000000000 tokens are more than the 64 positions"),
        ("--mesh 2 --routing-out trace.json", " has no experts, so that there is no routing to write"),
    ],
)
def test_errors_of_options_and_config_come_before_the_tokenizer_loads(wrong, early, tiny, line, message):
    assert message in wrong(f"generate --prompt hello --model {tiny} {line}")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", None, "tokenizer.json: is no regular file"),
        ("tokenizer.json", "{", "tokenizer.json: not valid JSON (Expecting property name"),
        ("tokenizer_config.json", "", "tokenizer_config.json: not valid JSON"),
    ],
)
def test_a_wrong_file_is_named_before_the_tokenizer_is_loaded(wrong, early, tmp_path, name, text, message):
    file = checkpoint(tmp_path / "files") / name
    file.unlink()
    file.mkdir() if text is None else file.write_text(text)
    assert message in wrong(GENERATE.format(file.parent))


def test_values_that_leave_their_range(wrong, tmp_path):
    wide = {f"model.layers.0.mlp.{name}_proj.weight": torch.full((24, 16), 3e4) for name in ("gate", "up")}
    folder = checkpoint(tmp_path / "wide", weights=wide)
    assert "the logits of the next token are NaN, as a value left the range" in wrong(GENERATE.format(folder))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", 'tokenizer.json: has no "model", the table of a vocabulary; put a whole copy there'),
        ("[]", "tokenizer.json: holds no table; put a whole copy there"),
        ('{"model": {}}', "no tokenizer that can be read (tokenizer.json): Exception: "),
        (None, "no tokenizer.json there; give the folder of a whole checkpoint"),
    ],
)
def test_a_tokenizer_that_is_none(wrong, tmp_path, text, said):
    folder = checkpoint(tmp_path / "none")
    (folder / "tokenizer.json").unlink()
    if text is not None:
        (folder / "tokenizer.json").write_text(text)
    error = wrong(GENERATE.format(folder))
    assert str(folder) in error and said in error


@pytest.mark.parametrize(
    ("name", "held", "said"),
    [
        ("tokenizer.json", None, "begins with a byte order mark, which transformers refuses; save it without"),
        ("added_tokens.json", "{}".encode("utf-16"), "is not UTF-8 text ("),
        ("chat_template.jinja", b"{{ a }}\n\xe9", "is not UTF-8 text ("),
    ],
)
def test_the_file_of_a_tokenizer_that_is_at_fault_is_named(wrong, tmp_path, name, held, said):
    folder = checkpoint(tmp_path / "files")
    (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes() if held is None else held)
    assert f"{folder / name}: {said}" in wrong(GENERATE.format(folder))


def test_a_mistake_of_a_mixtral_names_its_own_key(wrong, tmp_path):
    config = {"model_type": "mixtral", "num_experts_per_tok": 2, "num_local_experts": 0}
    assert "num_local_experts" in wrong(ESTIMATE.format(checkpoint(tmp_path / "mixtral", config)))


@pytest.mark.parametrize(
    "text", ["version https://git-lfs.github.com/spec/v1\n", "<!DOCTYPE html>\n<html>sign in</html>"]
)
def test_a_file_in_place_of_a_config_is_named(wrong, tmp_path, text):
    folder = checkpoint(tmp_path / "pointer")
    (folder / "config.json").write_text(text)
    said = wrong(ESTIMATE.format(folder))
    assert f"{folder}/config.json: is a" in said and ("Git LFS pointer" in said or "HTML page" in said)


def test_a_cache_of_more_positions_than_the_model_has(wrong, early, tiny):
    message = "--max-length 99,999,999 is more than the 64 positions of"
    assert message in wrong(GENERATE.format(tiny) + " --max-length 99999999")


@pytest.mark.slow
def test_the_mesh_of_a_plan_is_searched_with_a_word(tiny, capsys):
    chip = "wse2,rows=4,cols=5,sram_kib=1464"
    line = f"generate --prompt hi --max-new-tokens 1 --device {chip} --mesh plan --model {tiny}"
    assert main(shlex.split(line)) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("searching the fastest meshes for ") and "a --mesh such as 16 takes none" in first


def test_a_profile_leaves_a_device_as_it_is(tiny, capsys):
    assert main(shlex.split(GENERATE.format(tiny) + " --max-new-tokens 3 --profile /dev/full")) == 2
    assert "/dev/full: No space left on device" in capsys.readouterr().err
    assert Path("/dev/full").is_char_device()
