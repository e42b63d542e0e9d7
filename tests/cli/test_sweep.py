"""`wafer-triton sweep`: grids of estimates, masked points, own schedules, pictures, and errors of one line."""

import csv
import json
import re
import shlex
from pathlib import Path

import pytest

from commands import answer
from wafer_triton import estimate
from wafer_triton.cli import sweep as command
from wafer_triton.cli.main import main
from wafer_triton.compare import sweep
from wafer_triton.device import LAW, device
from wafer_triton.draw.figure import numbers_of

GEMV = "sweep gemv --set k=48 --set n=48"
DECODE = "sweep decode --set model=smollm2-135m --set context=64"
OWN = str(Path(__file__).resolve().parents[2] / "docs" / "examples" / "own_gemm.py") + ":fox"


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def command(line):
        code = main(shlex.split(line))
        return code, *capsys.readouterr()

    return command


def test_two_parameters_and_two_devices_make_a_grid(run, capsys):
    found = answer(f"{DECODE} --over mesh=32,64 --over hop_cycles=1,2 --over device=wse2,wse3", capsys)[0]
    points = [(row["mesh"], row["hop_cycles"], row["device"]) for row in found["rows"]]
    assert points == [(mesh, hop, chip) for mesh in (32, 64) for hop in (1, 2) for chip in ("wse2", "wse3")]
    for row in found["rows"]:
        chip = device(row["device"]).changed(hop_cycles=row["hop_cycles"])
        alone = estimate.decode(model="smollm2-135m", mesh=row["mesh"], context=64, device=chip)
        assert row["tokens_per_second"] == alone.tokens_per_second


def test_two_devices_of_one_name_are_refused_as_their_rows_would_look_alike(run):
    Path("own.toml").write_text('like = "wse2"\nname = "wse2"\nclock_hz = 2.2e9\n')
    code, out, err = run(f"{DECODE} --set mesh=32 --over device=wse2,own.toml")
    assert (code, out) == (2, "") and "--over device: two devices have one name" in err


