"""`make rehearse`: `python bench/gpu.py` with small rows on the CPU."""

import pytest

import bench_estimate
import bench_generate
import cases
import gpu
import report


@pytest.mark.slow
def test_every_kind_of_row_runs_and_is_written(tmp_path, capsys):
    code = gpu.main(["--rehearse", "--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0, lines
    (file,) = tmp_path.iterdir()
    results = report.load(file)
    assert results["failed"] == results["not_measured"] == {}
    assert lines[-1] == f"send {file}" and report.beside(results).splitlines()[-1] in lines
    assert len(results["benchmarks"]) == len(results["machine_info"]["rows"]) > 20
    rows = {record["extra_info"]["exchange"] for record in results["benchmarks"]}
    assert rows == {*cases.ROWS, *cases.CALLS, "copy", "transformers", bench_generate.GRAPH}
    for record in results["benchmarks"]:
        facts, seconds = record["extra_info"], record["stats"]["median"]
        assert facts["checked"] and 0 < record["stats"]["min"] <= seconds, record["name"]
        if facts["what"].endswith("sizes"):  # a whole model
            continue
        moved = facts["exchanged_bytes"] / facts.get("limit_exchange_bytes_per_second", 1)
        moved += facts["other_bytes"] / facts["limit_copy_bytes_per_second"]
        assert facts["fraction_of_bandwidth"] == pytest.approx(moved / seconds) and facts["sets"] >= 1, record["name"]
        moves = facts["exchange"] in ("explicit", "emulation", "copy", "public call, explicit")
        assert (facts["exchanged_bytes"] > 0) == moves, record["name"]


def test_a_first_estimate_is_timed_without_kept_results():
    bench_estimate.decode_layer()
    assert all(bench_estimate.KEPT)
    bench_estimate.forget()
    assert not any(bench_estimate.KEPT)
