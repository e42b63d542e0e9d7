"""`wafer-triton serve`: its figures, its files, and one clear line for each bad input."""

import csv
import json

import pytest

from wafer_triton.cli import serve
from wafer_triton.cli.main import main

MODEL = ["--model", "smollm2-135m", "--prefill-mesh", "100", "--decode-mesh", "100", "--batch", "4"]
LENGTHS = ["--input", "50:150", "--output", "5:40"]
OPEN = [*LENGTHS, "--rate", "2", "--count", "30"]


def test_figures_are_printed_and_written(tmp_path, capsys):
    out = tmp_path / "run.csv"
    asked = ["serve", *MODEL, *OPEN, "--slo", "ttft=50ms,tpot=1ms", "--out", str(out), "--json"]
    assert main(asked) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out.splitlines()[-1])
    assert found["finished"] == 30 and found["policy"] == {
        "organisation": "shared",
        "chunk": None,
        "quantum": 4096,
        "turns": 64,
    }
    assert found["sizes"]["decode_mesh"] == "100x100" and found["sizes"]["batch"] == 4
    assert 0 < found["ttft"]["p50"] <= found["ttft"]["p90"] <= found["ttft"]["p99"] < found["e2e"]["p99"]
    assert found["goodput"] == pytest.approx(found["good"] * 30 / found["seconds"])
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 30 and sum(int(row["output"]) for row in rows) == pytest.approx(
        found["tokens_per_second"] * found["seconds"]
    )
    assert "smollm2-135m on wse2, policy shared, predicted on the wafer: prefill on " in shown.err
    assert len(found["course"]) == 10 and found["course"][-1]["end"] == pytest.approx(found["seconds"], rel=0.1)
    words = ("cache in use", "TTFT", "TPOT", "ITL", "end to end", "SLO ttft=50ms,tpot=1ms", "energy per token")
    for word in (*words, f"written: {out}"):
        assert word in shown.err
    assert main(asked) == 0 and json.loads(capsys.readouterr().out.splitlines()[-1]) == found, "the same seed"


@pytest.mark.parametrize(
    "more",
    [
        ["--policy", "split", "--columns", "500", *OPEN],
        ["--policy", "replace", *OPEN],
        ["--chunk", "64", "--quantum", "64", "--turns", "3", "--at-once", "2", *OPEN],
    ],
)
def test_policies_serve_all_requests(more, capsys):
    assert main(["serve", *MODEL, *more, "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["finished"] == found["requests"] == 30 and found["refused"] == 0


def test_a_trace_is_replayed_at_its_rate_or_another(tmp_path, capsys):
    trace = tmp_path / "trace.jsonl"
    lines = [{"arrival": 10 + 0.5 * number, "input": 40 + number, "output": 5} for number in range(20)]
    trace.write_text("\n".join(map(json.dumps, [*lines, lines[0] | {"input": 600}])))
    asked = ["serve", *MODEL, "--requests", str(trace), "--context", "200", "--json"]
    for more, seconds in (([], 9.5), (["--rate", "20"], 1.0), (["--count", "11"], 4.5)):
        assert main([*asked, *more]) == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out.splitlines()[-1])["seconds"] == pytest.approx(seconds, rel=0.12)
        assert "refused: 1 requests; of the first: 605 tokens are more than the 200 of the cache" in shown.err
    assert main([*asked, "--count", "22"]) == 2
    assert "--count 22: the trace has 21 requests; give no more" in capsys.readouterr().err


def test_a_rate_that_is_too_high_is_reported_when_asked(capsys):
    assert main(["serve", *MODEL, "--rate", "9999", "--count", "99", *LENGTHS, "--overload", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["requests_per_second"] < 9999


def test_a_long_simulation_reports_its_progress(monkeypatch, capsys):
    monkeypatch.setattr("wafer_triton.cli.serve.MANY", 50)
    for count, lines in ((40, 0), (60, 10)):
        assert main(["serve", *MODEL, *LENGTHS, "--rate", "1", "--count", str(count)]) == 0
        assert capsys.readouterr().err.count("requests: ") == lines


def test_a_csv_of_a_trace_says_how_its_requests_are_numbered(tmp_path, capsys):
    given, made = tmp_path / "given.csv", tmp_path / "made.csv"
    given.write_text("arrival,input,output\n5,64,2\n1,8,3\n")
    assert main(["serve", *MODEL, "--requests", str(given), "--out", str(made)]) == 0
    out = capsys.readouterr().out
    assert f"{made} numbers the requests of {given} in the order of arrival, the first at 0 s" in out
    rows = [line.split(",")[:4] for line in made.read_text().splitlines()]
    assert rows[1:] == [["0", "0.0", "8", "3"], ["1", "4.0", "64", "2"]]


def test_many_chunks_are_reported(capsys, monkeypatch):
    monkeypatch.setattr(serve, "MANY", 4)
    line = "--rate 1 --count 2 --input 9 --output 2 --overload --chunk 1"
    assert main(["serve", *MODEL, *line.split()]) == 0
    said = capsys.readouterr().err
    assert "places: 1 of 1" in said and "requests: 2 of 2" in said
