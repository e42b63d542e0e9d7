"""The command `plan-training`: its output, its JSON, and errors in one line."""

import json
import re

import pytest

from commands import answer, refused

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 512,
}  # fmt: skip


@pytest.fixture
def line(tmp_path):
    """Return the line of a plan of a small model."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return f"plan-training --config {tmp_path} --sequence 64"


def test_a_plan_of_a_config_has_every_baseline_or_says_why_not(capsys, line):
    found, _ = answer(f"{line} --wafer wafer-32 --batch 8", capsys)
    names = [each["strategy"] for each in found["plans"] if "why" not in each]
    assert names[0] == "planned" and len(found["plans"]) + len(found["does_not_fit"]) >= 7
    for each in found["plans"]:
        assert each["seconds"] == pytest.approx(sum(each["parts"].values()))
        assert each["solver_seconds"] >= 0 and set(each["operators"]) == {"qkv", "attention", "o", "inner", "out"}


def test_two_kinds_of_layers_with_one_kind_of_recompute_are_all_counted(capsys):
    line = "plan-training --workload gpt3-76b --batch 1 --sequence 8192 --recompute none --no-baselines"
    found, text = answer(line, capsys)
    assert found["plans"][0]["layers"] == {"none": 60}
    ((first, second),) = re.findall(
        r"60 layers with none recompute \((\d+) and (\d+), sharded in different ways\)", text
    )
    assert int(first) + int(second) == 60


def test_groups_of_data_without_a_sample_of_their_own_are_padded(capsys, line):
    plans = answer(f"{line} --wafer wafer-32 --batch 1", capsys)[0]["plans"]
    baseline = next(each for each in plans if each["strategy"] == "Megatron TP, fixed")
    assert baseline["operators"]["qkv"]["tuple"] == "data 4, tensor 8"
    assert baseline["parts"]["compute"] > 1.5 * plans[0]["parts"]["compute"]  # one group of four has a sample


def test_a_config_whose_heads_are_narrower_than_the_model_is_refused(capsys, line, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"head_dim": 16}))
    message = "training is planned for dense decoders whose heads together are as wide as the model"
    assert refused(f"{line} --batch 1", capsys) == f"wafer-triton: error: {tmp_path}: {message}\n"


def test_a_plan_of_a_small_model_has_units_that_fit(capsys, line):
    _, text = answer(f"{line} --batch 1 --no-baselines", capsys)
    assert " us" in text and " KiB" in text and "planned, 1 micro-batch, " in text
    assert not re.search(r"\b0\.0+\b", text)
