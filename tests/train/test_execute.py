"""Plans of the planner run, with the values of plain torch."""

from dataclasses import replace

import pytest
import torch

from wafer_triton.errors import ConfigError
from wafer_triton.train.dies import wafer
from wafer_triton.train.execute import executable
from wafer_triton.train.machine import Machine
from wafer_triton.train.model import Sizes, parameters, plain_loss
from wafer_triton.train.planner import PLANNED, Strategy, plan
from wafer_triton.train.step import Trainer
from wafer_triton.train.workload import Workload

SIZES = Sizes(layers=1)
WORK = Workload("tiny", 1, SIZES.width, SIZES.heads, SIZES.kv_heads, SIZES.hidden, SIZES.vocab, True, 6, 4)
ON = replace(wafer("wafer-48"), name="2x2", rows=2, cols=2)


@pytest.mark.parametrize(("stream", "moving"), [(1, ""), (2, "w"), (2, "xy"), (4, "w")])
def test_a_planned_tuple_trains_as_torch_does(stream, moving):
    def allowed(split):
        return (split.stream, split.moving, split.data) == (stream, moving, 4 // stream)

    planned = plan(WORK, ON, Strategy("one tuple", allowed, PLANNED.placer), recompute=("selective",))
    found = executable(planned)
    assert found.team.size == stream and found.micro_batches == planned.micro_batches
    given = parameters(SIZES, dtype=torch.float64)
    plain = {name: value.clone().requires_grad_() for name, value in given.items()}
    tokens, targets = torch.randint(
        0, SIZES.vocab, (2, WORK.batch, WORK.sequence), generator=torch.Generator().manual_seed(0)
    )
    loss = plain_loss(SIZES, plain, tokens, targets)
    loss.backward()
    trainer = Trainer(Machine(ON, found.team.mesh, exact=True), SIZES, found, given)
    assert trainer.step(tokens, targets).loss == pytest.approx(loss.item(), rel=1e-9)
    for name, grad in trainer.gradients().items():
        torch.testing.assert_close(grad, plain[name].grad, rtol=1e-9, atol=1e-12)


def test_a_plan_that_a_trainer_cannot_run_is_refused():
    tensor = Strategy("tensor", lambda split: split.tensor == 4, PLANNED.placer)
    with pytest.raises(ConfigError, match="a trainer has data parallel groups and streams alone"):
        executable(plan(WORK, ON, tensor))


def test_a_plan_over_two_wafers_is_refused():
    two = plan(replace(WORK, layers=2), ON, PLANNED, wafers=2)
    message = "planned: operators or layers differ, or wafers form a pipeline; no trainer runs that"
    with pytest.raises(ConfigError, match=f"^{message}$"):
        executable(two)
