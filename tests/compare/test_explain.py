"""The explanation of an estimate: shares, slopes against finite differences, roofs, effects and changes."""

from dataclasses import replace
from math import log

import pytest

from wafer_triton.compare.explain import BOUNDS, FIGURES, PAYS, bounds, explain
from wafer_triton.compare.sweep import KINDS
from wafer_triton.compare.tracing import NUMBERS, Traced, exponents_of, traced
from wafer_triton.cost.constants import Constants, constants
from wafer_triton.cost.price import price
from wafer_triton.device import Device, device
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import DeviceError, MeshError
from wafer_triton.schedule.product import recipe
from wafer_triton.shape.decoder import DecoderShape

pytestmark = pytest.mark.slow

WSE2 = device("wse2")
OWN = device("wse2,hop_cycles=0.5,stage_cycles=30,link_bytes_per_cycle=2")
RULED = replace(WSE2, name="ruled", like=None)
SMALL = {"model": "smollm2-135m", "as_if": True}
CASES = [
    ("gemm", {"mesh": 7, "m": 144, "k": 140, "n": 144}),
    ("gemm", {"mesh": 8, "m": 144, "k": 140, "n": 144, "dtype": "fp32", "algorithm": "summa"}),
    ("gemv", {"mesh": 8, "k": 409, "n": 406}),
    ("decode", SMALL | {"mesh": 8, "context": 409}),
    ("decode", SMALL | {"mesh": 8, "context": 64, "program": "paper-benchmark"}),
    ("prefill", SMALL | {"mesh": 8, "tokens": 102}),
    ("request", SMALL | {"prefill_mesh": 8, "decode_mesh": 8, "input": 64, "output": 16}),
    ("batch", SMALL | {"mesh": 8, "context": 51, "batch": 4}),
    ("cap", SMALL | {"mesh": 8, "context": 51, "batch": 2}),
]


def named(case):
    return case if isinstance(case, str) else ""


CHIPS = (WSE2, device("wse3"), OWN, RULED)


@pytest.mark.parametrize(
    ("kind", "arguments", "chip"),
    [(*CASES[0], chip) for chip in CHIPS[1:]] + [(*case, CHIPS[number % 4]) for number, case in enumerate(CASES)],
    ids=lambda part: part.name[:6] if isinstance(part, Device) else named(part),
)
def test_slopes_equal_finite_differences_of_the_estimate(kind, arguments, chip):
    found, step = bounds(kind, device=chip, **arguments), 1e-5

    def logarithm(number, factor):
        changed = replace(chip, **{number: getattr(chip, number) * factor})
        return log(getattr(KINDS[kind](device=changed, **arguments), FIGURES[kind]))

    for number in (*NUMBERS, "clock_hz"):
        slope = (logarithm(number, 1 + step) - logarithm(number, 1 - step)) / (log(1 + step) - log(1 - step))
        assert found.elasticities[number] == pytest.approx(slope, abs=1e-8), number


@pytest.mark.parametrize(("kind", "arguments"), CASES, ids=named)
def test_the_shares_are_of_the_whole_time_and_tracing_changes_no_figure(kind, arguments):
    found = bounds(kind, device=OWN, **arguments)
    assert sum(found.shares.values()) == pytest.approx(1) and min(found.shares.values()) >= 0
    plain, also = (getattr(KINDS[kind](device=chip, **arguments), FIGURES[kind]) for chip in (OWN, traced(OWN)))
    assert plain == also


def test_the_shares_of_a_product_without_overlap_are_its_bounds():
    schedule = recipe("gemv", Mesh(8, 8), "fp16", ((1, 64), (64, 64)), (("algorithm", "star"),)).schedule
    cost, c = price(schedule), constants(WSE2)
    shares = price(schedule, constants(traced(WSE2))).cycles.slopes
    assert shares["hop_cycles"] == pytest.approx(cost.bounds["hops"])
    assert sum(shares.get(name, 0.0) for name in BOUNDS["stages"]) == pytest.approx(cost.stages * c.stage_cycles)
    assert cost.latency_cycles == pytest.approx(cost.hops * c.hop_cycles + cost.bounds["set-up"])


def test_every_constant_is_in_one_bound():
    held = [name for names in BOUNDS.values() for name in names]
    assert sorted(held) == sorted(name for name in Constants.__dataclass_fields__ if "lanes" not in name)


def test_traced_floats_carry_the_derivatives_of_sums_products_quotients_and_maxima():
    a, b = Traced(3.0, {"a": 3.0}), Traced(5.0, {"b": 5.0})

    def made(x, y):
        return max(2 * x * y / (1 + y) - 1, x - y / 4) + (7 - x) / 2 + 3 / (x + y) - -y

    value = made(a, b)
    assert value == made(3.0, 5.0)
    for name, moved in (("a", (3 * (1 + 1e-6), 5.0)), ("b", (3.0, 5 * (1 + 1e-6)))):
        assert value.slopes[name] == pytest.approx((made(*moved) - made(3.0, 5.0)) / 1e-6, rel=1e-4)


def test_exponents_are_of_the_rules_of_the_constants():
    assert exponents_of(WSE2, "hop_cycles") == {"hop_cycles": pytest.approx(1)}
    assert exponents_of(WSE2, "link_bytes_per_cycle") == {"word_cycles": pytest.approx(-1)}
    assert set(exponents_of(RULED, "stage_cycles")) == {"stage_cycles", "decode_stage_cycles", "round_cycles"}
    assert exponents_of(replace(WSE2, hop_cycles=0), "hop_cycles") == {}


DECODE = {"model": "llama3-8b", "mesh": 360, "context": 4096}


