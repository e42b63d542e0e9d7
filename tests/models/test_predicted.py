"""The predicted cycles of a generation equal the price of the schedules that ran, one by one."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from tiny import checkpoint
from wafer_triton import price
from wafer_triton.cli.main import main
from wafer_triton.cost.price import Prediction
from wafer_triton.device import PRESETS, Device
from wafer_triton.device.mesh import as_mesh
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.program import Program
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.models import demo
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.random import RandomWeights
from wafer_triton.place import hand_over, moves
from wafer_triton.schedule.schedule import Schedule

LLAMA = {
    "model_type": "llama", "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 256,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3 = LLAMA | {"model_type": "qwen3", "tie_word_embeddings": True, "vocab_size": 99}
CONFIGS = {"llama": LLAMA, "qwen3": QWEN3}
SMALL = replace(PRESETS["wse2"], name="small", sram_bytes=13 * 1024)
PROMPTS = [list(range(7, 7 + length)) for length in (31, 9)]
NEW_TOKENS = 7


class Runs:
    """The schedules that a model's own executor ran in prefill and in decode, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.schedules: dict[str, list[Schedule]] = {"prefill": [], "decode": []}
        self.steps, self.tokens = 0, {"prefill": 0, "decode": 0}
        running: list[tuple[str, Executor]] = []
        run, advance = Program.run, WaferForCausalLM.advance
        prompt, logits = WaferForCausalLM.prompt, WaferForCausalLM.logits

        def watched_run(program):
            # where tiles come from on a skewed mesh is found out on the host, by another executor
            if running and running[-1][1] is program.executor:
                self.schedules[running[-1][0]].append(program.schedule)
            run(program)

        def during(phase, model, tokens, method, *args, **kwargs):
            self.tokens[phase] += tokens
            running.append((phase, model.executor))
            try:
                return method(model, *args, **kwargs)
            finally:
                running.pop()

        def watched_prompt(model, ids, *args):
            return during("prefill", model, len(ids), prompt, ids, *args)

        def watched_logits(model, x):
            return during("prefill", model, 0, logits, x)

        def watched_advance(model, tokens):
            self.steps += 1
            return during("decode", model, sum(token is not None for token in tokens), advance, tokens)

        monkeypatch.setattr(Program, "run", watched_run)
        monkeypatch.setattr(WaferForCausalLM, "prompt", watched_prompt)
        monkeypatch.setattr(WaferForCausalLM, "logits", watched_logits)
        monkeypatch.setattr(WaferForCausalLM, "advance", watched_advance)

    def forget(self) -> None:
        """Begin anew."""
        self.schedules, self.tokens, self.steps = {"prefill": [], "decode": []}, {"prefill": 0, "decode": 0}, 0

    def cycles(self, phase: str) -> float:
        """Return the price of a phase's schedules, one by one."""
        return sum(price(schedule).cycles for schedule in self.schedules[phase])

    def count(self, phase: str, name: str) -> int:
        """Return how many schedules of a name ran."""
        return sum(schedule.name == name for schedule in self.schedules[phase])


@pytest.fixture
def runs(monkeypatch) -> Runs:
    return Runs(monkeypatch)


def handed_on(model: WaferForCausalLM, runs: Runs) -> float:
    """Return the cycles of the activation's moves from region to region, in all steps."""
    # a tied model has its embedding beside the head
    way = [model.regions[-1]] * model.config.tie_word_embeddings + model.regions
    steps = [
        hand_over.hand_over(region.mesh, following.mesh, model.config.hidden_size, model.batch, model.block.dtype)
        for region, following in pairwise(way)
    ]
    return runs.steps * sum(price(schedule).cycles for schedule in steps)


def re_placed(model: WaferForCausalLM, prompts: list[list[int]], changes: int) -> float:
    """Return the cycles of `changes` re-placements of weights, and of each prompt's keys and values."""
    placement, decode, prefill = model.placement, model.placement.decode, model.placement.prefill
    plain = [replace(block, entries=1, groups=None, batch=1, head_tree=None) for block in (decode, prefill)]
    weights: list[moves.ScheduleRuns] = []
    for region in placement.prefill_regions:  # whose blocks go together
        for kind in model.config.layers_of:
            count = sum(name.endswith(kind) for name in region.blocks)
            steps = moves.weight_moves(*plain, kind, together=count).values() if count else ()
            weights += [step.schedule_runs for each in steps for step in each]
    caches: list[moves.ScheduleRuns] = []
    for prompt in prompts:
        rows = moves.prompt_rows(prefill.mesh.shape[0], len(prompt), placement.chunk(len(prompt)))
        caches += moves.cache_schedules(placement, rows, decode.cache(len(prompt)).row_of(len(prompt)))
    once, held = (sum(price(step).cycles * times for step, times in steps) for steps in (weights, caches))
    return changes * once + held


