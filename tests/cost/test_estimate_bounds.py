"""Estimates of random products: within their bounds, and never cheaper with more work."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wafer_triton import estimate
from wafer_triton.device import Device, device

pytestmark = pytest.mark.slow

sides = st.integers(1, 12)
tile = st.integers(1, 40)
devices = st.sampled_from([device("wse2"), device("wse3"), replace(device("wse2"), name="own", like=None)])


@settings(max_examples=25, deadline=None)
@given(devices, st.integers(1, 8), tile, tile, tile, st.sampled_from(["mesh", "cannon", "summa"]))
def test_a_gemm_keeps_within_its_bounds(on: Device, side: int, m: int, k: int, n: int, algorithm: str) -> None:
    found = estimate.gemm(device=on, mesh=side, m=m, k=k, n=n, algorithm=algorithm)
    check_bounds(found)


@settings(max_examples=25, deadline=None)
@given(
    devices, st.integers(1, 8), sides.filter(lambda one: one <= 8), tile, tile,
    st.sampled_from(["ktree", "pipeline", "ring", "star", "two-phase"]),
)  # fmt: skip
def test_a_gemv_keeps_within_its_bounds(on: Device, rows: int, cols: int, k: int, n: int, algorithm: str) -> None:
    check_bounds(estimate.gemv(device=on, mesh=(rows, cols), k=k, n=n, algorithm=algorithm))


def check_bounds(found: estimate.Kernel) -> None:
    assert 0 <= found.mac_utilisation <= 1
    assert 0 <= found.sram_bandwidth_utilisation <= 1
    assert found.link_cycles <= found.cycles
    assert 0 <= found.compute_cycles <= found.cycles
    assert found.communication_cycles == pytest.approx(found.cycles - found.compute_cycles)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["wse2", "wse3"]), sides, tile, tile, tile, st.sampled_from("mkn"), st.integers(1, 60))
def test_more_work_never_costs_less(on: str, side: int, m: int, k: int, n: int, which: str, by: int) -> None:
    sizes = {"m": m, "k": k, "n": n}
    less = estimate.gemm(device=on, mesh=side, **sizes)
    more = estimate.gemm(device=on, mesh=side, **(sizes | {which: sizes[which] + by}))
    assert more.cycles >= less.cycles
    assert more.link_bytes >= less.link_bytes


@settings(max_examples=20, deadline=None)
@given(sides, st.integers(1, 40), tile, tile, st.sampled_from("kn"), st.integers(1, 60), st.integers(1, 12))
def test_more_work_never_costs_less_gemv(
    rows: int, cols: int, k: int, n: int, which: str, by: int, groups: int
) -> None:
    sizes, groups = {"k": k, "n": n}, min(groups, rows)
    less = estimate.gemv(mesh=(rows, cols), groups=groups, **sizes)
    more = estimate.gemv(mesh=(rows, cols), groups=groups, **(sizes | {which: sizes[which] + by}))
    assert more.cycles >= less.cycles
