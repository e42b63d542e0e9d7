"""Mistakes of a user on the command line: one line on stderr with fault, place and remedy, before anything slow."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from wafer_triton.cli.main import judged as judge
from wafer_triton.cli.main import main
from wafer_triton.errors import ConfigError

SWEEP = "sweep gemv --set n=48 --set mesh=8 --over"
DECODE = "sweep decode --set model=smollm2-135m --set mesh=64"
GEMM = "--m 64 --k 64 --n 64 --mesh"


@pytest.fixture
def wrong(capsys, tmp_path, monkeypatch):
    """Run a line that is a mistake in a folder of its own; its one line on stderr."""
    monkeypatch.chdir(tmp_path)

    def run(line):
        code = main(shlex.split(line))
        out, err = capsys.readouterr()
        assert (code, out) == (2, ""), line
        assert err.startswith("wafer-triton: error: ") and err.count("\n") == 1, err
        return err

    return run


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"compare gemm {GEMM} 499x503", "250,997 x 250,997 with 250,997 logical cores on each core"),
        (f"compare gemm {GEMM} 499x503", "at most 2,048 a side and 256 on a core are taken"),
        (f"estimate product {GEMM} 97x101", "or a square mesh such as 97x97"),
        ("check --model smollm2-135m --mesh 31x37 --tokens 8", "mesh 31x37: products of matrices fold it"),
        ("compare gemm --m 100000 --k 100000 --n 100000 --mesh 64 --values", "30,000,000,000 numbers are more than"),
        ("compare gemm --m 1000000 --k 1000000 --n 1000000 --mesh 1", "a core would hold more than a TiB"),
        ("check --model smollm2-135m --tokens 1000000000", "a layer of smollm2-135m on mesh 16x16: a core would hold"),
        (
            "estimate product --m 99999999999999 --k 1 --n 1 --mesh 4",
            'Invalid value "99999999999999" for --m. Must be <= 1000000000.',
        ),
        ("estimate product --m 0 --k 1 --n 1 --mesh 4", 'Invalid value "0" for --m. Must be > 0.'),
        (f"{SWEEP} k=1e400", "'k=1e400': 'inf' is no value"),
        (f"{SWEEP} k=1.5", "k = 1.5"),
        (f"{SWEEP} groups=1,2 --set k=0", "k = 0 must be a whole number of at least 1"),
        (f"{SWEEP} k=8 --out /nowhere/x.csv", "/nowhere/x.csv: No such file or directory"),
        (f"{SWEEP} k=8 --out /dev/full", "/dev/full: No space left on device"),
        ("generate --model x --prompt a --routing-out notes.md", "--routing-out notes.md: does not end in .json"),
        ("check --model ''", "model ''"),
        ("estimate decode --model '' --mesh 4", "model ''"),
        ("generate --model '' --prompt a", "checkpoint ''"),
        ("check --model ./none/config.json", "./none/config.json: there is no such file or folder"),
        ("estimate decode --model none/config.json --mesh 4", "none/config.json: there is no such file or folder"),
        (
            "estimate decode --model meta-llama/Llama-3.1-8B --mesh 360 --context 1",
            "model 'meta-llama/Llama-3.1-8B' is no folder here, and names on a hub are not fetched; give a published "
            "name, or the folder of a download with its config.json",
        ),
        ("generate --model none/x --prompt a", "none/x: there is no such folder"),
        ("generate --model llama3-8b --prompt a", "llama3-8b: its shape is known, its weights are not"),
        ("check --model .", ".: no config.json"),
        ("check", "give one of them: --model NAME|PATH for a decoder, or FILE.py:FUNCTION"),
        ("generate --model x --prompt 'a\udce9b'", "--prompt 'a\\udce9b': is not UTF-8 text (at character 1)"),
        (f"{SWEEP} k=8 --out config.json", "--out config.json: does not end in .csv"),
        (f"{SWEEP} k=8 --set device=wse3", "--set device=wse3: use --device"),
        (
            f"{DECODE} --over context=8 --set head_groups=x",
            "head_groups = 'x', but 9 query heads",
        ),
        (f"{DECODE} --over head-groups=0 --set context=8", "head_groups = 0, but 9 query heads on 64 columns"),
        ("cap", "give the files of runs"),
        ("cap run.json --watts 0", 'Invalid value "0.0" for --watts'),
        ("cap run.json --watts x", "value for --watts: unable to convert"),
        ("compare gemv --k 1000000000 --n 1000000000 --mesh 1", "numbers"),
        ("estimate product --m 8 --k 8 --n 8 --mesh 4 --device WSE2", "unknown device 'WSE2'"),
        (f"{SWEEP} hop_cycles=1e300 --set k=48", "hop_cycles = 1e+300"),
        ("estimate decode --model /proc/self/mem --mesh 4", "/proc/self/mem: Input/output error"),
        ("estimate decode --model /dev/null --mesh 4", "error: /dev/null: is no regular file"),
        ("estimate decode --model smollm2-135m --mesh 8 --context 8 --experts regions", "estimate decode --help`"),
        ("devices --device wse2", "Unknown option: --device. See `wafer-triton devices --help`"),
        (
            f"estimate product {GEMM} 8 --routes 3",
            "option: --routes. Did you mean --groups? See `wafer-t",
        ),
        (f"{SWEEP} k=-16,0", "k = -16"),
        (f"{SWEEP} groups=999 --set k=64", "groups"),
        (
            "estimate decode --model olmoe-1b-7b --mesh 360 --context 512 --batch 1000000 --routing uniform",
            "batch = 1,000,000 is more than",
        ),
        ("estimate decode --model llama3-8b --mesh 360 --context 8 --routing 1.5", "llama3-8b has no experts, so that"),
        (
            "estimate decode --model /dev/zero --mesh 8 --context 8",
            "/dev/zero: is no regular file",
        ),
        ("cap run.json --accuracy nan", "--accuracy nan is not a finite number"),
        ("generate --model x --prompt a --profile /nodir/p.json", "/nodir/p.json: No such file or directory"),
        ("generate --model x --prompt a --routing-out /nodir/p.json", "/nodir/p.json: No such file or directory"),
        (
            "estimate decode --model mixtral-8x7b --mesh 360 --context 8",
            "46,702,792,704 weights take 93,405,585,408 B in fp16",
        ),
        ("plan --model llama3-8b --input 1 --output 1 --step 0", 'Invalid value "0" for --step'),
        ("plan --model llama3-8b --input 1 --output 1 --head-groups 33", "head_groups = 33, but 32 query heads on 740"),
    ],
)
def test_a_mistake_is_one_line(wrong, line, message):
    assert message in wrong(line)


def test_a_pipe_that_nothing_writes_is_not_waited_for(wrong, tmp_path):
    os.mkfifo(tmp_path / "config.json")
    for line in ("estimate decode --mesh 8 --context 8 --model", "generate --prompt a --model", "check --model"):
        assert "config.json" in wrong(f"{line} {tmp_path}")


def test_the_size_of_a_read_file_is_bounded(wrong, tmp_path, monkeypatch):
    monkeypatch.setattr("wafer_triton.text.files.read_text.__defaults__", (ConfigError, 100))
    (tmp_path / "config.json").write_text(" " * 101)
    assert "has more than the 100 B that are read here; give a shorter file" in wrong(f"check --model {tmp_path}")


RUN = {"cap": {"decode": {"tokens_per_second": -3}}, "predicted": {"decode": {}}, "device": "wse2", "tokens": [1]}


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK"])
def test_a_number_of_torchrun_that_is_none(wrong, monkeypatch, name):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(name, "x")
    assert f"{name} = 'x' in the environment must be a whole number, as torchrun sets it" in wrong("devices")


@pytest.mark.parametrize("speed", [-3, 0, None, True, "9", float("inf")])
def test_a_record_whose_speed_is_none_is_refused(wrong, tmp_path, speed):
    record = RUN | {"cap": {"decode": {"tokens_per_second": speed}}}
    (tmp_path / "g.json").write_text(json.dumps(record))
    assert f"tokens_per_second = {speed!r} is not positive" in wrong("cap g.json")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("estimate decode --model llama3-8b --mesh 360 --context 20000", "20,000 tokens are more than"),
    ],
)
def test_a_command_prints_the_program_it_prices(capsys, line, said):
    assert main(shlex.split(line)) == 0
    assert said in capsys.readouterr().out


def test_a_large_product_is_compared_without_values(capsys):
    assert main(shlex.split("compare gemm --m 100000 --k 100000 --n 100000 --mesh 8")) == 0
    assert "largest error -: values were not computed" in capsys.readouterr().out


@pytest.mark.parametrize(("step", "sides"), [(1, 8), (8, 1)])
def test_a_plan_reports_its_meshes(capsys, step, sides):
    line = f"plan --model smollm2-135m --device wse2,rows=8,cols=8 --input 1 --output 1 --step {step}"
    assert main(shlex.split(line)) == 2  # it holds no such model
    assert f"meshes of prefill: {sides} of {sides}" in capsys.readouterr().err


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
    said = "wafer-triton: error: transformers cannot read the given file: KeyError: 'added_tokens'; give another file"
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


def test_routes_of_packets_are_offered(tmp_path, capsys):
    (tmp_path / "d.toml").write_text('like = "wse2"\nroutes = "packet"\n')
    assert main(["devices", str(tmp_path / "d.toml")]) == 2
    assert (
        "routes = 'packet' is a text; give a number, its unit in the key (routes), or 'packets' for routed packets"
        in capsys.readouterr().err
    )


def test_a_list_is_no_trace_of_experts(tmp_path, capsys):
    (tmp_path / "r.json").write_text(json.dumps([]))
    line = f"estimate decode --model olmoe-1b-7b --mesh 360 --context 8 --routing {tmp_path}/r.json"
    assert main(line.split()) == 2
    assert 'holds a list, not a trace {"experts": [...]}' in capsys.readouterr().err


def test_a_device_that_is_swept_twice_is_named(tmp_path, capsys):
    sizes = "--set m=64 --set k=64 --set n=64 --over device=wse2,wse2"
    line = f"sweep gemm {sizes} --over mesh=4,8 --out {tmp_path}/s.csv"
    assert main(line.split()) == 2
    assert "sweep over device: wse2 comes twice; give each value once" in capsys.readouterr().err


LINES = {
    "estimate product --m 8 --k 8 --n 8 --mesh 2 --mesh 3": "Parameter --mesh specified multiple times. See",
    "estimate product --m 8 --k 8 --n 8 --mehs 2": "Give --mesh. No option or argument takes '--mehs 2'. See",
    "check schedule own.py:f": "No option or argument takes 'own.py:f'. See `wafer-triton check --help`",
    "estimate decode --model llama3-8b --mesh 360 --context 1.5": "Invalid value for --context: '1.5' is no whole",
    "serve --model smollm2-135m --prefill-mesh 9 --decode-mesh 9 --rate 3 --input 1.5 --output 8": "length '1.5': ",
    "devices wse2,link_bytes_per_cycle=1e-300": "link_bytes_per_cycle = 1e-300 must be a number from 1e-09 to",
    "serve --model smollm2-135m --rate 3 --input 8 --output 8 --policy split --columns 993": "993 of them for prefill",
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_command_line_ends_in_a_remedy(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    assert LINES[line] in capsys.readouterr().err


def test_a_rank_beyond_their_number_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "5")
    assert main(["estimate", "product", "--k", "8", "--n", "8", "--mesh", "2"]) == 2
    assert "RANK = 5 of WORLD_SIZE = 2 in the environment: ranks count from 0" in capsys.readouterr().err
