"""A model whose linear layers are streamed over dies trains as torch's does."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from wafer_triton.errors import MeshError, ScheduleError, ShapeError
from wafer_triton.train.cost import die_cost
from wafer_triton.train.dies import wafer
from wafer_triton.train.layers import StreamedLinear, streamed
from wafer_triton.train.options import Case, Pairs, ParallelSizes
from wafer_triton.train.placement import placements
from wafer_triton.train.product import PASSES, Team, product
from wafer_triton.train.workload import Rules, workload

WAFER = wafer("wafer-48")
IDS = torch.arange(26).view(2, 13).mul(31) % 97
CONFIG = LlamaConfig(
    hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
    vocab_size=97,
)  # fmt: skip


def team(kind: str, *sides: int) -> Team:
    return Team(WAFER.mesh(*sides), kind, *sides)


def train(model: nn.Module, steps: int = 20) -> list[float]:
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(IDS, labels=IDS).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("kind", "sides", "moving"),
    [("cycle", (2, 2), "w"), ("cycle", (2, 4), "x"), ("relay", (3, 3), "y"), ("interleaved", (1, 7), "w")],
)
def test_a_llama_trains_as_torchs_does(kind, sides, moving):
    torch.manual_seed(0)
    plain = LlamaForCausalLM(CONFIG)
    model, streams = streamed(copy.deepcopy(plain), team(kind, *sides), moving)
    assert sum(isinstance(layer, StreamedLinear) for layer in model.modules()) == 15
    wanted, got = train(plain), train(model)
    assert wanted[-1] < wanted[0] - 0.5 and got == pytest.approx(wanted, rel=1e-4)
    assert sum(streams.ran.values()) == 20 * 15 * len(PASSES[moving])


@pytest.mark.parametrize("moving", ["w", "xy"])
@pytest.mark.parametrize(
    ("kind", "sides"), [("cycle", (2, 2)), ("cycle", (2, 4)), ("relay", (3, 3)), ("relay", (1, 7))]
)
def test_products_that_ran_cost_what_a_plan_says(kind, sides, moving):
    """Check seconds, joules and bytes of a layer's products on one group, whose tiles and sums are in fp32."""
    on, dies = replace(WAFER, name="mine", rows=sides[0], cols=sides[1]), sides[0] * sides[1]
    split, width = ParallelSizes(stream=dies, moving=moving), 8 * dies
    placed = next(one for one in placements(on, split.sizes) if one.steps[3].kind == kind)
    work = replace(workload("gpt3-6.7b", 2 * dies, 1), width=width, heads=1, kv_heads=1, hidden=width)
    op = next(op for op in work.operators if op.name == "inner")
    case = Case(on, work, rules=Rules(element=4, sums=4))
    model, products = streamed(
        nn.Sequential(nn.Linear(op.k, op.n)), Team(on.mesh(), kind, *sides), moving.replace("xy", "x")
    )
    model(torch.randn(case.tokens, width, requires_grad=True)).sum().backward()
    ran = [die_cost(schedule, on) for schedule, times in products.ran.items() for _ in range(times)]
    compute, exposed, late, hbm, *sent = sum(Pairs(on, [(split, placed)]).passes([case], op)[0])[:, 0]
    planned = compute + exposed + late, sum(sent) * placed.steps[3].links * on.dies, hbm * on.dies
    sums = [sum(getattr(one, name) for one in ran) for name in ("seconds", "link_bytes", "hbm_bytes", "joules")]
    assert planned == pytest.approx(sums[:3], rel=1e-9)
    assert on.joules(compute * on.flops * on.dies, *planned[1:]) == pytest.approx(sums[3], rel=1e-9)


def test_every_schedule_that_ran_is_counted_once_a_pass():
    model, streams = streamed(nn.Sequential(nn.Linear(10, 17)), team("cycle", 2, 2), "w")
    model(torch.randn(13, 10)).sum().backward()  # x asks for no gradient, but W's pass is one of its own
    sizes = (4, 10, 5)
    assert streams.ran == {product(streams.team, "w", which, *sizes): 1 for which in ("forward", "dw")}


def test_what_does_not_stream_is_refused():
    with pytest.raises(ShapeError, match="ReLU holds no torch.nn.Linear to stream"):
        streamed(nn.ReLU(), team("cycle", 2, 2), "w")
    with pytest.raises(MeshError, match="2 groups of 2 dies; give a team of one group"):
        streamed(nn.Sequential(nn.Linear(4, 4)), Team(WAFER.mesh(2, 2), "relay", 1, 2), "w")
    with pytest.raises(ScheduleError, match="moving 'z': choose one of w, x, y"):
        streamed(nn.Sequential(nn.Linear(4, 4)), team("cycle", 2, 2), "z")


@pytest.mark.parametrize("moving", PASSES)
@pytest.mark.parametrize(("width", "dtype"), [(3, torch.float32), (5, torch.float32), (4, torch.float64)])
def test_an_input_of_another_width_or_dtype_is_refused(moving, width, dtype):
    layer = streamed(nn.Sequential(nn.Linear(4, 4)), team("cycle", 2, 2), moving)[0]
    with pytest.raises(
        ShapeError, match=rf"x \[2, {width}\] of {dtype} and .*; give x \[..., 4\], and both of torch.float32"
    ):
        layer(torch.ones(2, width, dtype=dtype))
