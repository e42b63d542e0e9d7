"""Error bands: how they are made, that they hold rows left out of the fit, and the band of an own estimate."""

from dataclasses import replace
from itertools import pairwise
from math import inf, sqrt

import pytest

from wafer_triton import estimate
from wafer_triton.cost.bands import SHARE, band, bands, basis, basis_of_all
from wafer_triton.cost.calibrate import FAMILIES, fit, rows
from wafer_triton.cost.constants import constants
from wafer_triton.device import MEASURED, device
from wafer_triton.shape.decoder import DecoderShape

pytestmark = pytest.mark.slow

LEFT_OUT = [(family, key) for family in FAMILIES for key in bands()[family]["left_out"]]
SMALL = DecoderShape(96, 160, 2, 4, 2, 24, 0, name="small")
DERIVED = replace(device("wse2"), name="derived", like=None)


@pytest.mark.parametrize("family, key", LEFT_OUT)
def test_a_band_holds_nine_in_ten_of_the_rows_left_out(family, key):
    """Whichever way rows are left out: with all of their mesh, their tile, their model, their groups."""
    errors = bands()[family]["left_out"][key].values()
    assert sum(abs(error) <= bands()[family]["error_band"] for error in errors) >= SHARE * len(errors)


def test_bands_made_without_a_row_hold_nine_in_ten_rows():
    """Leave out each row before its band is made, so that neither the constants nor the band depend on the row."""
    held, count = 0, 0
    for family in bands().values():
        for errors in family["left_out"].values():
            for row, error in errors.items():
                others = {
                    key: {name: other for name, other in each.items() if name != row}
                    for key, each in family["left_out"].items()
                }
                count += 1
                if any(others.values()):
                    held += abs(error) <= band(others, family["rows"] - 1, family["constants"])
    assert held >= SHARE * count > 200


@pytest.mark.parametrize("family", FAMILIES)
def test_a_band_is_made_of_its_rows(family):
    entry = bands()[family]
    assert entry["error_band"] == pytest.approx(band(entry["left_out"], entry["rows"], entry["constants"]), rel=1e-4)
    (stage,) = [stage for stage in fit.STAGES if stage.family == family]
    assert (entry["rows"], entry["constants"]) == (len(stage.rows()), len(stage.names))
    names = {row.name for row in stage.rows()}
    assert all(set(errors) <= names for errors in entry["left_out"].values())
    for name, (least, most) in entry["sizes"].items():
        sizes = [size for row in stage.rows() for size in row.sizes[name]]
        assert (least, most) == (min(sizes), max(sizes))


def test_rows_that_the_fit_leaves_out_lie_in_a_wider_band():
    """Check that MeshGEMVs on fewer than 80 x 80 cores are measured, but that no constant is fitted on them."""
    c, small = constants(device("wse3")), [row for row in rows("MeshGEMV") if row.groups["mesh"] == "16"]
    for row in small:
        wide = basis(device("wse3"), "gemv", row.sizes)
        assert wide.outside == ("mesh 16 is 0.2 of the smallest measured, 80",)
        assert abs(row.measured / row.predict(c) - 1) < wide.error_band < 0.2
    assert len(small) == 4


def test_of_each_row_the_largest_error_counts():
    errors = {"mesh": {"a": 0.01, "b": -0.02}, "tile": {"a": -0.03}}
    students = {1: 6.313752, 2: 2.919986, 22: 1.717144, 61: 1.670219, 100: 1.660234}  # 95 % of Student's t lie below
    for freedom, student in students.items():
        assert band(errors, freedom + 2, 2) == pytest.approx(student * sqrt((0.03**2 + 0.02**2) / 2), rel=1e-5)


def gemm(of, mesh, tile=4, **options) -> estimate.Kernel:
    return estimate.gemm(device=of, mesh=mesh, m=tile * mesh, k=tile * mesh, n=tile * mesh, **options)


def test_within_the_measured_range_the_band_is_the_family_s():
    kernel = gemm("wse3", 100)
    assert (kernel.constants, kernel.outside) == ("fitted: wse3", None)
    assert kernel.error_band == bands()["MeshGEMM"]["error_band"]


@pytest.mark.parametrize(
    "kernel, doublings, outside",
    [
        (lambda: gemm("wse3", 600), 0.585, "mesh 600 is 1.5 times the largest measured, 400"),
        (lambda: gemm("wse3", 8), 1, "mesh 8 is 0.5 of the smallest measured, 16"),
        (lambda: gemm("wse3", 16, tile=16), 1, "tile 16 is 2 times the largest measured, 8"),
        (lambda: gemm("wse3", 16, dtype="fp32"), 1, "fp32 was not measured"),
        (lambda: gemm("wse3", 20, algorithm="cannon"), 1, "algorithm cannon was not measured"),
        (
            lambda: gemm("wse3", 32, algorithm="summa"), 2,
            "algorithm summa was not measured; nothing that is relayed core by core was measured",
        ),
        (
            lambda: estimate.gemm(device="wse3", mesh="20x40", m=80, k=80, n=80), 1,
            "no rectangular mesh was measured",
        ),
    ],
)  # fmt: skip
def test_outside_the_band_is_wider_and_says_why(kernel, doublings, outside):
    estimated, inside = kernel(), bands()["MeshGEMM"]["error_band"]
    assert estimated.outside == outside
    assert estimated.error_band == pytest.approx(inside * (1 + doublings), rel=1e-3)


