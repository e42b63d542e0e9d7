"""Own devices: files and texts of numbers, units in their keys, power that follows the clock, and refusals."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from wafer_triton import Device, estimate
from wafer_triton.cli import main as cli
from wafer_triton.device import NUMBERS, PRESETS, device, power_by_law, sources
from wafer_triton.device.keys import KEYS, MOST, WHOLE
from wafer_triton.device.mesh import as_mesh
from wafer_triton.errors import DeviceError

TOML = """name = "wide"
like = "wse2"
rows = 1024
cols = 1024
sram_kib = 128
hop_cycles = 3
"""


def test_a_file_is_a_preset_with_other_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TOML)
    wse2, made = PRESETS["wse2"], Device.from_file(path)
    watts = 15_000 * 1024 * 1024 / wse2.cores
    own = {"rows": 1024, "cols": 1024, "sram_bytes": 2**17, "hop_cycles": 3, "power_watts": watts}
    assert made == replace(wse2, name="wide", **own)
    path.with_suffix(".json").write_text(json.dumps({"like": "wse2", **own}))
    assert Device.from_file(str(path.with_suffix(".json"))) == replace(made, name="mine")


@pytest.mark.parametrize("form", [str, Path, Device.from_file], ids=["text", "path", "Device"])
def test_a_device_argument_is_a_file_or_a_device(tmp_path: Path, form) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TOML)
    assert as_mesh(8, form(path)).device == Device.from_file(path)
    expected = estimate.gemv(device=Device.from_file(path), mesh=8, k=64, n=64)
    assert estimate.gemv(device=form(path), mesh=8, k=64, n=64) == expected != estimate.gemv(mesh=8, k=64, n=64)


def test_a_text_is_a_device_with_other_numbers(tmp_path: Path) -> None:
    wse2 = PRESETS["wse2"]
    assert device("wse2,sram_bytes=98304,hop_cycles=0.5") == replace(
        wse2, name="wse2,sram_bytes=98304,hop_cycles=0.5", sram_bytes=98304, hop_cycles=0.5
    )
    path = tmp_path / "mine.toml"
    path.write_text(TOML)
    assert device(f"{path}, sram_kib=96, name=small").sram_bytes == 96 * 1024
    assert device(f"{path},name=small").name == "small"
    assert wse2.changed(sram_kib=96) == device("wse2,sram_kib=96")
    assert device("wse2,routes=packets").routes is None


def test_a_device_without_a_preset_gives_all_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    numbers = {number: getattr(PRESETS["wse2"], number) for number in NUMBERS}
    path.write_text(json.dumps(numbers))
    made = Device.from_file(path)
    assert (made.like, made.base) == (None, None)
    assert {entry.kind for entry in sources(made).values()} == {"own", "derived"}


@pytest.mark.parametrize(
    ("text", "number", "value"),
    [
        ("sram_kib=0.5", "sram_bytes", 512),
        ("sram_mib=1", "sram_bytes", 2**20),
        ("rows=1e3", "rows", 1000),
        ("routes=12.0", "routes", 12),
        ("clock_mhz=850", "clock_hz", 850e6),
        ("clock_ghz=1.4", "clock_hz", 1.4e9),
        ("link_bits_per_cycle=32", "link_bytes_per_cycle", 4),
        ("power_kilowatts=20", "power_watts", 20_000),
    ],
)
def test_a_unit_in_a_key_is_converted(text: str, number: str, value: float) -> None:
    made = getattr(device(f"wse2,{text}"), number)
    assert made == value and (number not in WHOLE or isinstance(made, int))
    assert set(MOST) <= set(KEYS)


def test_power_follows_cores_and_clock_so_that_a_faster_clock_saves_no_energy() -> None:
    fast, slow = device("wse2,clock_ghz=2.2"), device("wse2")
    assert fast.power_watts == 2 * slow.power_watts
    given = {"model": "llama3.2-1b", "mesh": 420, "context": 2048}
    before, after = (estimate.decode(device=of, **given) for of in (slow, fast))
    assert after.seconds == pytest.approx(before.seconds / 2)
    assert after.joules_per_token == pytest.approx(before.joules_per_token)
    assert device("wse2,clock_ghz=2.2,power_watts=15000").power_watts == 15_000
    assert device("wse2,rows=375").power_watts == pytest.approx(7_500)
    assert power_by_law(fast, slow) == fast.power_watts
    entry = sources(fast)["power_watts"]
    assert sources("wse2") == sources(device("wse2"))
    assert entry.kind == "scaled" and "15,000 W of wse2" in entry.source and "assumed" in entry.source
    assert sources(fast)["sram_bytes"] == sources("wse2")["sram_bytes"]


WRONG = [
    ("a.toml", "like = 'wse2'\nhop_cycels = 3", "a.toml: a device has no 'hop_cycels'; did you mean 'hop_cycles'?"),
    ("a.toml", "like = 'wse2'\nhop_ns = 3", "a.toml: a device has no 'hop_ns'; did you mean 'hop_cycles'?"),
    (
        "a.toml",
        "like = 'wse2'\nsram_kib = '128 KiB'",
        "sram_kib = '128 KiB' is a text; give a number, its unit in",
    ),
    ("a.toml", "like = 'wse2'\nsram_kib = 1\nsram_bytes = 9", "a.toml: sram_kib and sram_bytes are the same number"),
    (
        "a.toml",
        "like = 'wse2'\n[rows]\nvalue = 2",
        "a.toml: rows is of type dict; give a number, its unit in the key (rows)",
    ),
    (
        "a.toml",
        "like = 'wse2'\nclock_mhz = 1e9",
        "a.toml: clock_mhz = 1000000000.0 must be a number from 1e-15 to 1,000,000",
    ),
    (
        "a.toml",
        "like = 'wse2'\nroutes = 'some'",
        "routes = 'some' is a text; give a number, its unit in the key (routes), or 'packets'",
    ),
    ("a.toml", 'like = "wse2"\nname = "a\\nb"', "its name has the unprintable character '\\n'; leave it out"),
    ("a.toml", "like = 'wse4'", "a.toml: like = 'wse4' is no preset; did you mean 'wse"),
    ("a.toml", "rows = 3", "a.toml: cols, hop_cycles, stage_cycles, sram_bytes"),
    ("a.json", "[1]", "a.json: holds no device; give a table with some of rows, cols"),
    ("a.json", '{"like": "wse2", "name": ""}', "device '' has no name"),
]


@pytest.mark.parametrize(("name", "text", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_a_file_that_holds_no_device_is_refused(tmp_path: Path, monkeypatch, name, text, message) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    with pytest.raises(DeviceError) as caught:
        Device.from_file(name)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wse2,hop_cycles", "'hop_cycles' is no number; write KEY=VALUE"),
        ("wse2,", "'' is no number; write KEY=VALUE"),
        ("hop_cycles=3", "begins with a number; give a preset or a file first, as wse2,sram_kib=96"),
        ("wse2;rows=3", "begins with a number; give a preset or a file first, as wse2,sram_kib=96"),
        ("wse2,rows=3,rows=4", "rows is given twice; give it once"),
        ("wse2,rows=three", "rows = 'three' is a text; give a number"),
        ("wse9,rows=3", "unknown device 'wse9,rows=3'; did you mean 'wse"),
        (
            "wse2,sram_kib=0.0001",
            "sram_kib = 0.0001 must be a number from 0.0009766 to 1,073,741,824, a whole number of sram_bytes",
        ),
        (f"wse2,clock_ghz=1{'0' * 400}", "must be a number from 1e-18 to 1,000"),
        ("wse2,routes=2.5", "device 'wse2': routes = 2.5 must be a whole number from 1 to 1,000,000, or 'packets'"),
    ],
)
def test_a_text_that_holds_no_device_is_refused(text: str, message: str) -> None:
    with pytest.raises(DeviceError) as caught:
        device(text)
    assert message in str(caught.value)


LINES = (
    "estimate product --mesh 8 --k 64 --n 64",
    "estimate decode --model smollm2-135m --mesh 16 --context 64",
    "compare gemv --k 64 --n 64 --mesh 8",
    "check --model smollm2-135m --mesh 16",
)


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_numbers_are_set_on_the_command_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(*more: str) -> str:
        assert cli.main([*line.split(), *more, "--json"]) == 0
        return capsys.readouterr().out

    assert answer("--device", "wse2,hop_cycles=9,stage_cycles=99") != answer()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("draw gemv --k 8 --n 8 --mesh 4 --device a.json --out a.json", "is read as --device already"),
        ("draw gemv --k 8 --n 8 --mesh 4 --device a,b.json,rows=9 --out a,b.json", "is read as --device already"),
    ],
)
def test_a_wrong_number_on_the_command_line(tmp_path, monkeypatch, capsys, line: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.json", "a,b.json"):
        Path(name).write_text(TOML)
    assert cli.main(line.split()) == 2
    assert message in capsys.readouterr().err
    assert Path("a.json").read_text() == TOML
