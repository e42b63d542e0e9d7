"""The data sheet of a device: origins, followers that do follow, ranges of the fit, and the band outside of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from commands import answer
from wafer_triton import Device
from wafer_triton.cli import main as cli
from wafer_triton.cost.bands import bands, fits
from wafer_triton.cost.constants import SCALES, described, followers
from wafer_triton.device import NUMBERS, device, energy_note, origin, sources

OWN = "wse2,clock_ghz=2.2,hop_cycles=3,sram_kib=128"


def test_each_number_is_own_scaled_or_inherited() -> None:
    made = device(OWN)
    origins = {name: origin(made, entry) for name, entry in sources(made).items()}
    assert {name for name, text in origins.items() if text == "own"} == {"clock_hz", "hop_cycles", "sram_bytes"}
    assert origins["power_watts"] == "scaled" and origins["link_bytes_per_cycle"] == "inherited: wse2"
    assert {origin(device("wse2"), entry) for entry in sources(device("wse2")).values()} == {""}


@pytest.mark.parametrize("number", NUMBERS)
def test_the_constants_that_follow_a_number_do_follow_it(number: str) -> None:
    base = device("wse2")
    changed = base.changed(**{number: 2 * getattr(base, number)})
    moved = {name for name, (by, _) in SCALES.items() if by == number}
    said = followers(changed)[number]
    assert all(name in said.followers for name in moved)
    assert (said.value, said.base) == (2 * getattr(base, number), getattr(base, number))
    assert (said.fitted_at is not None) == bool(moved) | (number == "clock_hz")
    follows = {name for name in NUMBERS if getattr(changed, name) != getattr(base, name)} - {number}
    assert all(name in said.followers for name in follows), "power_watts, of cores and clock"


def test_a_number_outside_of_the_fit_takes_the_band_and_a_clock_widens_it() -> None:
    inside, fast, outside = (fits(device(of))["decode"] for of in ("wse2", "wse2,clock_ghz=2.2", OWN))
    assert inside["error_band"] == bands()["WSE-2 decode"]["error_band"] and inside["outside"] == []
    assert fast["error_band"] == pytest.approx(2 * inside["error_band"]) and outside["error_band"] is None
    assert outside["outside"] == [
        "clock_hz 2.2e+09 is 2 times the largest measured, 1.1e+09",
        "no error band, as the constants were fitted at hop_cycles 1, not 3",
    ]
    assert inside["families"]["WSE-2 decode"]["sizes"]["mesh"] == [420, 660]
    assert fits(replace(device("wse2"), name="mine", like=None)) == {}


@pytest.mark.parametrize(
    ("of", "note"),
    [
        (device("wse2"), ""),
        (device("wse2,hop_cycles=2"), ""),
        (device("wse2,clock_ghz=2.2"), "energy at 30,000 W: 15,000 W of wse2, in proportion to cores and clock"),
        (replace(device("wse2"), name="mine", clock_hz=2.2e9), "energy at 15,000 W as given; cores and clock"),
        (device("wse2,macs_per_cycle_fp16=8"), "power_watts does not follow macs_per_cycle_fp16; give it"),
        (device("wse2,macs_per_cycle_fp16=8,power_watts=20000"), "energy at 20,000 W as given; cores and clock alone"),
    ],
)  # fmt: skip
def test_the_assumption_of_energies(of: Device, note: str) -> None:
    assert energy_note(of).startswith(note) and bool(energy_note(of)) == bool(note)


def test_the_command_line_shows_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    found, err = answer(f"devices {OWN}", capsys)
    numbers = found["numbers"]
    assert numbers["sram_bytes"]["value"] == 2**17 and numbers["rows"]["origin"] == "inherited: wse2"
    assert found["constants"]["hop_cycles"]["value"] == 3 == described(device(OWN))["hop_cycles"].value
    assert found["followers"]["hop_cycles"]["fitted_at"] == 1
    assert [found["tuned"][name]["value"] for name in ("stage_cycles", "hop_cycles")] == [5, 3]
    assert found["fits"] == json.loads(json.dumps(fits(device(OWN))))
    for text in (
        "inherited: wse2", "given by the", "fitted at", "1 (here x 3)", "constants in proportion: hop_cycles",
        "mesh 420 to 660", "for gemm, gemv, decode, prefill: no error band, as", "energy at 30,000 W",
    ):  # fmt: skip
        assert text in err, text


def test_a_device_like_no_preset_has_no_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({number: getattr(device("wse2"), number) for number in NUMBERS}))
    assert cli.main(["devices", str(path)]) == 0
    assert "no measurement: the constants of mine follow from its numbers" in capsys.readouterr().out


def test_an_estimate_prints_the_assumption_of_its_energy(capsys: pytest.CaptureFixture[str]) -> None:
    line = "estimate decode --model smollm2-135m --mesh 100 --context 64 --device wse2,clock_ghz=2.2"
    assert cli.main(line.split()) == 0
    assert "energy at 30,000 W: 15,000 W of wse2" in capsys.readouterr().out
    line = "estimate product --mesh 8 --k 64 --n 64 --device wse2,clock_ghz=2.2"
    assert cli.main(line.split()) == 0
    assert "energy" not in capsys.readouterr().out