@pytest.mark.parametrize("number", ["hop_cycles", "stage_cycles", "link_bytes_per_cycle", "macs_per_cycle_fp16"])
@pytest.mark.parametrize("factor", [0, 0.001, 0.999, 2])
def test_a_number_at_which_no_constant_was_fitted_has_no_band_and_says_so(number, factor):
    """Constants follow the number, and near 0 it is no surer than elsewhere."""
    fitted = getattr(device("wse3"), number)
    if factor == 0 and number not in ("hop_cycles", "stage_cycles"):  # a rate of 0 is no device
        return
    own = replace(device("wse3"), **{number: factor * fitted})
    estimated = gemm(own, 20)
    assert estimated.error_band is None
    said = f"no error band, as the constants were fitted at {number} {fitted:g}, not {factor * fitted:g}"
    assert estimated.outside == said
    usual = {"rows": 900, "routes": 9, "power_watts": 1, "sram_bytes": 2**20}  # which no constant follows
    assert gemm(replace(device("wse3"), **usual), 20).error_band == bands()["MeshGEMM"]["error_band"]


def test_farther_outside_the_band_is_wider():
    widths = [basis(device("wse3"), "gemm", {"mesh": (side,)}).error_band for side in (400, 500, 750, 1500)]
    assert all(less < more < inf for less, more in pairwise(widths))
    assert basis(replace(device("wse3"), rows=2000, cols=2000), "gemm", {"mesh": (900,)}).outside == (
        "mesh 900 is 2.25 times the largest measured, 400",
    )


@pytest.mark.parametrize("like", MEASURED)
@pytest.mark.parametrize("kind", ["gemm", "gemv", "decode", "prefill"])
def test_every_kind_has_a_band_on_every_measured_device(like, kind):
    assert 0 < basis(device(like), kind, {"mesh": (400,)}).error_band < 1


@pytest.mark.parametrize("side, tokens", [(150, 100), (480, 4096), (720, 20_000)])
def test_a_prefill_that_was_measured_elsewhere_is_less_sure_than_there(side, tokens):
    sizes = {"mesh": (side,), "width": (4096,), "tokens": (tokens,)}
    here, there = (basis(device(name), "prefill", sizes).error_band for name in ("wse3", "wse2"))
    assert here > there


def test_scaled_constants_are_named():
    own = replace(device("wse2"), name="own", hop_cycles=2, link_bytes_per_cycle=8, rows=700, power_watts=1, routes=9)
    said = gemm(own, 20).constants
    assert said == "fitted: wse2, scaled for hop_cycles, link_bytes_per_cycle"
    assert "cores" not in gemm(own, 20).outside, "a mesh takes the same time on a device of any number of cores"


def test_derived_constants_are_reported_as_not_calibrated():
    of = DERIVED
    for estimated in (
        estimate.gemm(device=of, mesh=4, m=8, k=8, n=8),
        estimate.gemv(device=of, mesh=4, k=8, n=8),
        estimate.decode(device=of, model=SMALL, mesh=8, context=8),
        estimate.prefill(device=of, model=SMALL, mesh=8, tokens=8),
        estimate.request(device=of, model=SMALL, prefill_mesh=8, decode_mesh=8, input=8, output=8),
    ):
        assert (estimated.error_band, estimated.outside) == (None, None)
        assert estimated.constants == "derived from the device's numbers, not calibrated"


def test_a_request_has_the_larger_band_and_says_which_phase_lies_outside():
    model = "llama3-8b,layers=2"
    estimated = estimate.request(model=model, prefill_mesh=300, decode_mesh=360, input=512, output=3584)
    assert estimated.outside == (
        "a model's own program was not measured; prefill: mesh 300 is 0.62 of the smallest measured, 480; "
        "prefill: tokens 512 is 0.12 of the smallest measured, 4,096; "
        "decode: mesh 360 is 0.86 of the smallest measured, 420"
    )
    assert estimated.error_band == estimate.prefill(model=model, mesh=300, tokens=512).error_band
    fitted, derived = basis(device("wse2"), "gemm", {}), basis(DERIVED, "gemm", {})
    assert basis_of_all({"prefill": fitted, "decode": derived}).error_band == fitted.error_band


def test_the_paper_s_decode_lies_inside():
    estimated = estimate.decode(model="llama3-8b", mesh=540, context=4096, program="paper-benchmark")
    assert (estimated.outside, estimated.error_band) == (None, bands()["WSE-2 decode"]["error_band"])
