"""Mistakes of a user on the command line: one line on stderr with fault, place and remedy, before anything slow."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from commands import refused
from wafer_triton.cli.main import judged as judge
from wafer_triton.cli.main import main


def test_a_pipe_that_nothing_writes_is_not_waited_for(capsys, tmp_path):
    os.mkfifo(tmp_path / "config.json")
    for line in ("estimate decode --mesh 8 --context 8 --model", "generate --prompt a --model", "check --model"):
        assert "config.json" in refused(f"{line} {tmp_path}", capsys)


def test_the_size_of_a_read_file_is_bounded(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("wafer_triton.text.files.MOST_BYTES", 100)
    (tmp_path / "config.json").write_text(" " * 101)
    assert "has more than the 100 B that are read here; give a shorter file" in refused(
        f"check --model {tmp_path}", capsys
    )


def test_more_tokens_than_positions_are_said(capsys):
    assert main(shlex.split("estimate decode --model llama3-8b --mesh 360 --context 20000")) == 0
    assert "20,000 tokens are more than" in capsys.readouterr().out


def test_a_large_product_is_compared_without_values(capsys):
    assert main(shlex.split("compare gemm --m 100000 --k 100000 --n 100000 --mesh 8")) == 0
    assert "largest error -: values were not computed" in capsys.readouterr().out


def test_a_plan_reports_its_meshes(capsys):
    line = "plan --model smollm2-135m --device wse2,rows=8,cols=8 --input 1 --output 1 --step 1"
    assert main(shlex.split(line)) == 2  # it holds no such model
    assert "meshes of prefill: 8 of 8" in capsys.readouterr().err


def test_a_check_of_many_cores_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr("wafer_triton.cli.compare.MANY_CORES", 16)
    for mesh, told in ((2, False), (4, True)):
        assert main(shlex.split(f"check --model smollm2-135m --mesh {mesh} --context 8")) == 0
        assert ("sub-layers: 1 of " in capsys.readouterr().err) is told


def test_the_legend_of_plmr_has_its_thresholds_once(capsys):
    assert main(shlex.split("compare gemv --k 8 --n 8 --mesh 4")) == 0
    assert capsys.readouterr().out.count("half of the cores or more take part; L: the critical path takes at most") == 1


# --- errors that are not ours ---


def judged(error):
    try:
        raise error
    except Exception as raised:
        return judge(raised)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "this machine has not enough memory; take smaller sizes"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 40000000000 bytes."),
            "this machine has not enough memory for 40,000,000,000 B at once; take smaller sizes",
        ),
        (OSError(28, "No space left on device"), "this machine: No space left on device; free some space"),
        (PermissionError(13, "Permission denied", "x.csv"), "x.csv: Permission denied; give another path"),
        (ModuleNotFoundError(name="transformers"), "this command needs transformers; run: pip install"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_outside_the_package_is_one_line(error, message):
    code, said = judged(error)
    assert code == 2 and said.startswith(f"wafer-triton: error: {message}")


def test_another_package_s_error_about_a_file_is_one_line():
    scope = {"__name__": "transformers.models"}
    exec("def read():\n    raise KeyError('added_tokens')", scope)
    with pytest.raises(KeyError) as caught:
        scope["read"]()
    said = "wafer-triton: error: transformers cannot read a file or a setting: KeyError: 'added_tokens'; give another"
    assert judge(caught.value) == (2, said)


@pytest.mark.parametrize("error", [RuntimeError("ours"), KeyError("ours"), AssertionError("ours")])
def test_a_fault_of_ours_stays_one(error):
    with pytest.raises(type(error), match="ours"):
        judged(error)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
@pytest.mark.parametrize("args", ["--help", "estimate product --mesh 4 --k 8 --n 8 --json"])
def test_a_full_device(args):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "wafer_triton", *args.split()]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    said = "wafer-triton: error: standard output: No space left on device; free some space, or write elsewhere"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, said)


def test_a_closed_output(monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        assert main(["devices"]) == 2
    assert "standard output is closed; send it somewhere" in capsys.readouterr().err


def test_a_list_is_no_trace_of_experts(tmp_path, capsys):
    (tmp_path / "r.json").write_text("[]")
    line = f"estimate decode --model olmoe-1b-7b --mesh 360 --context 8 --routing {tmp_path}/r.json"
    assert 'holds a list, not a trace {"experts": [...]}' in refused(line, capsys)
