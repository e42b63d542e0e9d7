"""A model whose linear layers are streamed over dies trains as torch's does."""

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from wafer_triton.errors import MeshError, ScheduleError, ShapeError
from wafer_triton.train.dies import wafer
from wafer_triton.train.layers import StreamedLinear, streamed
from wafer_triton.train.product import PASSES, Team, product

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
