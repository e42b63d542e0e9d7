"""What an option sends, holds and burns equals sums by hand; on these 2 x 2 dies products and HBM take no time."""

from dataclasses import replace

import numpy as np
import pytest

from wafer_triton.train.dies import wafer
from wafer_triton.train.options import Case, Pairs, ParallelSizes, Traffic, option
from wafer_triton.train.placement import placements
from wafer_triton.train.planner import BETWEEN_WAFERS, plan
from wafer_triton.train.solve import Label, Mix, layers
from wafer_triton.train.workload import Rules, Workload, workload

DEVICE = replace(wafer("wafer-48"), name="2x2", rows=2, cols=2, flops=1e30, hbm_bytes_per_second=1e30)
WORK = Workload("small", 4, 256, 8, 4, 1024, 512, True, sequence=64, batch=8)
QKV, ATTENTION, *_, OUT = WORK.operators
CONTEXT, DATA, STREAM = ParallelSizes(context=4), ParallelSizes(data=4, sharded=3), ParallelSizes(stream=4, moving="w")


def taken(case, op, split, recompute="none"):
    """Return an option on the first placement of a tuple."""
    return option(case, op, split, placements(case.wafer, split.sizes)[0], recompute)


def ring(size):
    """Return seconds of the three transfers of a cycle of 2 x 2 dies with blocks of `size` bytes."""
    return 3 * (size / 4e12 + 200e-9)


@pytest.mark.parametrize("micro", [1, 4])
def test_sharded_weights_are_gathered_twice_and_their_gradients_summed_once(micro):
    own = taken(Case(DEVICE, WORK, micro), OUT, DATA)
    block = 1024 * 256 / 4 * 2
    assert own.exposed == pytest.approx(micro * 3 * ring(block), rel=1e-6)
    assert own.sent[0] == micro * 2 * 3 * block and own.sent[4] == micro * 3 * block


@pytest.mark.parametrize(("recompute", "gathers"), [("none", 2), ("selective", 3), ("full", 3)])
def test_keys_and_values_go_round_in_each_pass_and_their_gradients_once(recompute, gathers):
    own = taken(Case(DEVICE, WORK), ATTENTION, CONTEXT, recompute)
    block = 2 * 128 * (8 * 16) * 2  # keys and values of 16 tokens of 8 samples, 4 heads of 32
    assert own.exposed == pytest.approx((gathers + 1) * ring(block), rel=1e-6)
    assert own.sent[2] == gathers * 3 * block and own.sent[6] == 3 * block


def test_joules_are_those_of_products_of_links_and_of_hbm():
    device = wafer("wafer-48")
    assert device.joules(2e12, 0, 0) == 1
    assert device.joules(0, 1e12, 0) == pytest.approx(8 * 5)  # pJ a bit
    assert device.joules(0, 0, 1e12) == pytest.approx(8 * 6)
    own = taken(Case(DEVICE, WORK), OUT, DATA)
    links = own.joules - taken(Case(replace(DEVICE, link_joules_per_byte=0), WORK), OUT, DATA).joules
    assert links == pytest.approx(4 * 9 * (1024 * 256 / 4 * 2) * 40e-12, rel=1e-6)  # dies, transfers, bytes


@pytest.mark.parametrize("micro", [1, 4])
def test_a_reshard_goes_forward_and_backward_in_every_micro_batch(micro):
    reshard = Case(DEVICE, WORK, micro).reshard
    pair = 8 / micro * 64 * 256 * 2 / 16
    assert reshard.seconds == pytest.approx(2 * micro * (2 * pair / 4e12 + 2 * 200e-9))
    assert reshard.loads.sum() == pytest.approx(2 * micro * 16 * pair)  # 8 pairs of neighbours, 4 at two links
    assert reshard.joules == pytest.approx(reshard.loads.sum() * 40e-12)


def test_a_change_of_layout_between_two_kinds_of_layers_is_paid():
    own, other = taken(Case(DEVICE, WORK), OUT, DATA), taken(Case(DEVICE, WORK), OUT, STREAM)
    fast, small = Label((own,), 1.0, 10.0), Label((other,), 2.0, 1.0)
    assert Mix((fast, small), (2, 2)).reshards and not Mix((fast,), (4,)).reshards
    assert layers([fast, small], 4, 22.0, 1.5).counts == (2, 2)
    assert layers([fast, small], 4, 22.0, 2.5).counts == (4,)  # of `small`


