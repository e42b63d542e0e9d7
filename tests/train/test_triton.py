"""A training step with streams as Triton kernels, under the interpreter or, with TRITON_INTERPRET=0, on a GPU."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.train.dies import wafer
from wafer_triton.train.machine import Machine
from wafer_triton.train.model import Sizes, parameters
from wafer_triton.train.product import Team
from wafer_triton.train.shards import DieGroups
from wafer_triton.train.step import Trainer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("moving", ["w", "xy"])
def test_a_step_on_triton_has_the_values_of_one_on_torch(moving):
    on, sizes = wafer("wafer-48"), Sizes(layers=1, width=8, heads=2, hidden=6, vocab=5)
    plan = DieGroups(Team(on.mesh(1, 2), "relay", 1, 2), moving)
    torch.manual_seed(0)
    batch = torch.randint(0, 5, (2, 1, 3))
    found = []
    for executor in (None, TritonExecutor()):
        trainer = Trainer(Machine(on, plan.team.mesh, executor), sizes, plan, parameters(sizes))
        found.append((trainer.step(*batch).loss, trainer.gradients()))
    (loss, grads), (triton_loss, triton_grads) = found
    assert triton_loss == pytest.approx(loss, rel=1e-5)
    for name, grad in grads.items():
        torch.testing.assert_close(triton_grads[name], grad, rtol=1e-4, atol=1e-5)
