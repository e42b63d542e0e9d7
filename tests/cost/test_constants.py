"""Constants of an own device: the numbers that they follow, and small changes that change a price by little."""

from dataclasses import fields, replace
from functools import cache
from math import exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wafer_triton import estimate
from wafer_triton.cost.calibrate import fit
from wafer_triton.cost.constants import NAMES, RULES, SCALES, TUNED, Constants, constants, described, scaled, tuned
from wafer_triton.count.account import Account
from wafer_triton.count.verdict import latency
from wafer_triton.device import MEASURED, NUMBERS, PRESETS, Device, device, sources
from wafer_triton.device.spec import KINDS, read
from wafer_triton.errors import ConfigError
from wafer_triton.shape.decoder import DecoderShape

pytestmark = pytest.mark.slow

SHAPE = DecoderShape(96, 160, 2, 4, 2, 24, 200, name="small")
ROOMY = {"rows": 400, "cols": 400, "sram_bytes": 2**20}
# Seconds over a number of the device: 1 where they can only rise with it, -1 where they can only fall, 0 where they do
# not follow it. Memory and routes say whether a schedule fits or is relayed, which is a step: see the tests below.
SIGNS = {
    "rows": 0,
    "cols": 0,
    "hop_cycles": 1,
    "stage_cycles": 1,
    "sram_bytes": 0,
    "routes": 0,
    "clock_hz": -1,
    "link_bytes_per_cycle": -1,
    "macs_per_cycle_fp16": -1,
    "macs_per_cycle_fp32": -1,
    "power_watts": 0,
}
WHOLE = ("rows", "cols", "sram_bytes", "routes")


@cache
def seconds(of: Device) -> dict[str, float]:
    """Return the predictions of a product of each kind and of a layer of each phase."""
    estimates = {
        "gemm": estimate.gemm(device=of, mesh=12, m=100, k=90, n=120),
        "gemm in fp32": estimate.gemm(device=of, mesh=12, m=100, k=90, n=120, dtype="fp32"),
        "gemv": estimate.gemv(device=of, mesh=20, k=100, n=300),
        "decode": estimate.decode(device=of, model=SHAPE, mesh=20, context=64),
        "prefill": estimate.prefill(device=of, model=SHAPE, mesh=20, tokens=64),
    }
    return {name: estimated.seconds for name, estimated in estimates.items()}


@st.composite
def devices(draw: st.DrawFn) -> Device:
    """Draw a device like any preset or none, with its numbers times 0.1 to 10."""
    base = device(draw(st.sampled_from(("wse2", "wse3"))))
    own = {name: getattr(base, name) * 10 ** draw(st.floats(-1, 1)) for name in NUMBERS if name not in WHOLE}
    return replace(base, name="own", like=draw(st.sampled_from(("wse2", "wse3", None))), routes=24, **(ROOMY | own))


@settings(max_examples=20)
@given(of=devices())
@pytest.mark.parametrize("family", ["kernel", "decode"])
def test_tuned_constants_are_a_bound(family, of):
    least, c = tuned(of).of(family), constants(of).of(family)
    for name in TUNED:
        assert getattr(least, name) <= getattr(c, name) / getattr(c, f"{name[:4]}_lanes", 1) * (1 + 1e-9), name


def test_every_number_of_a_device_has_a_sign():
    assert tuple(SIGNS) == NUMBERS
    assert set(NUMBERS) == {entry.name for entry in fields(Device)} - {"name", "like", "base"}


@settings(max_examples=2)
@given(of=devices(), step=st.floats(1e-6, 1e-3))
@pytest.mark.parametrize("number", NUMBERS)
def test_a_small_change_of_a_number_changes_little_and_in_the_right_direction(number, of, step):
    """Check that the share by which a price changes is at most the share by which the number changes."""
    value = getattr(of, number)
    more = replace(of, **{number: value + 1 if number in WHOLE else value * exp(step)})
    for name, before in seconds(of).items():
        change = log(seconds(more)[name] / before)
        assert abs(change) <= step * (1 + 1e-6), name
        assert change == 0 if SIGNS[number] == 0 else change * SIGNS[number] >= -1e-12, name


@settings(max_examples=2)
@given(of=devices(), times=st.floats(1, 8))
@pytest.mark.parametrize("number", [name for name, sign in SIGNS.items() if sign])
def test_a_large_change_of_a_number_goes_in_the_right_direction(number, of, times):
    more = replace(of, **{number: getattr(of, number) * times})
    for name, before in seconds(of).items():
        assert (seconds(more)[name] - before) * SIGNS[number] >= -1e-9 * before, name


def test_the_clock_counts_seconds_alone():
    twice = replace(device("wse2"), clock_hz=2.2e9)
    before, after = (estimate.gemv(device=of, mesh=20, k=100, n=300) for of in ("wse2", twice))
    assert (after.cycles, after.seconds) == (before.cycles, before.seconds / 2)


def test_routes_are_a_step():
    """Check that a schedule is relayed core by core only where it needs more routes than the device has."""
    priced = [
        estimate.gemm(device=replace(device("wse2"), routes=routes), mesh=12, m=48, k=48, n=48, algorithm="summa")
        for routes in (23, 24, 25)
    ]
    few, enough, many = priced
    assert enough.routes == 24
    assert few.cycles > 1.2 * enough.cycles == 1.2 * many.cycles and few.hops == enough.hops


