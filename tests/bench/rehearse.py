"""The command `python bench/gpu.py`, rehearsed on a CPU with real tests and suites: `make rehearse`.

It takes minutes and times everything, so `make test` has its parts instead: test_gpu.py the command without its work,
test_suites.py a case of each suite.
"""

import json
from pathlib import Path

import cases
import gpu


def test_the_one_command_rehearsed(tmp_path, capsys):
    code = gpu.main(["--rehearse", "--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    last = json.loads(lines[-1])
    assert code == 0, [line for line in lines if not line.startswith("|")]
    assert last["tests_passed"] and last["failed"] == [] and last["not_measured"] == 0
    results = json.loads(Path(last["results"]).read_text())
    assert len(results["benchmarks"]) == last["measured"] > 40
    rows = {record["extra_info"]["exchange"] for record in results["benchmarks"]}
    assert rows == {*cases.ROWS, *cases.CALLS, "copy", "transformers"}
    for record in results["benchmarks"]:
        facts = record["extra_info"]
        if "fraction_of_bandwidth" not in facts:  # of a whole model
            assert facts["checked"] and facts["what"].endswith("sizes"), record["name"]
            continue
        assert 0 < facts["fraction_of_bandwidth"] < 2 and facts["sets"] >= 1 and facts["checked"], record["name"]
        assert facts["exchanged_bytes"] > 0 or facts["exchange"] not in ("explicit", "emulation"), record["name"]
    assert len(list(tmp_path.glob("rehearsal-*.svg"))) == len(list(tmp_path.glob("rehearsal-*.png"))) == 3