def test_a_failing_value_is_a_row_with_its_reason(run):
    code, out, _ = run(f"{GEMV} --over mesh=8,900,16 --out x.csv")
    assert code == 0 and "no figures at mesh 900: mesh 900 x 900 at (0, 0) leaves device wse2" in out
    with Path("x.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [row["mesh"] for row in rows] == ["8", "900", "16"]
    assert [bool(row["reason"]) for row in rows] == [False, True, False] and not rows[1]["cycles"]


def test_a_sweep_without_figures_says_why(run):
    code, _, err = run("sweep decode --over mesh=380,420,460 --set model=llama2-13b --set context=2048")
    assert code == 2 and not Path("sweep.csv").exists()
    assert "error: none of 3 points has figures; at mesh 420 x 420 cores: llama2-13b, decode with" in err


def test_a_table_has_the_main_columns_and_the_csv_all(run):
    code, out, _ = run(f"{GEMV} --over mesh=8,16 --show hops --out x.csv")
    (head,) = [line for line in out.splitlines() if line.startswith("mesh ")]
    assert code == 0 and re.split(r"  +", head) == ["mesh", "hops", "cycles", "time", "SRAM peak", "error band"]
    with Path("x.csv").open() as lines:
        assert {"compute_cycles", "link_bytes", "routes"} <= set(next(csv.reader(lines)))


def test_a_sweep_over_the_context_does_not_stop_where_the_cache_is_full(run, capsys):
    found = answer("sweep decode --over context=360,400000,720 --set model=llama3-8b --set mesh=360", capsys)[0]
    assert ["reason" in row for row in found["rows"]] == [False, True, False]


def test_words_are_swept(run, capsys):
    found = answer("sweep gemv --over algorithm=ktree,ring,star --set k=48 --set n=48 --set mesh=8", capsys)[0]
    assert [row["algorithm"] for row in found["rows"]] == ["ktree", "ring", "star"]
    models = answer("sweep decode --over model=smollm2-135m,llama3.2-1b --set mesh=300", capsys)[0]
    assert [row["model"] for row in models["rows"]] == ["smollm2-135m", "llama3.2-1b"]
    kinds = answer("sweep gemm --over dtype=fp16,fp32 --set mesh=8 --set m=8 --set k=8 --set n=8", capsys)[0]
    assert kinds["rows"][0]["cycles"] < kinds["rows"][1]["cycles"] and kinds["files"] == []


def test_a_picture_is_drawn_beside_the_csv(run, capsys):
    line = f"{DECODE} --over sram_kib=4:16:4 --over mesh=16,32,48,64"
    assert answer(f"{line} --out few.csv --out few.png", capsys)[0]["files"] == ["few.csv", "few.png"]
    shown = numbers_of("few.png")
    assert len([name for name in shown if name.endswith("without figures")]) == 4 and any(shown.values())


def test_a_sweep_of_more_curves_than_colours_keeps_its_csv(run):
    code, out, _ = run(f"{GEMV} --over mesh=8,16 --over groups=1:8:1 --out many.csv --out many.png")
    assert code == 0 and [path.name for path in Path().iterdir()] == ["many.csv"]
    assert "no picture: 8 curves of groups: at most 7 have colours of their own; sweep fewer values" in out


def test_energies_name_the_law_of_power(run):
    line = f"{DECODE} --set mesh=32 --over"
    assert LAW in run(f"{line} clock_ghz=1,2")[1]
    assert LAW not in run(f"{line} hop_cycles=1,2")[1]
    assert LAW not in run(f"{line} clock_ghz=1,2 --set power_watts=9000")[1]


def test_a_large_table_is_left_to_the_csv(run, monkeypatch):
    monkeypatch.setattr(command, "MOST_SHOWN", 3)
    monkeypatch.setattr(command, "SHORT", 1)
    code, out, err = run(f"{GEMV} --over mesh=4:16:4")
    assert code == 0 and "4 points, 4 with figures" in out and "points: 4 of 4" in err


def test_own_schedules_are_swept_or_refused_in_one_line(run, capsys):
    found = answer(f"sweep {OWN} --over side=4,8 --over hop_cycles=1,3 --set tile=16 --device wse3", capsys)[0]
    assert len({row["cycles"] for row in found["rows"]}) == 4
    for line, message in (
        ("--over width=4", "cannot sweep 'width'; parameters: side, tile, device"),
        ("--over side=4 --set colour=2", "sweep over an own schedule: unknown option colour; options: side, tile"),
    ):
        code, _, err = run(f"sweep {OWN} {line}")
        assert code == 2 and message in err


def test_a_sweep_keeps_its_rows_after_ctrl_c(run, monkeypatch):
    gemv = sweep.KINDS["gemv"]

    def until_nine(*, device: str, mesh: str, k: int, n: int):
        if k > 9:
            raise KeyboardInterrupt
        return gemv(device=device, mesh=mesh, k=k, n=n)

    monkeypatch.setitem(sweep.KINDS, "gemv", until_nine)
    code, out, err = run("sweep gemv --set n=48 --set mesh=8 --over k=8,9,10,11 --out sweep.csv --json")
    found = json.loads(out.splitlines()[-1])
    assert code == 130 and [row["k"] for row in found["rows"]] == [8, 9] and found["interrupted"]
    assert err.endswith("interrupted after 2 of 4 points\n")
    assert len(Path("sweep.csv").read_text().splitlines()) == 3


def test_numbers_without_a_unit_and_caches_are_shown(run):
    cap = "sweep decode --set model=olmoe-1b-7b --set mesh=360 --set context=512"
    assert "1.2" in run(f"{cap} --over routing=1.2,uniform")[1]
    assert "KV cache by shift" in run("sweep decode --over mesh=100,200 --set model=llama3.2-1b")[1]
