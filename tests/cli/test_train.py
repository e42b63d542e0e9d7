"""The command `plan-training`: its output, its JSON, and errors in one line."""

import json
import re

import pytest

from wafer_triton.cli.main import main

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 512,
}  # fmt: skip


def said(capsys, *argv):
    code = main(list(argv))
    out = capsys.readouterr()
    return code, out.out, out.err


def test_a_plan_of_a_config_has_every_baseline_or_says_why_not(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    argv = ("plan-training", "--config", str(tmp_path), "--wafer", "wafer-32", "--batch", "8", "--sequence", "64")
    code, out, _ = said(capsys, *argv, "--json")
    answer = json.loads(out.splitlines()[-1])
    names = [each["strategy"] for each in answer["plans"] if "why" not in each]
    assert code == 0 and names[0] == "planned" and len(answer["plans"]) + len(answer["does_not_fit"]) >= 7
    for each in answer["plans"]:
        assert each["seconds"] == pytest.approx(sum(each["parts"].values()))
        assert each["solver_seconds"] >= 0 and set(each["operators"]) == {"qkv", "attention", "o", "inner", "out"}


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
