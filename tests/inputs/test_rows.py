"""Further mistakes and long runs: one line names fault, place and remedy before anything slow runs."""

import json
import shlex
import shutil
from types import SimpleNamespace

import pytest

from tiny import CONFIG, checkpoint
from wafer_triton.cli.main import main
from wafer_triton.errors import CheckpointError
from wafer_triton.models.checkpoint import fetch

SWEEP = "sweep gemv --set n=48 --set mesh=8 --set k=64 --no-plot --over"


def said(capsys, line, code=2):
    """Return the last line on stderr of a command that ends with the exit code."""
    assert main(shlex.split(line)) == code, line
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "estimate decode --mesh 360 --context 8",
        "estimate prefill --mesh 360 --tokens 8",
        "estimate kv --mesh 360",
        "estimate cap --mesh 360 --context 8",
        "plan --input 8 --output 8 --step 700",
    ],
)
def test_a_mixture_that_no_wafer_holds_is_refused(capsys, line):
    found = said(capsys, f"{line} --model mixtral-8x7b")
    assert "46,702,792,704 weights take 93,405,585,408 B in fp16, and all cores together hold 36,642,816,000 B" in found


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("groups=999", "K-tree over 8 cores: level 1 has 8 cores for 999 groups"),
        ("routes=0", "routes = 0 must be a whole number from 1 to 1,000,000, or 'packets'"),
        ("hop_cycles=1e300", "hop_cycles = 1e+300 must be a number from 0 to 1,000,000"),
    ],
)
def test_a_sweep_that_leaves_all_out_says_why(capsys, values, message):
    assert message in said(capsys, f"{SWEEP} {values}")


@pytest.mark.parametrize(
    "line", ["decode --mesh 8 --context 8", "prefill --mesh 8 --tokens 8", "kv --mesh 8", "cap --mesh 8 --context 8"]
)
def test_an_estimate_without_a_vocabulary_says_so(capsys, tmp_path, line):
    for keys, noted in ((CONFIG.keys(), False), (CONFIG.keys() - {"vocab_size"}, True)):
        (tmp_path / "config.json").write_text(json.dumps({key: CONFIG[key] for key in keys}))
        assert main(shlex.split(f"estimate {line} --model {tmp_path}")) == 0
        assert ("without a vocabulary, layers alone: no embedding, no head" in capsys.readouterr().out) is noted


@pytest.mark.parametrize(
    ("text", "kind"),
    [("5", "a number"), ("null", "null"), ('"a"', "a text"), ("[]", "a list"), ("true", "true or false")],
)
def test_a_config_that_is_no_table_is_named_with_its_kind(capsys, tmp_path, text, kind):
    (tmp_path / "config.json").write_text(text)
    found = said(capsys, f"estimate kv --mesh 8 --model {tmp_path}")
    assert f"config.json: holds {kind}, not a table of settings" in found


@pytest.mark.slow
def test_a_comparison_of_many_values_says_how_long_it_takes(capsys, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("wafer_triton.compare.algorithms._errors", stop)
    monkeypatch.setattr("wafer_triton.draw.progress.LONG", 0.0)
    assert main(shlex.split("compare gemm --m 8 --k 8 --n 8 --mesh 4 --values")) == 130
    assert "this takes about " in capsys.readouterr().err


def test_a_full_disk_is_not_blamed_on_the_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("WAFER_TRITON_CACHE", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(CheckpointError, match="cannot write to .*: .*No space left on device; 1 GB is needed there"):
        fetch.smollm2_135m()
    monkeypatch.undo()
    monkeypatch.setenv("WAFER_TRITON_CACHE", str(tmp_path))
    full = SimpleNamespace(returncode=1, stdout="", stderr="ERROR: [Errno 28] No space left on device\n")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: full)
    with pytest.raises(CheckpointError, match="No space left on device; 1 GB is needed there, or set WAFER_TRITON_CAC"):
        fetch.smollm2_135m()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_profile_adds_no_line_to_the_text(tmp_path, capfd):
    folder = checkpoint(tmp_path / "ok")
    line = f"generate --prompt hello --mesh 2 --max-new-tokens 3 --model {folder} --profile {tmp_path}/p.json"
    assert main(shlex.split(line)) == 0
    err = capfd.readouterr().err
    assert "USDT" not in err and "Warning" not in err and (tmp_path / "p.json").stat().st_size > 1000


@pytest.mark.parametrize("command", ["compare", "show", "draw"])
def test_a_schedule_with_many_faults_is_one_line(capsys, tmp_path, command):
    (tmp_path / "own.py").write_text(
        "from wafer_triton import Builder, as_mesh\n"
        "def many():\n"
        "    b = Builder(as_mesh(2), 'many')\n"
        "    b.buffer('x', (4,), 'fp32', 'input')\n"
        "    b.buffer('y', (4,), 'fp32', 'output')\n"
        "    for _ in range(1202):\n"
        "        b.round(b.exchange('x', 'x', 'y', 0, 1))\n"
        "    return b.build()\n"
    )
    assert main([command, f"{tmp_path}/own.py:many"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.endswith("; 1,200 more findings, which `check` lists\n")


@pytest.mark.parametrize("line", ["estimate decode --context 8", "estimate prefill --tokens 8", "estimate kv", "plan"])
def test_decoders_are_priced_in_formats_of_weights_alone(capsys, line):
    mesh = "--input 1 --output 1" if line == "plan" else "--mesh 64"
    found = said(capsys, f"{line} --model smollm2-135m {mesh} --dtype fp32")
    page = " ".join(line.split()[:2]) if "estimate" in line else line
    assert f"choose from 'fp16', 'bf16', 'int8', 'fp8'); see `wafer-triton {page} --help`" in found


@pytest.mark.slow
def test_experts_in_regions_that_do_not_fit_blame_no_mesh_but_the_one_given(capsys):
    line = "estimate prefill --model qwen1.5-moe-a2.7b --mesh 320 --tokens 320 --experts regions"
    found = said(capsys, line)
    assert "prefill of 320 tokens does not fit wse2: its 50 blocks take 9 regions" in found and "341" not in found


def test_whatever_a_schedule_s_file_raises_is_one_line(capsys, tmp_path):
    (tmp_path / "own.py").write_text("def f():\n    raise BaseException('base')\n")
    assert said(capsys, f"check {tmp_path}/own.py:f").endswith("own.py, line 2: BaseException: base")
