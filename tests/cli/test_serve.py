"""`wafer-triton serve`: its figures, its files, and one clear line for each bad input."""

import csv
import json

import pytest

from commands import answer, refused
from wafer_triton.cli import serve

SERVE = "serve --model smollm2-135m --prefill-mesh 100 --decode-mesh 100 --batch 4"
LENGTHS = "--input 50:150 --output 5:40"
OPEN = f"{LENGTHS} --rate 2 --count 30"


def test_figures_are_printed_and_written(tmp_path, capsys):
    out = tmp_path / "run.csv"
    asked = f"{SERVE} {OPEN} --slo ttft=50ms,tpot=1ms --out {out}"
    found, shown = answer(asked, capsys)
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
    assert "smollm2-135m on wse2, policy shared, predicted on the wafer: prefill on " in shown
    assert len(found["course"]) == 10 and found["course"][-1]["end"] == pytest.approx(found["seconds"], rel=0.1)
    words = ("cache in use", "TTFT", "TPOT", "ITL", "end to end", "SLO ttft=50ms,tpot=1ms", "energy per token")
    for word in (*words, f"written: {out}"):
        assert word in shown
    assert answer(asked, capsys)[0] == found, "the same seed"


@pytest.mark.parametrize(
    "more",
    [
        "--policy split --columns 500",
        "--policy replace",
        "--chunk 64 --quantum 64 --turns 3 --at-once 2",
    ],
)
def test_policies_serve_all_requests(more, capsys):
    found, _ = answer(f"{SERVE} {OPEN} {more}", capsys)
    assert found["finished"] == found["requests"] == 30 and found["refused"] == 0


def test_a_trace_is_replayed_at_its_rate_or_another(tmp_path, capsys):
    trace = tmp_path / "trace.jsonl"
    lines = [{"arrival": 10 + 0.5 * number, "input": 40 + number, "output": 5} for number in range(20)]
    trace.write_text("\n".join(map(json.dumps, [*lines, lines[0] | {"input": 600}])))
    asked = f"{SERVE} --requests {trace} --context 200"
    for more, seconds in (("", 9.5), ("--rate 20", 1.0), ("--count 11", 4.5)):
        found, shown = answer(f"{asked} {more}", capsys)
        assert found["seconds"] == pytest.approx(seconds, rel=0.12)
        assert "refused: 1 requests; of the first: 605 tokens are more than the 200 of the cache" in shown
    assert "--count 22: the trace has 21 requests; give no more" in refused(f"{asked} --count 22", capsys)


def test_a_rate_that_is_too_high_is_reported_when_asked(capsys):
    found, _ = answer(f"{SERVE} --rate 9999 --count 99 {LENGTHS} --overload", capsys)
    assert found["requests_per_second"] < 9999


def test_a_long_simulation_reports_its_progress(monkeypatch, capsys):
    monkeypatch.setattr("wafer_triton.cli.serve.MANY", 50)
    for count, lines in ((40, 0), (60, 10)):
        _, shown = answer(f"{SERVE} {LENGTHS} --rate 1 --count {count}", capsys)
        assert shown.count("requests: ") == lines


def test_a_csv_of_a_trace_says_how_its_requests_are_numbered(tmp_path, capsys):
    given, made = tmp_path / "given.csv", tmp_path / "made.csv"
    given.write_text("arrival,input,output\n5,64,2\n1,8,3\n")
    _, shown = answer(f"{SERVE} --requests {given} --out {made}", capsys)
    assert f"{made} numbers the requests of {given} in the order of arrival, the first at 0 s" in " ".join(
        shown.split()
    )
    rows = [line.split(",")[:4] for line in made.read_text().splitlines()]
    assert rows[1:] == [["0", "0.0", "8", "3"], ["1", "4.0", "64", "2"]]


def test_many_chunks_are_reported(capsys, monkeypatch):
    monkeypatch.setattr(serve, "MANY", 4)
    _, said = answer(f"{SERVE} --rate 1 --count 2 --input 9 --output 2 --overload --chunk 1", capsys)
    assert "places: 1 of 1" in said and "requests: 2 of 2" in said
