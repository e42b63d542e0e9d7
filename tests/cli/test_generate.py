import json
import re
import sys

import pytest
import torch

from tiny import checkpoint
from wafer_triton.cli.generate import TextStream
from wafer_triton.cli.main import main
from wafer_triton.models.checkpoint.checkpoint import Checkpoint
from wafer_triton.models.checkpoint.text import tokenizer_of
from wafer_triton.models.decoder import WaferForCausalLM


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write a tiny random decoder whose tokens are bytes."""
    return checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def run(folder, capsys):
    """Run `generate` on the tiny model: (exit code, stdout, stderr)."""

    def generate(*args, prompt="hello"):
        threads = torch.get_num_threads()
        defaults = {"--model": str(folder), "--prompt": prompt, "--mesh": "2", "--max-new-tokens": "6"}
        left = [word for flag, value in defaults.items() if flag not in args for word in (flag, value)]
        code = main(["generate", *left, *args])
        torch.set_num_threads(threads)
        return code, *capsys.readouterr()

    return generate


def outcome(run, *args, **options):
    code, out, _ = run("--json", *args, **options)
    assert code == 0
    return json.loads(out.splitlines()[-1])


def test_generate_prints_text_then_a_table(run):
    code, out, err = run()
    assert code == 0
    assert out.startswith(outcome(run)["text"])
    for word in ("wse2, 750 x 994 cores", "2x2, fp16 tiles, fp32 sums", "of a core's 48 KiB", "bytes over links"):
        assert word in out
    assert "emulated decode" in out and "tokens/s" in out
    assert re.search(r"^head groups +[12] in decode, of [12] columns?$", out, re.MULTILINE)
    assert "placing weights" in err and "prefill" in err


def test_json_is_one_line_and_the_rest_goes_to_stderr(run):
    code, out, err = run("--json")
    assert (code, out.count("\n")) == (0, 1)
    made = json.loads(out)
    assert made["text"] in err and "bytes over links" in err
    assert len(made["tokens"]) == 6 and made["prompt_tokens"] == 5
    for key in ("tokens_per_second", "sram_peak_bytes", "rounds", "hops", "link_bytes"):
        assert made[key] > 0, key
    assert made["sram_peak_bytes"] == max(region["sram_peak_bytes"] for region in made["regions"])
    assert made["regions"][0] == made["regions"][0] | {"origin": [0, 0], "mesh": "2x2"}
    assert made["regions"][-1]["blocks"][-1] == "head"


def test_generate_equals_the_model(run, folder):
    made = outcome(run, "--dtype", "fp32")
    model = WaferForCausalLM.from_pretrained(folder, mesh=2, dtype="fp32", max_length=11)
    prompt = TextStream(Checkpoint(folder), "hello").prompt
    assert made["tokens"] == list(model.generate(prompt, 6))
    assert (made["rounds"], made["link_bytes"]) == (model.account().rounds, model.account().link_bytes)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--dtype", "bf16"], {"dtype": "bf16"}),
        (["--accumulate", "fp16"], {"accumulate": "fp16"}),
        (["--exchange", "elided"], {"exchange": "elided"}),
        (["--backend", "torch"], {"backend": "torch"}),
        (["--device", "wse3"], {"device": "wse3", "sram_bytes": 48 * 1024}),
        (["--mesh", "2x3"], {"mesh": "2x3"}),
        (["--mesh", "2x3", "--head-groups", "2"], {"mesh": "2x3", "head_groups": 2}),
        (["--mesh", "2x3", "--head-groups", "1"], {"mesh": "2x3", "head_groups": 1}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_options_reach_the_run(run, args, expected):
    made = outcome(run, *args)
    assert made | expected == made
    assert len(made["tokens"]) == 6


def test_the_mesh_of_prefill_is_named_where_it_is_another(run):
    assert "prefill on" not in run("--mesh", "2x3")[1]
    made = outcome(run, "--mesh", "2x3")
    assert made["mesh"] == made["prefill_mesh"] == "2x3"


SMALL = "wse2,rows=2,cols=3,sram_kib=1464"  # a device on which a search of meshes is short


def test_meshes_from_the_plan(run, folder):
    _, out, said = run("--json", "--mesh", "plan", "--device", SMALL)
    made = json.loads(out)
    assert all(f"{kind}: 1 of " in said for kind in ("meshes", "meshes of decode", "meshes of prefill")), said
    model = WaferForCausalLM.from_pretrained(folder, device=SMALL, max_length=11, max_prompt=5)
    assert made["mesh"] == str(model.block.mesh) and len(made["tokens"]) == 6


def test_triton_prints_the_same_text(run, monkeypatch):
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    made = outcome(run, "--backend", "triton", "--dtype", "fp32", "--max-new-tokens", "2")
    assert made["backend"] == "triton"
    assert made["tokens"] == outcome(run, "--backend", "torch", "--dtype", "fp32", "--max-new-tokens", "2")["tokens"]


def test_a_generation_of_one_token_has_a_rate(run):
    made = outcome(run, "--max-new-tokens", "1")
    assert len(made["tokens"]) == 1 and made["tokens_per_second"] > 0


def test_a_larger_cache_takes_more_sram(run):
    assert outcome(run, "--max-length", "64")["sram_peak_bytes"] > outcome(run)["sram_peak_bytes"]


def test_regions_are_listed_on_request(run):
    assert "embedding to head" not in run()[1]
    assert "embedding to head" in run("--regions")[1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--mesh", "plan", "--max-length", "900000000"], "--max-length 900,000,000 is more than the 64 positions of"),
        (["--model", "nowhere"], "nowhere: neither a folder nor a known checkpoint"),
        (["--prompt", ""], "the prompt is empty"),
        (["--dtype", "int4"], "int4"),
        (["--backend", "cuda"], 'Invalid value "cuda" for --backend'),
        (["--max-length", "7"], "tokens do not fit the KV cache"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_code_2(run, args, message):
    code, out, err = run("--json", *args)
    assert (code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if line.startswith("wafer-triton: error: ")]
    assert message in line and err.endswith(line + "\n")
    assert "Traceback" not in err


def test_a_folder_without_a_tokenizer(tmp_path, folder, capsys):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(folder / name)
    assert main(["generate", "--model", str(tmp_path), "--prompt", "a"]) == 2
    assert f"{tmp_path}: no tokenizer there (tokenizer.json); give the folder of a" in capsys.readouterr().err


def test_says_which_extra_is_missing(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    tokenizer_of.cache_clear()
    code, _, err = run()
    assert code == 2 and "needs transformers; run: pip install 'wafer-triton[models]'" in err


def test_ctrl_c_keeps_the_text_so_far(run, monkeypatch):
    advance, whole = WaferForCausalLM.advance, outcome(run)

    def stops_at_the_third(model, tokens):
        if model.count == 7:
            raise KeyboardInterrupt
        return advance(model, tokens)

    monkeypatch.setattr(WaferForCausalLM, "advance", stops_at_the_third)
    code, out, err = run("--json")
    made = json.loads(out)
    assert code == 130 and made["interrupted"]
    assert made["tokens"] == whole["tokens"][:3]
    assert err.endswith("interrupted after 3 tokens\n")
    code, out, _ = run()
    assert code == 130 and out.startswith(made["text"]) and "bytes over links" in out


def test_ctrl_c_while_loading(run, monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(WaferForCausalLM, "from_pretrained", stop)
    assert run() == (130, "", "interrupted\n")


def test_a_bug_is_raised_unchanged(run, monkeypatch):
    def fail(*args, **options):
        raise AssertionError("ours")

    monkeypatch.setattr(WaferForCausalLM, "prompt", fail)
    with pytest.raises(AssertionError, match="ours"):
        run()


def test_characters_wait_for_their_last_byte(folder):
    stream = TextStream(Checkpoint(folder), "é")
    assert len(stream.prompt) == 2
    tokens = TextStream(Checkpoint(folder), "aé🦊\n").prompt
    assert [stream.push(token) for token in tokens] == ["a", "", "é", "", "", "", "🦊", "\n"]
    assert (stream.shown, stream.tokens, stream.rest()) == ("aé🦊\n", tokens, "")


def test_half_a_character_at_the_end_is_shown(folder):
    stream = TextStream(Checkpoint(folder), "a")
    assert stream.push(TextStream(Checkpoint(folder), "é").prompt[0]) == ""
    assert stream.rest() == stream.shown == "\ufffd"


def test_a_profile_is_a_trace_of_the_emulation(run, tmp_path):
    code, out, _ = run("--profile", str(tmp_path / "run.json"), "--max-new-tokens", "3")
    assert code == 0 and out
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert any(event.get("name", "").startswith("aten::") for event in events)
    assert (tmp_path / "run.json").stat().st_size < 20_000_000
