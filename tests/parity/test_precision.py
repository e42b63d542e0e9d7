"""Precision reports and perplexity: against transformers', and the commands' output."""

import json
import sys
from math import exp, log

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from wafer_triton.cli.main import main
from wafer_triton.errors import ShapeError
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.precision import compare, perplexity, windows

pytestmark = pytest.mark.slow

WORDS = [f"w{number}" for number in range(40)]
TEXT = " ".join(WORDS[(7 * n * n + n // 3) % 40] for n in range(60))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("precision")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=41, initializer_range=0.3, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(["<unk>", *WORDS])}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(path)
    (path / "text.txt").write_text(TEXT)
    return path


def ids() -> list[int]:
    return [WORDS.index(word) + 1 for word in TEXT.split()]


def wafer(folder, **options) -> WaferForCausalLM:
    return WaferForCausalLM.from_pretrained(folder, mesh=3, **({"max_length": 64} | options))


@pytest.mark.parametrize(("count", "length"), [(2, 2), (9, 4), (10, 4), (11, 4), (60, 64), (5, 2)])
def test_windows_judge_every_token_but_the_first_once(count, length):
    cut = windows(range(count), length)
    assert [token for part in cut for token in part[1:]] == list(range(1, count))
    assert all(2 <= len(part) <= length for part in cut)


def test_windows_of_one_judge_nothing():
    with pytest.raises(ShapeError, match="windows of 1 tokens have no token to predict; give at least 2"):
        windows([1, 2, 3], 1)


@pytest.mark.parametrize("window", [16, 64])
@torch.no_grad()
def test_perplexity_equals_transformers(folder, window):
    model = LlamaForCausalLM.from_pretrained(folder)
    wanted = sum(
        float(model(torch.tensor([part]), labels=torch.tensor([part])).loss) * (len(part) - 1)
        for part in windows(ids(), window)
    )
    judged = perplexity(wafer(folder), ids(), window)
    assert judged.tokens == 59 and judged.nats == pytest.approx(wanted, rel=1e-5)
    assert judged.perplexity == exp(judged.nats / 59) and log(judged.perplexity) == pytest.approx(wanted / 59, rel=1e-5)


def test_fp32_differs_from_itself_nowhere(folder):
    model = wafer(folder)
    precision = compare(model, model, ids(), 32)
    assert (precision.largest, precision.relative_rms, precision.differ, precision.first) == (0.0, 0.0, 0, None)
    assert precision.perplexity == precision.fp32_perplexity == perplexity(model, ids(), 32).perplexity


@pytest.mark.parametrize(("dtype", "accumulate"), [("fp16", "fp32"), ("fp16", "fp16"), ("bf16", "fp32")])
def test_a_precision_report_equals_a_comparison_of_logits(folder, dtype, accumulate):
    model, judge = wafer(folder, dtype=dtype, accumulate=accumulate), wafer(folder)
    got, wanted = (decoder(torch.tensor([ids()[:-1]]))[0].float() for decoder in (model, judge))
    precision = compare(model, judge, ids(), 64)
    assert precision.largest == float((got - wanted).double().abs().max()) > 0
    assert precision.relative_rms == pytest.approx(float((got - wanted).norm() / wanted.norm()), rel=1e-5)
    other = (got.argmax(-1) != wanted.argmax(-1)).nonzero().flatten().tolist()
    assert precision.differ == len(other) and precision.first == (other[0] if other else None)
    if other:
        assert (precision.wanted, precision.got) == (int(wanted[other[0]].argmax()), int(got[other[0]].argmax()))


def test_fp16_sums_are_worse_than_fp32_sums(folder):
    judge = wafer(folder)
    kept, rounded = (
        compare(wafer(folder, dtype="fp16", accumulate=sums), judge, ids(), 64).relative_rms
        for sums in ("fp32", "fp16")
    )
    assert 1e-5 < kept < rounded < 0.1


def run(capsys, *args: str) -> tuple[int, str, str]:
    code = main([str(arg) for arg in args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def options(folder):
    return ["--model", folder, "--text", folder / "text.txt", "--mesh", "3", "--window", "32"]


def test_perplexity_command(folder, options, capsys):
    code, out, err = run(capsys, "perplexity", *options, "--dtype", "fp32", "--tokens", "40", "--json")
    record = json.loads(out)
    assert code == 0 and out.count("\n") == 1 and "perplexity" in err
    wanted = perplexity(wafer(folder), ids()[:40], 32)
    assert (record["perplexity"], record["tokens"]) == (wanted.perplexity, 39)
    assert (
        record["mesh"] == record["prefill_mesh"] == "3x3"
        and record["window"] == 32
        and 0 < record["sram_peak_bytes"] <= 49_152
    )


def test_precision_command(folder, options, capsys):
    code, out, _ = run(capsys, "precision", *options, "--accumulate", "fp16", "--json")
    record = json.loads(out)
    wanted = compare(wafer(folder, dtype="fp16", accumulate="fp16"), wafer(folder), ids(), 32)
    assert code == 0 and out.count("\n") == 1
    assert record["largest"] == wanted.largest and record["relative_rms"] == wanted.relative_rms
    assert record["tokens"] == 59 and record["accumulate"] == "fp16"


SMALL = "wormhole,rows=4,cols=5"  # a device on which a search of meshes is short


def test_precision_on_planned_meshes(options, capsys):
    code, out, _ = run(capsys, "precision", *options[:4], "--mesh", "plan", "--device", SMALL, "--json")
    record = json.loads(out)
    assert code == 0 and 0 < record["relative_rms"] < 0.1
    assert record["mesh"] != "3x3" and record["device"] == SMALL


def test_without_json_people_read_stdout(options, capsys):
    code, out, _ = run(capsys, "perplexity", *options)
    assert code == 0 and "perplexity" in out and "emulation time" in out


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"--text": "/nowhere.txt"}, "nowhere.txt: there is no such file"),
        ({"--text": sys.executable}, "is not UTF-8 text (line 1 has "),
        ({"--tokens": "1"}, "tokens = 1: at least two are needed"),
        ({"--window": "1"}, "windows of 1 tokens have no token to predict; give at least 2"),
        ({"--model": "/nowhere"}, "/nowhere: there is no such folder; give one in Hugging Face layout"),
        ({"--accumulate": "fp16", "--dtype": "bf16"}, "accumulate='fp16' needs fp16 tiles"),
    ],
)
@pytest.mark.parametrize("command", ["perplexity", "precision"])
def test_mistakes_are_one_line_and_code_2(command, changed, message, options, capsys):
    given = dict(zip(options[::2], options[1::2], strict=True)) | changed
    code, out, err = run(capsys, command, *(word for pair in given.items() for word in pair), "--json")
    assert code == 2 and out == ""
    assert err.strip().splitlines()[-1].startswith("wafer-triton: error: ") and message in err