def test_memory_is_a_step():
    """Prefill has a second buffer of partial sums where a core has room for it, and is then faster."""
    shape = DecoderShape(256, 256, 1, 16, 16, 16, 0, name="wide")
    least, most = (
        estimate.prefill(
            device=replace(device("wse2"), sram_bytes=size), model=shape, mesh=8, tokens=256, head_groups=1
        )
        for size in (165_000, 2**20)
    )
    assert least.seconds > most.seconds


@pytest.mark.parametrize("like", ["wse2", "wse3", None])
def test_name_and_power_do_not_count(like):
    own = replace(device("wse2"), like=like, hop_cycles=3, rows=700, cols=900, sram_bytes=2**16, routes=32)
    other = replace(own, name="other", power_watts=9_000)
    assert constants(own) == constants(other)
    first, second = (estimate.gemm(device=of, mesh=16, m=64, k=64, n=64) for of in (own, other))
    assert first == second, "it took 3.5 times as long"


@pytest.mark.parametrize("like", ["wse2", "wse3"])
@pytest.mark.parametrize("constant", SCALES)
def test_a_constant_scales_with_the_number_that_it_stands_for(like, constant):
    number, exponent = SCALES[constant]
    base = device(like)
    own = (
        replace(base, rows=2 * base.rows) if number == "cores" else replace(base, **{number: 2 * getattr(base, number)})
    )
    before, after = constants(base), constants(own)
    assert getattr(after, constant) == pytest.approx(getattr(before, constant) * 2**exponent)
    others = [name for name in NAMES if SCALES.get(name, ("", 0))[0] != number]
    assert all(getattr(after, name) == getattr(before, name) for name in others)
    assert scaled(own) == (number,) and scaled(base) == ()


def test_a_device_like_no_preset_has_derived_constants():
    own = replace(device("wse2"), like=None)
    assert constants(own) == constants(replace(own, name="wse2")) != constants(device("wse2"))
    assert isinstance(constants(own), Constants) and scaled(own) == ()
    assert constants(replace(own, link_bytes_per_cycle=32)).word_cycles == 4 / 32


@pytest.mark.parametrize("name", PRESETS)
def test_every_number_and_constant_has_a_source(name):
    own, c = device(name), constants(device(name))
    assert set(sources(own)) == {*NUMBERS, "wafer_cores"} and set(described(own)) == set(NAMES)
    for entries, of in ((sources(own), own), (described(own), c)):
        for key, entry in entries.items():
            assert entry.value == getattr(of, key), key
            assert entry.kind in KINDS and len(entry.source) >= 4, key
            assert entry.standard_error is None or entry.kind == "fitted", key


@pytest.mark.parametrize("name", PRESETS)
def test_a_spec_repeats_no_number_that_a_rule_gives(name):
    """Judge by the rules: a constant that follows from a number of the device is not written down beside it."""
    derived = {key for key, (_, kind, _) in RULES.items() if kind == "derived"}
    same = {key for key, entry in read(name).constants.items() if key in derived and entry.value == follow(name, key)}
    assert same == set()


def follow(name: str, key: str) -> float:
    lanes = read(name).constants.get(f"{key[:4]}_lanes")
    return RULES[key][0](device(name), 1 if lanes is None else lanes.value)


def test_cores_are_rows_times_cols_and_the_paper_counts_the_whole_wafer():
    wse2 = device("wse2")
    assert (wse2.cores, wse2.wafer_cores) == (750 * 994, 850_000)
    assert sources(wse2)["wafer_cores"].kind == "data sheet"
    half = replace(wse2, name="half", rows=375)
    assert (half.wafer_cores, sources(half)["wafer_cores"].kind) == (425_000, "derived")
    assert (sources(half)["rows"].kind, sources(half)["cols"].kind) == ("own", "data sheet")


def test_a_constant_of_ones_own_device_names_the_number_that_scaled_it():
    entry = described(replace(device("wse2"), name="mine", stage_cycles=32))["stage_cycles"]
    assert entry.kind == "scaled" and entry.source.startswith("by stage_cycles; of wse2, carried over: wse3, fitted on")
    assert entry.value == pytest.approx(2 * constants(device("wse2")).stage_cycles)


@pytest.mark.parametrize("name", ["wse2", "wse3"])
def test_judged_by_the_numbers_that_price(name):
    """Compare the latency of the L of PLMR with hops, stages and words in the cycles of the constants."""
    c, counts = constants(device(name)), Account(hops=7, stages=5, serial_words=3)
    assert latency(counts, c) == 7 * c.hop_cycles + 5 * c.stage_cycles + 3 * c.word_cycles


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_a_constant_is_a_number_of_at_least_zero(value):
    with pytest.raises(ConfigError, match="constant hop_cycles = .* must be a number of 0 or more"):
        Constants(hop_cycles=value, word_cycles=1.0, stage_cycles=16.0)


def test_fitted_and_carried_over_constants_say_so():
    for name in MEASURED:
        kinds = {key: entry.kind for key, entry in described(device(name)).items()}
        own = {key for stage in fit.STAGES if stage.device == name for key in stage.names}
        taken = {key for stage in fit.STAGES if stage.device != name for key in stage.hands_on}
        assert {key for key, kind in kinds.items() if kind == "fitted"} == own
        assert taken <= {key for key, kind in kinds.items() if kind == "carried over"}


def test_generations_do_not_share_hops_and_links():
    two, three = constants(device("wse2")), constants(device("wse3"))
    assert (two.hop_cycles, two.word_cycles) == (1, 1)
    assert (three.hop_cycles, three.word_cycles) == (2, 1.125)
