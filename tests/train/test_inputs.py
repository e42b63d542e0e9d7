"""Inputs of training that are refused, each in one line."""

import pytest
import torch

from wafer_triton.errors import ConfigError, ShapeError
from wafer_triton.train.model import Sizes, check_batch, check_parameters, parameters
from wafer_triton.train.planner import plan
from wafer_triton.train.step import AdamW
from wafer_triton.train.workload import workload

IDS = torch.arange(8)[None]
WORK = workload("gpt3-6.7b", batch=16)


@pytest.mark.parametrize(
    "use, error, message",
    [
        (lambda: check_batch(Sizes(), IDS + 92, IDS), ShapeError, "tokens run from 92 to 99; give ids from 0 to 18"),
        (lambda: check_batch(Sizes(), IDS, IDS - 1), ShapeError, "targets run from -1 to 6; give ids from 0 to 18"),
        (lambda: check_batch(Sizes(), IDS[0], IDS), ShapeError, r"tokens must be a tensor \[samples, length\] of"),
        (lambda: check_batch(Sizes(), IDS.float(), IDS), ShapeError, "tokens must be a tensor .* of whole numbers"),
        (lambda: check_batch(Sizes(), [[1]], IDS), ShapeError, "tokens must be a tensor .* of whole numbers"),
        (lambda: check_batch(Sizes(), IDS, IDS[:, 1:]), ShapeError, r"targets are \[1, 7\], and tokens \[1, 8\]; give"),
        (
            lambda: check_batch(Sizes("gpt", kv_heads=4, positions=4), IDS, IDS),
            ShapeError,
            "8 tokens a sample: a GPT of 4 positions takes no more",
        ),
        (
            lambda: check_parameters(Sizes(), parameters(Sizes(vocab=40))),
            ShapeError,
            r"parameter 'embed' is \[40, 16\], but .* has \[19, 16\]",
        ),
        (lambda: check_parameters(Sizes(), {}), ShapeError, "is missing; give Sizes"),
        (lambda: check_parameters(Sizes(layers=1), parameters(Sizes())), ShapeError, "'1.* is not of these sizes"),
        (lambda: Sizes(width=16.0), ConfigError, "width = 16.0 must be a whole number of at least 1"),
        (lambda: AdamW(beta1=1.0), ConfigError, "AdamW: beta1 = 1.0 must be a number of at least 0 and below 1"),
        (lambda: AdamW(rate=float("nan")), ConfigError, "AdamW: rate = nan must be a number of at least 0, and finite"),
        (lambda: plan(WORK, "wafer-32"), ConfigError, "plan: the wafer is of type str; give a Wafer"),
        (lambda: workload("gpt3-6.7b", batch=0), ShapeError, "batch = 0 must be a whole number of at least 1"),
    ],
)
def test_a_wrong_input_is_one_line(use, error, message):
    with pytest.raises(error, match=message):
        use()


def test_recompute_is_some_of_its_kinds():
    from wafer_triton.train.dies import wafer

    for given in (("some",), "full", ()):
        with pytest.raises(ConfigError, match="recompute = .* give a tuple of some of "):
            plan(WORK, wafer("wafer-32"), recompute=given)
