"""The choice between ways to launch a kernel."""

import json
from pathlib import Path

import pytest
import torch
import triton

from wafer_triton.kernels import Operand, find, untimed
from wafer_triton.kernels._common import compiling
from wafer_triton.kernels.fused import run

WAYS = [{"BLOCK_M": 16}, {"BLOCK_M": 32}, {"BLOCK_M": 64}]


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Patch a GPU on which launches take the seconds of the returned list, and count trials."""
    seconds, tried = [3.0, 1.0, 2.0], []

    def bench(launch, warmup, rep):
        launch()
        return seconds[WAYS.index(tried[-1])]

    monkeypatch.setattr(untimed, "INTERPRET", False)
    monkeypatch.setenv("WAFER_TRITON_CACHE", str(tmp_path))
    monkeypatch.setenv("WAFER_TRITON_TUNE", "1")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(triton.testing, "do_bench", bench)
    untimed._read.cache_clear()
    yield tried
    untimed._read.cache_clear()


def choose(tried, device="cuda", key=("elided", 64)):
    return untimed.best(key, WAYS, tried.append, torch.device(device))


def test_the_fastest_way_is_found_once_and_kept_on_disk(gpu, tmp_path):
    assert choose(gpu) == WAYS[1] and gpu == WAYS * 2, "two trials, which agree"
    assert choose(gpu) == WAYS[1] and len(gpu) == 6, "known"
    (path,) = tmp_path.iterdir()
    assert path.name == f"tuned-NVIDIA-H200-triton-{triton.__version__}.json"
    assert json.loads(path.read_text()) == {"elided 64": WAYS[1]}
    path.write_text(json.dumps({"elided 64": WAYS[2]}))
    untimed._read.cache_clear()
    assert choose(gpu) == WAYS[2] and len(gpu) == 6, "from the file"


@pytest.mark.parametrize("damaged", ["", "{", "[1]", '{"elided 64": {"BLOCK_M": 7}}'])
def test_a_file_that_is_damaged_or_of_other_ways_is_found_anew(gpu, tmp_path, damaged):
    choose(gpu)
    (path,) = tmp_path.iterdir()
    path.write_text(damaged)
    untimed._read.cache_clear()
    assert choose(gpu) == WAYS[1] and len(gpu) == 12


def test_where_nothing_can_be_written_the_choice_lasts_as_long_as_the_process(gpu, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("WAFER_TRITON_CACHE", str(tmp_path / "file"))
    assert choose(gpu) == choose(gpu) == WAYS[1] and len(gpu) == 6


def test_nothing_is_tried_when_it_is_off_or_a_graph_is_recorded(gpu, monkeypatch):
    assert choose(gpu, device="cpu") == WAYS[0]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert choose(gpu) == WAYS[0]
    monkeypatch.setenv("WAFER_TRITON_TUNE", "0")
    assert choose(gpu) == WAYS[0]
    assert gpu == []


def test_a_trial_is_repeated_until_two_in_a_row_agree():
    """Check a GPU that wakes up, whose first trial favours the later ways."""
    asked, fastest = [], iter([2, 1, 1, 0])

    def milliseconds(way, rep):
        asked.append(rep)
        if way == WAYS[0]:
            milliseconds.best = next(fastest)
        return float(way != WAYS[milliseconds.best])

    assert untimed.stable(WAYS, milliseconds) == WAYS[1]
    assert asked[::3] == [*untimed.TRIALS[:3]], "and each trial is as long as the one before, or longer"


def test_while_kernels_are_compiled_ahead_all_ways_are_and_none_is_tried(gpu):
    with compiling():
        assert choose(gpu) == WAYS[0]
    assert gpu == WAYS[1:], "the caller launches the first"


def test_while_kernels_are_compiled_ahead_a_known_way_is_the_only_one(gpu):
    assert choose(gpu) == WAYS[1]
    gpu.clear()
    with compiling():
        assert choose(gpu) == WAYS[1]
    assert gpu == [], "the caller launches it"


def test_an_interrupted_write_leaves_the_choices_on_disk(gpu, tmp_path, monkeypatch):
    choose(gpu)
    (path,) = tmp_path.iterdir()
    write, known = Path.write_text, path.read_text()

    def interrupted(path, text):
        write(path, text[:9])
        raise OSError

    monkeypatch.setattr(Path, "write_text", interrupted)
    choose(gpu, key=("elided", 128))
    assert path.read_text() == known


@pytest.mark.parametrize(
    "refusal",
    [
        triton.runtime.errors.OutOfResources(300_000, 232_448, "shared memory"),
        triton.runtime.errors.PTXASError("shared memory"),
        torch.cuda.OutOfMemoryError("shared memory"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_way_that_does_not_fit_is_passed_over(refusal):
    def milliseconds(way, rep):
        if way["BLOCK_M"] > 16:
            raise refusal
        return 1.0

    assert untimed.stable(WAYS[::-1], milliseconds) == WAYS[0]
    with pytest.raises(type(refusal), match="shared memory"):
        untimed.stable(WAYS[1:], milliseconds)


@pytest.mark.slow
def test_the_ways_of_a_product_have_the_same_bits():
    torch.manual_seed(0)
    x, w, *outs = (Operand(torch.randn(3 * numel), 0, numel) for numel in (37, 37 * 96, *[96] * 6))
    product = find("gemm").fused((x,), (x, w), m=1, k=37, n=96)
    ways = untimed.product_ways(37, 96, product.sizes.BLOCK_K.value)
    for way, out in zip(ways, outs, strict=False):
        run([untimed.with_way(product, way)._replace(args=(out, x, w))], torch.arange(3, dtype=torch.int32))
    found = [out.tensor for out in outs[: len(ways)]]
    assert len(found) >= 4 and all(torch.equal(one, found[0]) for one in found) and found[0].all()
    assert {way["BLOCK_N"] for way in ways} == {32, 128}, "columns without masks, and whole rows"
