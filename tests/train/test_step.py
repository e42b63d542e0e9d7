"""Training steps on dies against plain torch: loss, gradients, updated weights; layouts, recompute, bad batches."""

from dataclasses import replace

import pytest
import torch

from wafer_triton.errors import ConfigError, HbmError, ShapeError
from wafer_triton.train.dies import wafer
from wafer_triton.train.machine import Machine
from wafer_triton.train.model import Sizes, parameters, plain_loss
from wafer_triton.train.product import Team
from wafer_triton.train.shards import DieGroups
from wafer_triton.train.step import AdamW, Trainer

pytestmark = pytest.mark.slow

WAFER = wafer("wafer-48")
MODELS = {"llama": Sizes(), "gpt": Sizes(kind="gpt", kv_heads=4)}


def planned(shape, kind, sides, *rest):
    return DieGroups(Team(WAFER.mesh(*shape), kind, *sides), *rest)


def batch_of(die_groups, sizes, length=5):
    team = die_groups.team
    samples = team.count * die_groups.micro_batches * (team.size if die_groups.split == "sample" else 1)
    return torch.randint(0, sizes.vocab, (2, samples, length))


def trained(sizes, die_groups, steps, exact):
    """Return losses, and at the end the gradients and weights, on dies and by torch."""
    torch.manual_seed(0)
    p = parameters(sizes, 0, torch.float64 if exact else torch.float32)
    plain = {name: value.clone().requires_grad_() for name, value in p.items()}
    optimizer = torch.optim.AdamW(plain.values(), lr=AdamW.lr, weight_decay=AdamW.weight_decay)
    trainer = Trainer(Machine(WAFER, die_groups.team.mesh, exact=exact), sizes, die_groups, p)
    losses = []
    for _ in range(steps):
        tokens, targets = batch_of(die_groups, sizes)
        optimizer.zero_grad()
        loss = plain_loss(sizes, plain, tokens, targets)
        loss.backward()
        losses.append((trainer.step(tokens, targets).loss, loss.item()))
        grads = {name: value.grad.clone() for name, value in plain.items()}
        optimizer.step()
    return losses, (trainer.gradients(), grads), (trainer.parameters(), plain)


def far(own, other):
    """Return the largest difference of all tensors, over the largest value."""
    most = max(value.abs().max() for value in other.values())
    return max(((own[name] - other[name]).abs().max() / most).item() for name in other)


CASES = [
    ("llama", (1, 1), "relay", (1, 1)),
    ("gpt", (1, 1), "relay", (1, 1)),
    ("llama", (2, 2), "cycle", (2, 2)),
    ("gpt", (2, 2), "relay", (1, 2), "xy", "sequence", "none", 2),
    ("llama", (2, 4), "cycle", (1, 2), "xy"),
    ("gpt", (2, 4), "cycle", (2, 2), "w", "sample", "selective"),
    ("gpt", (2, 4), "cycle", (2, 2), "xy"),
    ("llama", (3, 3), "relay", (3, 3), "w", "sequence", "full"),
    ("gpt", (3, 3), "relay", (1, 3), "w", "sequence", "none", 2),
    ("llama", (1, 5), "interleaved", (1, 5), "w", "sequence", "selective"),
    ("gpt", (4, 1), "relay", (4, 1), "xy", "sequence", "full"),
]


@pytest.mark.parametrize(("model", "shape", "kind", "sides", "rest"), [(*c[:4], c[4:]) for c in CASES], ids=str)
def test_a_step_equals_torch_in_loss_gradients_and_weights_in_fp64(model, shape, kind, sides, rest):
    losses, grads, weights = trained(MODELS[model], planned(shape, kind, sides, *rest), 1 if rest else 2, exact=True)
    assert all(own == pytest.approx(other, rel=1e-9) for own, other in losses)
    assert far(*grads) < 1e-9
    assert far(*weights) < 1e-9