@pytest.fixture(scope="module")
def decoded():
    return explain("decode", **DECODE)


def test_effects_are_the_estimates_with_a_number_halved_and_doubled(decoded):
    base = KINDS["decode"](**DECODE).tokens_per_second
    for number, factor, found in (
        ("hop_cycles", 0.5, decoded.effects["hop_cycles"].halved),
        ("clock_hz", 2, decoded.effects["clock_hz"].doubled),
        ("macs_per_cycle_fp16", 0.5, decoded.effects["macs_per_cycle_fp16"].halved),
    ):
        changed = WSE2.changed(**{number: getattr(WSE2, number) * factor})
        assert found == pytest.approx(KINDS["decode"](device=changed, **DECODE).tokens_per_second / base)
    halved = decoded.effects["sram_bytes"]
    assert halved.halved is None and "does not fit" in halved.reason and halved.matters
    assert not decoded.effects["macs_per_cycle_fp32"].matters


def test_roofs_lie_over_the_speed_and_the_lowest_bounds_it(decoded):
    assert [name[0] for name in decoded.roofs] == ["P", "L", "M", "R"]
    assert min(decoded.roofs.values()) > decoded.value
    assert min(decoded.roofs, key=decoded.roofs.get).startswith("L"), "decode waits for hops and set-ups"
    assert 0.9 < decoded.sram_share <= 1


def test_the_best_changes_are_three_different_ones_that_pay(decoded):
    ratios = [change.ratio for change in decoded.best]
    assert ratios == sorted(ratios, reverse=True) and len(ratios) == 3 and min(ratios) >= PAYS
    assert len({change.what.split()[0] for change in decoded.best}) == 3


@pytest.mark.parametrize(("kind", "arguments"), CASES, ids=named)
def test_every_kind_has_roofs_and_none_is_below_its_figure(kind, arguments):
    found = explain(kind, device=OWN, **arguments)
    assert [name[0] for name in found.roofs] == ["P", "L", "M", "R"] and found.whole == "time"
    gains = [found.value / roof if FIGURES[kind] == "seconds" else roof / found.value for roof in found.roofs.values()]
    assert min(gains) >= 1


def test_roofs_are_the_times_of_one_resource_alone():
    """Compare a product, whose schedule no constant changes, with its counts."""
    given = {"mesh": 8, "m": 144, "k": 140, "n": 144}
    found, base, c = explain("gemm", **given), KINDS["gemm"](**given), constants(WSE2)
    clock, wanted = WSE2.clock_hz, found.roofs
    assert wanted["P, multiply-adds"] == pytest.approx(base.mac_utilisation * base.seconds)
    assert wanted["M, SRAM bandwidth"] == pytest.approx(base.sram_bandwidth_utilisation * base.seconds)
    assert wanted["R, busiest link"] == pytest.approx(base.link_cycles / clock)
    assert wanted["L, hops and set-ups"] == pytest.approx((base.latency_cycles + c.kernel_cycles) / clock)
    alone = explain("gemm", mesh=1, m=8, k=8, n=8).roofs
    assert "R, busiest link" not in alone, "one core has no link"


def test_a_cache_has_shares_of_sram_and_effects_but_no_roof():
    given = {"model": "llama3-8b", "mesh": 360}
    found, base = explain("kv", **given), KINDS["kv"](**given)
    assert found.whole == "SRAM of a core" and found.roofs == {} and sum(found.shares.values()) == pytest.approx(1)
    assert found.shares["cache"] == base.concat_tokens * base.entry_bytes / WSE2.sram_bytes
    larger = KINDS["kv"](device=WSE2.changed(sram_bytes=2 * WSE2.sram_bytes), **given)
    assert found.effects["sram_bytes"].doubled == larger.shift_tokens / base.shift_tokens > 1
    assert found.effects["sram_bytes"].halved is None and not found.effects["clock_hz"].matters
    assert str(bounds("kv", **given)).startswith("bound by the SRAM of a core: weights ")


def test_a_cache_beside_half_a_layer_has_shares_of_its_own_core():
    """Place attention and feed-forward of each layer in two regions, as one core does not hold both."""
    given = {"model": DecoderShape(64, 96, 4, 4, 2, 16, 256), "mesh": 1}
    base = KINDS["kv"](**given)
    assert base.regions > 1 and base.layers_per_region == 0.5
    assert base.weight_bytes == (64 * (64 + 2 * 32 + 64) + 64) * 2
    found = bounds("kv", **given)
    assert found is not None and sum(found.shares.values()) == pytest.approx(1)
    assert all(share > 0 for share in found.shares.values())


def test_less_time_is_a_higher_speed():
    found = explain("gemm", mesh=8, m=96, k=96, n=96)
    assert found.effects["clock_hz"].doubled == pytest.approx(2) and found.elasticities["clock_hz"] == pytest.approx(-1)
    assert max(found.roofs.values()) <= found.value


def test_an_unknown_kind_is_refused_and_errors_of_the_estimate_stay():
    for function in (explain, bounds):
        with pytest.raises(DeviceError, match="explain 'energy': choose one of gemm, gemv, decode"):
            function("energy", seconds=1.0, against_seconds=1.0)
    with pytest.raises(MeshError, match="leaves device wse2"):
        explain("decode", **DECODE | {"mesh": 5000})


def test_a_number_beyond_its_range_has_the_reason_in_place_of_its_effect():
    found = explain("gemm", device=WSE2.unbounded(), **CASES[0][1]).effects["sram_bytes"]
    assert found.doubled is None and found.halved == 1.0
    assert found.reason.endswith("sram_bytes = 2199023255552 must be a whole number from 1 to 1,099,511,627,776")
