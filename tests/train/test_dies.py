"""Wafers of dies: presets, a wafer of one's own, and numbers out of range."""

from dataclasses import replace

import pytest

from wafer_triton.errors import DeviceError, MeshError
from wafer_triton.train.dies import WAFERS, wafer


def test_the_presets_as_devices_have_the_same_rates():
    for name, shape in {"wafer-48": (6, 8), "wafer-32": (4, 8)}.items():
        own, device = wafer(name), wafer(name).device()
        assert (device.rows, device.cols) == shape and own.dies == device.cores == shape[0] * shape[1]
        assert device.sram_bytes == own.sram_bytes == 80_000_000
        assert 2 * device.macs_per_cycle_fp16 * device.clock_hz == pytest.approx(1800e12)
        assert device.link_bytes_per_cycle * device.clock_hz == pytest.approx(4e12)
        assert device.hop_cycles / device.clock_hz == pytest.approx(200e-9)


def test_a_transfer_of_several_hops_takes_the_time_of_its_forwarding():
    cut, stored = (replace(wafer("wafer-48"), forwarding=mode) for mode in ("cut", "store"))
    assert cut.transfer_seconds(7, 4e6) == pytest.approx(7 * 200e-9 + 1e-6)
    assert stored.transfer_seconds(7, 4e6) == pytest.approx(7 * (200e-9 + 1e-6))
    assert cut.transfer_seconds(1, 4e6) == stored.transfer_seconds(1, 4e6)
    assert cut.transfer_seconds(0, 0) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": 0}, "rows = 0 must be a whole number of at least 1"),
        ({"flops": float("nan")}, "flops = nan must be a finite positive number"),
        ({"link_bytes_per_second": 0}, "link_bytes_per_second = 0 must be"),
        ({"forwarding": "magic"}, "choose 'cut' .* or 'store'"),
        ({"failed": frozenset({((0, 0), (1, 1))})}, "is not between neighbouring dies"),
        ({"failed": frozenset({((0, 0), (0, 1)), ((0, 0), (1, 0))})}, r"isolate 1 of 48 dies, such as die \(0, 0\)"),
    ],
)
def test_a_wafer_with_numbers_out_of_range_is_refused(change, said):
    with pytest.raises(DeviceError, match=said):
        replace(wafer("wafer-48"), **change)


def test_an_unknown_wafer_names_the_nearest():
    with pytest.raises(DeviceError, match="did you mean 'wafer-48'"):
        wafer("wafer48")
    assert wafer(WAFERS["wafer-32"]) is WAFERS["wafer-32"]


def test_a_mesh_larger_than_the_wafer_is_refused():
    with pytest.raises(MeshError, match="leaves device wafer-32"):
        wafer("wafer-32").mesh(5, 8)


def test_failed_links_are_left_out_of_the_graph():
    broken = replace(wafer("wafer-32"), failed=frozenset({((0, 0), (0, 1))}))
    assert not broken.links.has_edge((0, 0), (0, 1)) and not broken.links.has_edge((0, 1), (0, 0))
    assert broken.links.number_of_edges() == wafer("wafer-32").links.number_of_edges() - 2