def test_a_plan_of_two_kinds_of_layers_pays_one_change_forward_and_backward():
    best = plan(WORK, replace(DEVICE, rows=1, hbm_bytes=39_500_000))
    assert best.mix.counts == (1, 3) and best.mix.reshards and best.case.micro_batches == 1
    pair = 8 * 64 * 256 * 2 / 2**2
    change = 2 * (pair / 4e12 + 200e-9)
    operators = [(own, count) for kind, count in best.mix.parts for own in kind.chosen]
    assert best.seconds == pytest.approx(sum(own.seconds * count for own, count in operators) + change)
    sent = sum(own.loads.sum() * count for own, count in operators) + 2 * 2 * pair
    assert best.link_bytes == pytest.approx(sent)
    flops = 6 * 512 * 256 * 64 * 8  # of the head
    joules = sum(own.joules * count for own, count in operators) + 2 * 2 * pair * 40e-12
    assert best.joules == pytest.approx(joules + flops / 2e12)


def test_working_memory_is_what_a_layer_recomputes_and_gathers():
    rows, case = 8 * 64 // 4, Case(DEVICE, WORK)
    scores, kept = 2 * 8 * 64 * rows, 2 * (256 + 2 * 128) * rows  # a Llama's: no dropout
    for recompute, work, held in (("none", 0, kept + scores), ("selective", scores, kept), ("full", scores + kept, 0)):
        own = taken(case, ATTENTION, CONTEXT, recompute)
        assert (own.work_bytes, own.kept_bytes) == (work, held)
    assert taken(case, OUT, DATA).work_bytes == 1024 * 256 * (2 + 2)  # weights and gradients
    assert [sum(op.scores for op in workload(name).operators) for name in ("llama2-7b", "gpt3-6.7b")] == [
        2 * 32 * 4096, 5 * 32 * 2048
    ]  # fmt: skip


@pytest.mark.parametrize(("micro", "in_flight"), [(1, 1), (2, 2), (4, 3), (8, 3)])
def test_a_pipeline_keeps_the_activations_of_its_micro_batches_in_flight(micro, in_flight):
    alone, piped = (taken(Case(DEVICE, WORK, micro, wafers=wafers), QKV, CONTEXT) for wafers in (1, 3))
    assert piped.kept_bytes == in_flight * alone.kept_bytes > 0


def test_bubbles_are_a_micro_batch_of_each_other_wafer_and_what_is_handed_on():
    best = plan(WORK, replace(DEVICE, flops=1800e12, hbm_bytes_per_second=1e12), wafers=4)
    busy = sum(best.parts.values()) - best.parts["bubbles"]
    handed = 8 / best.case.micro_batches * 64 * 256 * 2 / BETWEEN_WAFERS
    assert best.parts["bubbles"] == pytest.approx(3 * (busy / best.case.micro_batches + 2 * handed))
    flops = 6 * 512 * 256 * 64 * 8  # of the head
    layers_joules = 4 * sum(own.joules for own in best.operators.values())
    assert best.joules == pytest.approx(layers_joules + flops / 2e12)


def test_rings_move_sums_in_bytes_of_sums_and_links_take_the_time_of_all_that_crosses_them():
    device = replace(wafer("wafer-32"), rows=2, cols=4)
    split = ParallelSizes(tensor=8)
    placed = placements(device, split.sizes)[0]
    pairs, block = Pairs(device, [(split, placed)]), np.array([1e9])
    some, wide = Traffic(pairs, Rules(element=2, sums=4)), Traffic(pairs, Rules(element=4, sums=4))
    assert some.rings(1, block, 0, 1) == wide.rings(1, block, 0, 1) > 0 and (some.sent == wide.sent).all()
    assert some.rings(1, block, 1, 0) < wide.rings(1, block, 1, 0)
    busiest = max((some.sent[:, 0] @ placed.loads).tolist()) / device.link_bytes_per_second
    assert some.crowded(np.array([0.25 * busiest])) == pytest.approx(0.75 * busiest)
