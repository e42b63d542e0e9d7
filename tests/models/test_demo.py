"""The demo on a checkpoint of a few kilobytes: its lines and its exit code."""

import pytest
import torch

import tiny
from wafer_triton.errors import CheckpointError
from wafer_triton.models import demo


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Write a checkpoint in place of SmolLM2-135M, and restore the number of torch's threads afterwards."""
    folder = tiny.checkpoint(tmp_path / "tiny")
    monkeypatch.setattr(demo, "resolve", {"smollm2-135m": folder}.__getitem__)
    monkeypatch.setattr(demo, "MESH", 2)
    monkeypatch.setattr(demo, "NEW_TOKENS", 3)
    threads = torch.get_num_threads()
    yield folder
    torch.set_num_threads(threads)


@pytest.mark.slow  # with the import of transformers' model
def test_the_demo_passes_if_every_token_equals_transformers(small, capsys):
    assert demo.main(["--emulate-on", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert torch.get_num_threads() == 1
    assert printed.startswith("SmolLM2-135M on meshes of 2 x 2 virtual cores of a WSE-2, fp32, emulated on the CPU by ")
    for prompt in demo.PROMPTS:
        assert f"\n> {prompt}" in printed
    assert printed.count("\nAll 3 tokens equal transformers'.\nLargest logit difference: ") == len(demo.PROMPTS)
    assert printed.count(" hops, ") == printed.count("predicted on the wafer: prefill ") == len(demo.PROMPTS)
    assert "\n\nPassed, in " in printed


@pytest.mark.slow
def test_the_demo_fails_where_transformers_continues_with_another_token(small, capsys, monkeypatch):
    from transformers import AutoModelForCausalLM

    load = AutoModelForCausalLM.from_pretrained

    def negated(folder, **options):
        model = load(folder, **options)
        model.lm_head.weight.data.neg_()
        return model

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", negated)
    assert demo.main(["--emulate-on", "cpu"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("\nToken 1 DIFFERS from transformers, which says: ") == len(demo.PROMPTS)
    assert "\n\nFAILED: 2 of 2 prompts, in " in printed


def test_the_demo_names_the_reason_why_it_has_no_checkpoint(small, capsys, monkeypatch):
    def refuse(name):
        raise CheckpointError(f"{name}: the registry does not answer")

    monkeypatch.setattr(demo, "resolve", refuse)
    assert demo.main() == 2
    assert capsys.readouterr() == ("", "demo: smollm2-135m: the registry does not answer\n")
