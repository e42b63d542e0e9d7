"""Pictures of wafers of dies carry the bytes of their busiest link and of all links."""

from dataclasses import replace

import pytest

from wafer_triton.draw import training
from wafer_triton.draw.figure import numbers_of
from wafer_triton.train.dies import wafer
from wafer_triton.train.flows import Flow
from wafer_triton.train.mapping import dimension_ordered, route
from wafer_triton.train.planner import plan
from wafer_triton.train.workload import Workload

ON = replace(wafer("wafer-48"), name="2x4", rows=2, cols=4)


@pytest.mark.slow
def test_routes_before_and_after_mapping_show_their_busiest_links(tmp_path):
    flows = [Flow((0, col), frozenset([(0, 3)]), 1000.0) for col in range(3)]
    before, after = dimension_ordered(ON, flows), route(ON, flows)
    training.routes(before, after, tmp_path / "routes.png")
    shown = numbers_of(tmp_path / "routes.png")
    for name, routing in (("before", before), ("after", after)):
        assert shown[name] == pytest.approx([max(routing.loads.values()), sum(routing.loads.values())])
    assert shown["after"][0] < shown["before"][0]


def test_a_plan_shows_its_hottest_link(tmp_path):
    planned = plan(Workload("small", 4, 256, 8, 8, 1024, 512, False, sequence=64, batch=8), ON)
    training.links(planned, tmp_path / "plan.png")
    assert numbers_of(tmp_path / "plan.png")["bytes of a step"][0] == pytest.approx(planned.hottest[1], abs=1e-3)
