"""The commands `train` and `plan-training`: their output, their JSON, and errors in one line."""

import json
import re

import pytest

from wafer_triton.cli.main import main
from wafer_triton.draw import progress

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 512,
}  # fmt: skip


def said(capsys, *argv):
    code = main(list(argv))
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.parametrize("more", [(), ("--model", "gpt", "--moving", "xy", "--stream", "cycle", "--recompute", "full")])
def test_the_demo_trains_as_torch_does(capsys, more):
    argv = ("train", "--demo", "--mesh", "1x2", "--steps", "2", "--backend", "torch", "--json", *more)
    code, out, _ = said(capsys, *argv)
    answer = json.loads(out.splitlines()[-1])
    assert code == 0 and len(answer["losses"]) == 2 and answer["largest_difference"] < 1e-4
    assert answer["losses"][1]["dies"] < answer["losses"][0]["dies"]
    assert answer["predicted_seconds"] > 0 and answer["hbm_bytes_by_name"]["weights"] > 0


def test_a_long_step_reports_its_micro_batches(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LONG", 0.0)
    argv = ("train", "--demo", "--mesh", "1x2", "--steps", "2", "--micro-batches", "3", "--backend", "torch")
    code, _, err = said(capsys, *argv)
    assert code == 0 and "this takes about" in err and err.endswith("micro-batches: 6 of 6\n")


def test_a_plan_of_a_config_has_every_baseline_or_says_why_not(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    argv = ("plan-training", "--config", str(tmp_path), "--wafer", "wafer-32", "--batch", "8", "--sequence", "64")
    code, out, err = said(capsys, *argv, "--out", str(tmp_path / "plan.png"), "--json")
    answer = json.loads(out.splitlines()[-1])
    names = [each["strategy"] for each in answer["plans"] if "why" not in each]
    assert code == 0 and names[0] == "planned" and len(answer["plans"]) + len(answer["does_not_fit"]) >= 7
    for each in answer["plans"]:
        assert each["seconds"] == pytest.approx(sum(each["parts"].values()))
        assert each["solver_seconds"] >= 0 and set(each["operators"]) == {"qkv", "attention", "o", "inner", "out"}
    assert "written: " in err and (tmp_path / "plan.png").exists()


def test_a_baseline_without_a_tuple_for_a_single_sample_is_named_with_its_reason(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    argv = ("plan-training", "--config", str(tmp_path), "--wafer", "wafer-32", "--batch", "1", "--sequence", "64")
    code, out, _ = said(capsys, *argv, "--json")
    reason = json.loads(out.splitlines()[-1])["does_not_fit"]["Megatron TP, fixed"]
    assert code == 0 and reason.startswith(
        "no tuple divides 1 samples, 8 heads and 64 tokens over 32 dies of wafer-32;"
    )


def test_a_config_whose_heads_are_narrower_than_the_model_is_refused(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"head_dim": 16}))
    code, out, err = said(capsys, "plan-training", "--config", str(tmp_path), "--batch", "1", "--sequence", "64")
    message = "training is planned for dense decoders whose heads together are as wide as the model"
    assert (code, out, err) == (2, "", f"wafer-triton: error: {tmp_path}: {message}\n")


def test_a_plan_of_a_small_model_has_units_that_fit(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    argv = ("plan-training", "--config", str(tmp_path), "--batch", "1", "--sequence", "64", "--no-baselines")
    code, out, _ = said(capsys, *argv)
    assert code == 0 and " us" in out and " KiB" in out and "planned, 1 micro-batch, " in out
    assert not re.search(r"\b0\.0+\b", out)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("train",), "give --demo"),
        (("train", "--demo", "--mesh", "3x3", "--group", "1x2"), "groups of 1 x 2 dies do not tile mesh 3x3"),
        (("train", "--demo", "--mesh", "9x9"), "leaves device wafer-48"),
        (("train", "--demo", "--stream", "cycle", "--mesh", "1x4", "--group", "1x4"), "no cycle of one-hop transfers"),
        (("train", "--demo", "--moving", "xy", "--mesh", "1x3", "--group", "1x3"), "cuts heads = 4 over groups of 3"),
        (("plan-training", "--workload", "gpt5"), "unknown training workload 'gpt5'"),
        (("plan-training", "--wafer", "wafer-9"), "unknown wafer 'wafer-9'"),
        (("plan-training", "--failed", "0,0"), "give two neighbouring dies by row and column, such as 0,0-0,1"),
        (("plan-training", "--failed", "0,0-0,1", "--failed", "0,0-1,0"), "failed links isolate 1 of 48 dies"),
        (("plan-training", "--failed", "0,0-2,2"), "is not between neighbouring dies"),
        (("plan-training", "--wafer", "wafer-32", "--wafers", "5"), "32 layers do not divide by 5 wafers"),
        (("plan-training", "--link-rate", "-1"), "'-1' is not a positive number"),
    ],
)
def test_mistakes_are_one_line(capsys, argv, message):
    code, out, err = said(capsys, *argv)
    assert code == 2 and message in err and err.count("\n") == 1 and not out
