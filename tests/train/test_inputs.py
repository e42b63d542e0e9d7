"""Inputs of training that are refused, each in one line."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
import torch

from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import (
    ConfigError,
    DeviceError,
    DtypeError,
    MeshError,
    ScheduleError,
    ShapeError,
)
from wafer_triton.train.dies import wafer
from wafer_triton.train.flows import Flow, bisection_bytes, ring_flows
from wafer_triton.train.linear import Cuts, Linear, fit
from wafer_triton.train.machine import Machine
from wafer_triton.train.mapping import construct, dimension_ordered, permute, route
from wafer_triton.train.model import Sizes, check_batch, check_parameters, parameters, plain_loss
from wafer_triton.train.options import Case
from wafer_triton.train.placement import fixed, groups_of, placements
from wafer_triton.train.planner import Strategy, plan
from wafer_triton.train.product import Team, product
from wafer_triton.train.shards import DieGroups, spread
from wafer_triton.train.step import AdamW, Trainer
from wafer_triton.train.workload import Rules, Workload, workload

IDS = torch.arange(8)[None]
WORK = workload("gpt3-6.7b", batch=16)
WAFER, LARGER = wafer("wafer-32"), wafer("wafer-48")
MESH = WAFER.mesh(2, 2)
TEAM = Team(MESH, "cycle", 2, 2)
OTHER = Team(WAFER.mesh(4, 4), "cycle", 2, 2)
MACHINE = Machine(WAFER, MESH)
ONES, STEP = torch.ones(2, 2, 4, 4), product(TEAM, "w", "forward", 4, 4, 4)
PLACED = placements(WAFER, (4, 8, 1, 1))[0]
P = parameters(Sizes())


def flow(size=1.0, target=(1, 1)):
    return Flow((0, 0), frozenset([target]), size)


def trainer(given=P, optimizer=None, team=TEAM):
    return Trainer(MACHINE, Sizes(), DieGroups(team), given, optimizer)


@pytest.mark.parametrize(
    "use, error, message",
    [
        (lambda: check_batch(Sizes(), IDS + 92, IDS), ShapeError, "tokens run from 92 to 99; give ids from 0 to 18"),
        (lambda: check_batch(Sizes(), IDS, IDS - 1), ShapeError, "targets run from -1 to 6; give ids from 0 to 18"),
        (lambda: check_batch(Sizes(), IDS[0], IDS), ShapeError, r"tokens must be a tensor \[samples, length\] of"),
        (lambda: check_batch(Sizes(), IDS.float(), IDS), ShapeError, "tokens must be a tensor .* of whole numbers"),
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
        (lambda: AdamW(beta1=1.0), ConfigError, "AdamW: beta1 = 1.0 must be a number of at least 0 and below 1"),
        (lambda: AdamW(lr=float("nan")), ConfigError, "AdamW: lr = nan must be a number of at least 0, and finite"),
        (lambda: workload("gpt3-6.7b", batch=0), ShapeError, "batch = 0 must be a whole number of at least 1"),
    ],
)
def test_a_wrong_input_is_one_line(use, error, message):
    with pytest.raises(error, match=message):
        use()


def test_recompute_takes_a_tuple_of_its_kinds_alone():
    for given in (("some",), (["full"],), ()):
        with pytest.raises(ConfigError, match="recompute = .* give a tuple of some of "):
            plan(WORK, WAFER, recompute=given)


@pytest.mark.parametrize(
    "use, error, message",
    [
        (lambda: route(WAFER, [flow(-1.0)]), ShapeError, r"Flow from \(0, 0\): size = -1.0 must be a positive number"),
        (lambda: route(WAFER, [flow(0)]), ShapeError, "size = 0 must be a positive number"),
        (lambda: Flow((0, 0), [(1, 1)], 1.0), MeshError, "Flow: targets is of type list; give a frozenset"),
        (lambda: Flow((0, 0, 0), frozenset(), 1.0), MeshError, r"\(0, 0, 0\) is no die; give a pair of whole numbers"),
        (lambda: route(WAFER, [1]), MeshError, "flow 0 is of type int; give a Flow"),
        (lambda: dimension_ordered(WAFER, [flow(target=(9, 9))]), MeshError, r"wafer-32 has no die \(9, 9\)"),
        (lambda: construct(WAFER, [flow(target=(0, -1))]), MeshError, r"wafer-32 has no die \(0, -1\)"),
        (lambda: permute(WAFER, [[]]), MeshError, r"\[\] is no ring; give a list of one die at least"),
        (lambda: ring_flows([5], 1.0), MeshError, "5 is no ring; give a list"),
        (lambda: bisection_bytes(2, 2, -1), ShapeError, "bisection_bytes: size = -1 must be a positive number"),
        (lambda: placements(WAFER, (5, 7)), MeshError, r"sizes = \(5, 7\): give 4 of them, of data, tensor, context"),
        (lambda: fixed(WAFER, (4, 8, 1, 1), (0, 1)), MeshError, "give the numbers 0 to 3 once each"),
        (lambda: groups_of(WAFER, PLACED, 5), MeshError, "axis 5: choose from 0 to 3, of data, tensor"),
        (lambda: groups_of(LARGER, PLACED, 0), MeshError, "is no rectangular one of the 6 x 8 dies of wafer-48; give"),
        (
            lambda: Machine(WAFER, Mesh(2, 2)),
            MeshError,
            r"mesh 2x2 is of device wse2, not .*; take .* wafer.mesh\(2, 2",
        ),
        (lambda: MACHINE.run(STEP, x=ONES), ShapeError, "tensors for x; give one for each of its inputs, x, w"),
        (lambda: MACHINE.run(STEP, x=ONES, w=None), ShapeError, r"w is None; give a tensor \[2, 2, 4, 4\]"),
        (lambda: MACHINE.zeros(-1), ShapeError, "zeros: side 0 of a tile = -1 must be a whole number"),
        (lambda: MACHINE.local("add", {}, {"a": [1]}), ShapeError, "add: a is of type list; give a Tensor"),
        (lambda: fit(TEAM, "q", 4, 4, 4), ScheduleError, "moving = 'q': choose one of w, x, y"),
        (lambda: Cuts(0), ShapeError, "m = 0 must be a whole number of at least 1"),
        (lambda: Linear(MACHINE, OTHER, "w", 4, 4, 4), MeshError, "mesh 4x4 of wafer-32 is not the machine's 2x2 of"),
        (
            lambda: Linear(MACHINE, TEAM, "w", 4, 4, 4).forward(ONES, ONES[..., :3]),
            ShapeError,
            r"Linear: w is \[2, 2, 4, 3\]; with 'w' moving give a tensor \[2, 2, 4, 4\]",
        ),
        (lambda: spread(TEAM, ONES[0]), ShapeError, r"blocks are \[2, 4, 4\]; give \[4, ...\], one for each position"),
        (lambda: trainer(None), ShapeError, "parameters is of type NoneType; give a dict"),
        (
            lambda: trainer(P | {"norm": [1.0]}),
            DtypeError,
            "parameter 'norm' is a list; give a tensor of torch.float32",
        ),
        (lambda: trainer(P | {"norm": P["norm"].int()}), DtypeError, "parameter 'norm' is torch.int32; give a tensor"),
        (
            lambda: trainer(P | {"norm": P["norm"] * inf}),
            ShapeError,
            "parameter 'norm' holds NaN, infinity or no values",
        ),
        (lambda: trainer(team=OTHER), MeshError, "build groups and machine on one mesh"),
        (lambda: trainer().gradients(), ScheduleError, "no gradients before the first step; take a step"),
        (lambda: plain_loss(Sizes(), {}, IDS, IDS), ShapeError, "is missing; give Sizes"),
        (lambda: parameters(Sizes(), seed=-1), ShapeError, "seed = -1 must be a whole number from 0 to 2"),
        (lambda: parameters(Sizes(), dtype="fp32"), DtypeError, "dtype = 'fp32': choose one of torch.float32, torch.f"),
        (lambda: parameters(Sizes(), dtype=torch.int32), DtypeError, "dtype = torch.int32: choose one of"),
        (lambda: Sizes(eps=-1.0), ShapeError, "Sizes: eps = -1.0 must be a positive number, from 1e-30 to 1e30"),
        (lambda: Sizes(theta=0.0), ShapeError, "Sizes: theta = 0.0 must be a positive number"),
        (lambda: Sizes(vocab=10**9), ShapeError, "parameters = .* is more than the 1,000,000,000 that"),
        (lambda: AdamW(lr=True), ConfigError, "AdamW: lr = True must be a number of at least 0"),
        (
            lambda: plan(WORK, WAFER, Strategy("own", lambda split: True, lambda on, split: None)),
            ConfigError,
            "own: placer returned None for .*; return a tuple of placements",
        ),
        (lambda: Rules(weight=-2), ShapeError, "weight = -2 must be a whole number of at least 1"),
        (lambda: Case(WAFER, WORK, 0), ShapeError, "micro_batches = 0 must be a whole number of at least 1"),
        (lambda: Workload(3, 2, 16, 4, 2, 24, 19, True), ConfigError, "Workload: name is of type int; give a str"),
        (lambda: wafer([]), DeviceError, r"unknown wafer \[\] \(presets: wafer-48, wafer-32\)"),
        (lambda: WAFER.mesh(0), MeshError, "mesh 0 x 8: rows must be a whole number of at least 1"),
        (lambda: replace(WAFER, failed=None), DeviceError, "failed is of type NoneType; give a frozenset"),
        (lambda: replace(WAFER, failed=frozenset([1])), DeviceError, "failed link 1 is not between neighbouring dies"),
        (lambda: replace(WAFER, rows=10**6), DeviceError, "1000000 x 8 dies are more than the 10,000 that are taken"),
    ],
)
def test_an_argument_of_another_kind_or_range_is_one_line(use, error, message):
    with pytest.raises(error, match=message):
        use()


def test_numbers_of_numpy_are_taken():
    assert Sizes(width=np.int64(16)) == Sizes()
    assert AdamW(lr=np.float32(0.5)) == AdamW(lr=0.5) and flow(np.float32(2)) == flow(2)
    assert replace(WAFER, flops=np.float32(2.0**50)).flops == 2.0**50


def test_a_plan_that_does_not_fit_is_never_the_best():
    large, small = plan(WORK, WAFER), plan(WORK, replace(WAFER, hbm_bytes=10**6))
    assert small.why and min((small, large), key=lambda each: each.seconds) is large
    assert (small.seconds, small.joules, small.watts, small.tokens_per_second) == (inf, inf, inf, 0)
    assert f"needs {small.bytes:,} B on every die" in small.why