# One step of each case is exact above; of many steps, each model once, with weights moving and with X and Y moving.
@pytest.mark.parametrize(("model", "shape", "kind", "sides", "rest"), [(*c[:4], c[4:]) for c in CASES[2:4]], ids=str)
def test_twenty_steps_in_fp32_equal_torch(model, shape, kind, sides, rest):
    losses, _, (own, other) = trained(MODELS[model], planned(shape, kind, sides, *rest), 20, exact=False)
    assert all(one == pytest.approx(two, rel=1e-4) for one, two in losses)
    assert far(own, other) < 1e-4


def test_recompute_changes_no_value_and_holds_fewer_bytes():
    reports = {}
    for recompute in ("none", "selective", "full"):
        die_groups = planned((1, 2), "relay", (1, 2), "w", "sequence", recompute)
        trainer = Trainer(
            Machine(WAFER, die_groups.team.mesh), MODELS["llama"], die_groups, parameters(MODELS["llama"])
        )
        torch.manual_seed(0)
        reports[recompute] = trainer.step(*batch_of(die_groups, MODELS["llama"]))
    none, selective, full = (reports[name] for name in ("none", "selective", "full"))
    assert none.loss == selective.loss == full.loss
    assert none.hbm["activations"] > selective.hbm["activations"] > full.hbm["activations"]
    assert none.cost.flops < selective.cost.flops < full.cost.flops


def test_moments_are_cut_over_data_parallel_groups():
    die_groups = planned((2, 4), "relay", (1, 2))
    report = Trainer(
        Machine(WAFER, die_groups.team.mesh), MODELS["llama"], die_groups, parameters(MODELS["llama"])
    ).step(*batch_of(die_groups, MODELS["llama"]))
    assert report.hbm["moments"] == pytest.approx(2 * report.hbm["weights"] / 4, rel=0.01)  # of four groups


@pytest.mark.parametrize(
    ("die_groups", "tokens", "error", "said"),
    [
        (
            planned((2, 2), "cycle", (1, 2), "w", "sequence", "none", 2),
            6,
            ShapeError,
            "6 samples does not divide by 2 gro",
        ),
        (planned((2, 2), "cycle", (2, 2), "w", "sample"), 6, ShapeError, "6 samples .* do not divide by the 4 dies"),
        (planned((3, 3), "relay", (1, 3), "xy"), 3, ShapeError, "cuts heads = 4 over groups of 3 dies"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(die_groups, tokens, error, said):
    sizes = MODELS["llama"]
    with pytest.raises(error, match=said):
        Trainer(Machine(WAFER, die_groups.team.mesh), sizes, die_groups, parameters(sizes)).step(
            *torch.zeros(2, tokens, 3, dtype=torch.long)
        )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: planned((1, 2), "relay", (1, 2), "z"), "moving = 'z': choose one of w, xy"),
        (lambda: planned((1, 2), "relay", (1, 2), "w", "sequence", "none", 0), "micro_batches = 0 must be"),
        (lambda: Sizes(kind="rnn"), "choose 'llama' or 'gpt'"),
        (lambda: Sizes(heads=3), "width 16 must be a multiple of 3 heads"),
        (lambda: Sizes(kind="gpt", kv_heads=2), "as many key heads as heads"),
    ],
)
def test_wrong_plans_and_models_are_refused(make, said):
    with pytest.raises((ConfigError, ShapeError), match=said):
        make()


def test_tensors_over_a_dies_hbm_are_refused_by_name():
    small = replace(WAFER, hbm_bytes=60_000)
    die_groups = DieGroups(Team(small.mesh(1, 1), "relay", 1, 1))
    sizes = MODELS["llama"]
    with pytest.raises(HbmError, match="over its 60,000 B of HBM: .*weights"):
        Trainer(Machine(small, die_groups.team.mesh), sizes, die_groups, parameters(sizes)).step(
            *batch_of(die_groups, sizes)
        )
