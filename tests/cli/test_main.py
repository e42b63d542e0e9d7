"""The command line, exit codes, and imports: light commands do not import torch."""

import os
import subprocess
import sys

import pytest

import commands
from wafer_triton.cli.main import main
from wafer_triton.device import PRESETS


def test_before_ranks_join_only_rank_0_prints_an_error(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, prints in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)
        assert main(["fly"]) == 2
        assert ('Unknown command "fly"' in capsys.readouterr().err) is prints


def test_a_rank_without_peers_prints_the_error_itself(capsys, monkeypatch):
    def gone(*_):
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("wafer_triton.emulate.ranks.group.set_once", gone)
    assert main(["fly"]) == 2
    assert 'Unknown command "fly"' in capsys.readouterr().err


def test_devices(capsys):
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in PRESETS) and "750 x 994" in out and "48 KiB" in out
    listed, _ = commands.answer("devices", capsys)
    assert [device["name"] for device in listed] == list(PRESETS)
    assert listed[0]["sram_bytes"] == 48 * 1024


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_have_exit_code_0(capsys, flag):
    assert main([flag]) == 0
    assert "wafer-triton" in capsys.readouterr().out


@pytest.mark.slow
def test_light_commands_import_nothing_heavy():
    lines = (
        "devices", "devices --json", "estimate decode --model smollm2-135m --mesh 32",
        "estimate request --model smollm2-135m,layers=1 --prefill-mesh 32 --decode-mesh 32 --input 64 --output 8",
        "generate --help", "--help",
    )  # fmt: skip
    code = f"""
import sys
from wafer_triton.cli.main import main
for heavy in ("torch", "transformers", "triton", "safetensors"):
    sys.modules[heavy] = None  # an import fails
for line in {lines!r}:
    assert main(line.split()) == 0, line
    assert "--help" in line or "rich" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_closed_pipe_ends_the_command_with_exit_code_141():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "wafer_triton", "devices"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_every_command_has_its_help_and_json(capsys):
    known = commands.options()
    assert len(known) <= 16
    for name in known:
        assert "--json" in known[name] and main([*name.split(), "--help"]) == 0
        out = capsys.readouterr().out
        assert "--json" in out and "ARGS" not in out, name


def test_help_ends_on_a_terminal_of_two_columns():
    limits = "import resource as r; r.setrlimit(r.RLIMIT_CPU, (20, 20)); r.setrlimit(r.RLIMIT_AS, (2**33, 2**33)); "
    code = limits + "from wafer_triton.cli.main import main; main(['plan', '--help'])"
    environment = {**os.environ, "COLUMNS": "2"}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "--model" in shown.stdout


def test_the_package_is_the_command_line():
    done = subprocess.run([sys.executable, "-m", "wafer_triton", "fly"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("wafer-triton: error: ")


def test_devices_shows_a_device_with_the_source_of_each_number(capsys):
    shown, err = commands.answer("devices wse2", capsys)
    assert (shown["name"], shown["like"]) == ("wse2", "wse2")
    rows = shown["numbers"]["rows"]
    assert (rows["value"], rows["kind"]) == (750, "data sheet") and "Cerebras" in rows["source"]
    assert shown["constants"]["k_step_cycles"]["standard_error"] > 0
    lines = {line.split()[0]: line for line in reversed(err.splitlines()) if line.strip()}  # the first of a name
    assert "data sheet" in lines["rows"] and "fitted" in lines["k_step_cycles"] and "49,152" in lines["sram_bytes"]
    assert "shares of a peak are taken" in err