def close(cycles: float) -> object:
    return pytest.approx(cycles, rel=1e-9, abs=0)


def check_phase(prediction: Prediction, cycles: float, tokens: int, device: Device) -> None:
    seconds = cycles / device.clock_hz
    assert prediction.cycles == close(cycles)
    assert prediction.compute_cycles + prediction.communication_cycles == close(cycles)
    assert prediction.seconds == close(seconds)
    assert prediction.tokens_per_second == close(tokens / seconds)
    assert prediction.joules_per_token == close(device.power_watts * seconds / tokens)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "mesh", "prefill_mesh", "head_groups", "batch"),
    [("qwen3", "3x2", None, 1, 2), ("qwen3", "2", "2x3", 2, 2), ("llama", "2", None, 1, 1),
     ("llama", "2x3", "2", 3, 1)],
)  # fmt: skip
def test_a_model_predicts_the_schedules_it_ran(family, mesh, prefill_mesh, head_groups, batch, runs, monkeypatch):
    config, prompts = DecoderConfig.from_dict(CONFIGS[family]), PROMPTS[:batch]
    model = WaferForCausalLM.from_weights(
        config, RandomWeights(config), mesh=as_mesh(mesh, SMALL), prefill_mesh=prefill_mesh, batch=batch,
        max_length=44, max_prompt=40, executor=TorchExecutor(), head_groups=head_groups,
    )  # fmt: skip
    list(model.generate(PROMPTS[:1], 3))  # from here on weights lie for decode
    runs.forget()
    list(model.generate(prompts, NEW_TOKENS))
    predicted, layers = model.predicted(), config.num_hidden_layers

    assert len(model.regions) > 1 and handed_on(model, runs) > 0
    assert runs.count("prefill", "prefill attention") > layers * batch, "prompts go in chunks"
    appends = {schedule for schedule in runs.schedules["decode"] if schedule.name == "kv append"}
    assert any(round_.exchanges for schedule in appends for round_ in schedule.rounds), "entries shift"
    assert runs.steps == NEW_TOKENS - 1 and runs.count("decode", "decode feed-forward") == layers * runs.steps

    check_phase(predicted["prefill"], runs.cycles("prefill"), runs.tokens["prefill"], SMALL)
    decode = runs.cycles("decode") + handed_on(model, runs)
    check_phase(predicted["decode"], decode, runs.tokens["decode"], SMALL)
    if prefill_mesh is None:  # the phases share their regions, so re-placement stays inside of each
        assert predicted["replacement"].cycles == close(re_placed(model, prompts, 2))
    assert set(predicted) == {"prefill", "decode", "replacement"}


@pytest.mark.slow
def test_the_demo_prints_the_speeds_of_both_phases():
    model = WaferForCausalLM.from_config(LLAMA, mesh=3, max_length=20)
    model.prefill(PROMPTS[1])
    model.step(3)
    prefill, decode = (f"{model.predicted()[phase].tokens_per_second:,.4g}" for phase in ("prefill", "decode"))
    line = f"The same rounds, predicted on the wafer: prefill {prefill} tokens/s, decode {decode} tokens/s."
    assert demo.predicted_line(model) == line


@pytest.fixture
def own_threads():
    """Restore the number of torch's threads, which the command line sets."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("own_threads")
def test_generate_prints_the_price_of_its_schedules(tmp_path, runs, capsys):
    command = [
        "generate",
        "--model",
        str(checkpoint(tmp_path / "tiny", base=LLAMA)),
        "--prompt",
        "a text of 20 letters",
        "--mesh",
        "3",
    ]
    assert main([*command, "--max-new-tokens", "9", "--exchange", "explicit", "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out.splitlines()[-1])["predicted"]
    assert (runs.tokens["prefill"], runs.tokens["decode"]) == (20, 8)
    for phase in ("prefill", "decode"):
        check_phase(Prediction(**predicted[phase]), runs.cycles(phase), runs.tokens[phase], PRESETS["wse2"])
