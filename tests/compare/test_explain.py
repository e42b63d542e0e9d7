"""The explanation of an estimate: shares and effects."""

from dataclasses import replace

import pytest

from wafer_triton.compare.explain import BOUNDS, bounds, explain
from wafer_triton.compare.sweep import KINDS
from wafer_triton.cost.constants import Constants
from wafer_triton.device import device
from wafer_triton.errors import DeviceError, MeshError
from wafer_triton.shape.decoder import DecoderShape

WSE2 = device("wse2")
OWN = device("wse2,hop_cycles=0.5,stage_cycles=30,link_bytes_per_cycle=2")
RULED = replace(WSE2, name="ruled", like=None)
SMALL = {"model": "smollm2-135m"}
CASES = [
    ("gemm", {"mesh": 7, "m": 144, "k": 140, "n": 144}),
    ("gemm", {"mesh": 8, "m": 144, "k": 140, "n": 144, "dtype": "fp32", "algorithm": "summa"}),
    ("gemv", {"mesh": 8, "k": 409, "n": 406}),
    ("decode", SMALL | {"mesh": 16, "context": 409}),
    ("decode", SMALL | {"mesh": 16, "context": 64, "program": "paper-benchmark"}),
    ("prefill", SMALL | {"mesh": 16, "tokens": 102}),
    ("training", {"model": DecoderShape(48, 80, 2, 6, 2, 8, 97), "mesh": 6, "tokens": 8}),
    ("request", SMALL | {"prefill_mesh": 16, "decode_mesh": 16, "input": 64, "output": 16}),
    ("decode", SMALL | {"mesh": 16, "context": 51, "batch": 2, "at_once": 1}),
    ("decode", SMALL | {"mesh": 16, "context": 51, "batch": 2, "routing": "uniform"}),
]


def named(case):
    return case if isinstance(case, str) else ""


@pytest.mark.parametrize(("kind", "arguments"), CASES, ids=named)
def test_the_shares_are_of_the_whole_time(kind, arguments):
    for chip in (WSE2, OWN, RULED) if kind in ("gemm", "gemv", "prefill") else (OWN,):
        found = bounds(kind, device=chip, **arguments)
        assert sum(found.shares.values()) == pytest.approx(1) and min(found.shares.values()) >= 0


@pytest.mark.parametrize("number", ["hop_cycles", "stage_cycles"])
@pytest.mark.parametrize(("kind", "arguments"), [CASES[0], CASES[3], CASES[4]], ids=named)
def test_a_share_is_the_growth_of_the_time_with_its_number(kind, arguments, number):
    found = bounds(kind, device=OWN, **arguments).shares[{"hop_cycles": "hops", "stage_cycles": "stages"}[number]]
    slower = OWN.changed(name=OWN.name, **{number: 1.001 * getattr(OWN, number)})
    figure = "seconds" if kind == "gemm" else "tokens_per_second"
    before, after = (getattr(KINDS[kind](device=chip, **arguments), figure) for chip in (OWN, slower))
    growth = after / before if figure == "seconds" else before / after
    assert found == pytest.approx((growth - 1) / 0.001, abs=1e-6)


def test_every_constant_is_in_one_bound():
    held = [name for names in BOUNDS.values() for name in names]
    assert sorted(held) == sorted(name for name in Constants.__dataclass_fields__ if "lanes" not in name)


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
    assert halved.halved is None and "does not fit" in halved.reason
    assert decoded.effects["macs_per_cycle_fp32"].doubled == 1
    assert 0.9 < decoded.sram_share <= 1


def test_a_cache_has_shares_of_sram_and_effects():
    given = {"model": "llama3-8b", "mesh": 360}
    found, base = explain("decode", **given), KINDS["decode"](**given)
    assert found.whole == "SRAM of a core" and sum(found.shares.values()) == pytest.approx(1)
    assert found.shares["cache"] == base.concat_tokens * base.entry_bytes / WSE2.sram_bytes
    larger = KINDS["decode"](device=WSE2.changed(sram_bytes=2 * WSE2.sram_bytes), **given)
    assert found.effects["sram_bytes"].doubled == larger.shift_tokens / base.shift_tokens > 1
    assert found.effects["sram_bytes"].halved is None and found.effects["clock_hz"].doubled == 1
    assert str(bounds("decode", **given)).startswith("bound by the SRAM of a core: weights ")


def test_a_cache_beside_half_a_layer_has_shares_of_its_own_core():
    """Place attention and feed-forward of each layer in two regions, as one core does not hold both."""
    given = {"model": DecoderShape(64, 96, 4, 4, 2, 16, 256), "mesh": 1}
    base = KINDS["decode"](**given)
    assert base.regions > 1 and base.layers_per_region == 0.5
    assert base.weight_bytes == (64 * (64 + 2 * 32 + 64) + 64) * 2
    found = bounds("decode", **given)
    assert found is not None and sum(found.shares.values()) == pytest.approx(1)
    assert all(share > 0 for share in found.shares.values())


def test_less_time_is_a_higher_speed():
    found = explain("gemm", mesh=8, m=96, k=96, n=96)
    assert found.effects["clock_hz"].doubled == pytest.approx(2)


def test_an_unknown_kind_is_refused_and_errors_of_the_estimate_stay():
    for function in (explain, bounds):
        with pytest.raises(DeviceError, match="explain 'energy': choose one of product, gemm, gemv, decode"):
            function("energy", seconds=1.0, against_seconds=1.0)
    with pytest.raises(MeshError, match="leaves device wse2"):
        explain("decode", **DECODE | {"mesh": 5000})


def test_a_number_beyond_its_range_has_the_reason_in_place_of_its_effect():
    found = explain("gemm", device=WSE2.unbounded(), **CASES[0][1]).effects["sram_bytes"]
    assert found.doubled is None and found.halved == 1.0
    assert found.reason.endswith("sram_bytes = 2199023255552 must be a whole number from 1 to 1,099,511,627,776")
