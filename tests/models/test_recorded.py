"""A model whose launches are recorded, as on a GPU: a chunk of a prompt is one replay."""

import pytest
import torch

from recording import Operators, Recorder, RecordingExecutor
from wafer_triton.decoder.block import _schedule
from wafer_triton.emulate.program import Program
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.models.decoder import WaferForCausalLM

pytestmark = pytest.mark.slow

SHAPE = {
    "model_type": "qwen2", "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 31,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip
MIXTURE = SHAPE | {
    "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "router_jitter_noise": 0.0,
}  # fmt: skip
PROMPTS = ([3, 1, 4, 1, 5], [9, 2, 6, 5, 3], [5, 8, 9, 7, 9, 3, 2, 3, 8])


def models(shape=SHAPE, mesh=2, exchange="explicit", **options):
    """Return a model that records, and one that does not."""
    ons = RecordingExecutor(exchange=exchange), TorchExecutor(exchange=exchange)
    return [WaferForCausalLM.from_config(shape, mesh=mesh, max_length=20, seed=3, executor=on, **options) for on in ons]


def said(model, prompt):
    """Return logits of a prompt and of three steps after it, and the records and replays of either."""
    model.reset()
    log = getattr(model.executor, "log", [])
    log.clear()
    rows = [model.prefill(prompt)]
    prefill = [*log]
    log.clear()
    rows += [model.step(7 + number) for number in range(3)]
    return torch.stack(rows), prefill, [*log]


@pytest.mark.parametrize(("mesh", "options", "exchange"), [
    (2, {}, "elided"), ("2x3", {}, "explicit"), (3, {"prefill_mesh": 2}, "elided"),
    (2, {"head_groups": 2, "prefill_head_groups": 1}, "explicit"),
])  # fmt: skip
def test_a_prompt_is_one_replay_of_its_length(mesh, options, exchange):
    recorded, plain = models(mesh=mesh, exchange=exchange, **options)
    for number, prompt in enumerate(PROMPTS[:2]):
        (got, prefill, steps), (wanted, *_) = said(recorded, prompt), said(plain, prompt)
        assert torch.equal(got, wanted)
        assert prefill == (["replay"] if number else ["record", "replay"])
        assert steps == ["run"] * 3, "each by one call"
    assert recorded.count == plain.count and recorded.account() == plain.account()


def test_each_chunk_of_a_prompt_is_one_replay(monkeypatch):
    recorded, plain = models()
    monkeypatch.setattr(type(recorded.placement), "chunk", lambda self, count: 2)
    got, prefill, _ = said(recorded, PROMPTS[2])  # chunks of 4, 4 and 1 tokens
    assert torch.equal(got, said(plain, PROMPTS[2])[0]) and prefill == ["record", "replay"] * 3
    got, prefill, _ = said(recorded, PROMPTS[1])  # of 4 and 1: a chunk of one reads the cache of other chunks now
    assert torch.equal(got, said(plain, PROMPTS[1])[0]) and prefill == ["replay", "record", "replay"]
    assert torch.equal(said(recorded, PROMPTS[2][::-1])[0], said(plain, PROMPTS[2][::-1])[0])
    assert said(recorded, PROMPTS[2])[1] == ["replay"] * 3


@pytest.mark.parametrize("shape", [SHAPE, MIXTURE])
def test_the_host_runs_as_many_operators_for_a_prompt_of_2_layers_as_of_6(monkeypatch, shape):
    counts = []
    for layers in (2, 6):
        options = {"mesh": 3, "max_length": 20, "executor": RecordingExecutor(exchange="elided")}
        model = WaferForCausalLM.from_config(shape | {"num_hidden_layers": layers}, **options)
        said(model, PROMPTS[2])
        model.reset()
        with monkeypatch.context() as launches, Operators() as outside:
            launches.setattr(Recorder, "replay", lambda record: None)
            launches.setattr(Program, "execute", lambda program: None)
            model.prefill(PROMPTS[2])
        counts.append(outside.count)
    assert 0 < counts[0] == counts[1] < 100


def test_the_append_of_the_next_step_is_built_after_a_step_is_launched():
    model = WaferForCausalLM.from_config(SHAPE, mesh=2, max_length=19, executor=RecordingExecutor())
    said(model, PROMPTS[0])
    before, launched = _schedule.cache_info().misses, []
    model.layers.steps[(0,)] = lambda: launched.append(_schedule.cache_info().misses)
    model.step(7)
    assert launched == [before] == [_schedule.cache_info().misses - 1]


def test_a_mixture_of_experts_is_recorded_unless_the_host_sends_to_regions():
    recorded, plain = models(MIXTURE, experts="spread")
    for prompt in PROMPTS[:2]:
        assert torch.equal(said(recorded, prompt)[0], said(plain, prompt)[0])
        assert recorded.passes.trace() == plain.passes.trace()
    regions = models(MIXTURE, experts="regions")
    got, prefill, _ = said(regions[0], PROMPTS[0])
    assert torch.equal(got, said(regions[1], PROMPTS[0])[0]) and prefill == []


@pytest.mark.parametrize("mesh", [2, "2x3"])
def test_loaded_weights_serve_the_next_prompt(mesh):
    recorded, plain = models(mesh=mesh)
    said(recorded, PROMPTS[0])
    other = WaferForCausalLM.from_config(SHAPE, mesh=mesh, seed=4, max_length=20).state_dict()
    for model in (recorded, plain):
        model.load_state_dict(other)
    assert torch.equal(said(recorded, PROMPTS[0])[0], said(plain, PROMPTS[0])[0])


def test_kernels_are_compiled_before_the_first_prompt_and_the_first_step():
    (model, _), reports = models(), []
    compiled = model.executor.compiled
    tokens = model.generate(PROMPTS[0], 3, lambda *report: reports.append(report), stop=())
    next(tokens)
    ends = [report for report in reports if report[0] == "compiling kernel" and report[1] == report[2]]
    assert len(ends) == 2 and sum(end[2] for end in ends) == len(compiled), "of a step, then of the prompt"
    before = len(compiled)
    list(tokens)
    model.reset()
    model.prefill(PROMPTS[1])
    model.step(3)
    assert len(compiled) == before, "all of these are known by now"
    model.reset()
    model.prefill(PROMPTS[2])
    assert len(compiled) > before, "of another length"
