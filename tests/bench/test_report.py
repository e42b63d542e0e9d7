"""bench/report: ratios within a group, rows beside others of their group, and files of both kinds."""

import json

import report
import supervise


def measured(row, median, group="one", **facts):
    known = {"what": "MeshGEMM", "mesh": "16x16", "tile": "64x64", "dtype": "bf16", "exchange": row, **facts}
    return {"group": group, "stats": {"median": median}, "extra_info": known}


GPU = {"gpu": "Some GPU", "driver": "1.2", "cuda": "13.0", "torch": "2.11", "triton": "3.6"}
RESULTS = {
    "machine_info": GPU,
    "benchmarks": [
        measured("explicit", 0.002, fraction_of_exchange_limit=0.5, fraction_of_bandwidth=0.55),
        measured("emulation", 0.008),
        measured("blas", 25e-6, what="plain product"),
        measured(
            "explicit",
            0.001,
            "two",
            what="decode layer, llama3-8b",
            tile="",
            whole_step_seconds=0.0125,
            replay_seconds=0.0009,
        ),
        measured("blas", 0.0005, "two", what="decode layer, llama3-8b, plain PyTorch"),
    ],
}


def test_the_table_has_ratios_within_a_group():
    lines = report.table(RESULTS).splitlines()
    assert lines[2] == "| MeshGEMM | 16x16 | 64x64 | bf16 | explicit |  | 2 | 500.0 | 4x | 0.0125x | 55% |"
    assert lines[3].endswith("| 8 | 125.0 |  | 0.00313x |  |") and lines[5].endswith("| 1 | 1,000.0 |  | 0.5x |  |")
    assert lines[-1] == "Emulation time on Some GPU, driver 1.2, CUDA 13.0, torch 2.11, triton 3.6."


def test_a_row_is_beside_cublas_plain_pytorch_and_the_limits():
    assert report.beside(RESULTS).splitlines()[2:4] == [
        "| one | explicit | 2,000 | 25.0 | 8,000 | 1,000 | 0.50 | 1,100 |",
        "| two | explicit | 1,000 |  | 500 |  |  |  |",
    ]  # fmt: skip


def test_a_file_of_a_gpu_is_printed_whole(tmp_path, capsys):
    file = tmp_path / "gpu.jsonl"
    supervise.write(file, **GPU, rows=["a", "b", "c", "tests/gpu"])
    supervise.write(file, begun=["a"], patience=60)
    supervise.write(file, row="a", **RESULTS["benchmarks"][3])
    supervise.write(file, row="tests/gpu", tests="420 passed in 90 s")
    supervise.write(file, row="b", error="no result after 60 s")
    supervise.write(file, row="c", not_measured="the time was up")
    report.main([str(file)])
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| two | explicit | 1,000 |  |  |  |  |  |", "",
        "Emulation time on Some GPU, driver 1.2, CUDA 13.0, torch 2.11, triton 3.6.", "",
        "tests/gpu: 420 passed in 90 s", "two, explicit: 12,500 us with the host's part",
        "two, explicit: 900 us the replay alone",
        "failed: b: no result after 60 s", "not measured: c: the time was up",
    ]  # fmt: skip


def test_a_file_of_pytest_benchmark_is_read(tmp_path):
    (tmp_path / "cpu.json").write_text(json.dumps(RESULTS))
    assert report.load(tmp_path / "cpu.json") == RESULTS
