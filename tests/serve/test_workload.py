"""Requests from traces and from random arrivals, and errors that name the line."""

import random
from dataclasses import astuple
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from wafer_triton.errors import ConfigError, ShapeError
from wafer_triton.serve.report import Slo
from wafer_triton.serve.traces import read_trace
from wafer_triton.serve.workload import (
    Request,
    both,
    fixed,
    length_of,
    poisson,
    rate_of,
    rescaled,
)

ONE = both(fixed(3), fixed(2))


def trace(tmp_path, text, name="trace.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_trace_has_dates_or_seconds_as_csv_or_json_lines(tmp_path):
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:50.9951690,396,109\n"
    azure += "2023-11-16 18:15:46.6805900,374,44\n"
    wanted = [(0, 0.0, 374, 44), (1, pytest.approx(4.314579), 396, 109)]
    found = [astuple(request) for request in read_trace(trace(tmp_path, azure))]
    assert found == wanted, "in the order of arrival, from 0 on"
    plain = "input,output,arrival\n7,8,1.5\n\n1,2,1\n"
    assert read_trace(str(trace(tmp_path, plain))) == [Request(0, 0.0, 1, 2), Request(1, 0.5, 7, 8)]
    lines = '{"arrival": 1, "input": 1, "output": 2}\n\n{"arrival": 1.5, "input": 7, "output": 8, "user": 1}\n'
    assert read_trace(trace(tmp_path, lines, "t.jsonl")) == [Request(0, 0.0, 1, 2), Request(1, 0.5, 7, 8)]


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "columns none; give arrival, input, output, or TIMESTAMP, ContextTokens, GeneratedTokens"),
        ("arrival,input,output\n", "the trace has no request; add a line for each request"),
        ("arrival,input,output\n1,2\n", "line 2: 2 values in 3 columns; mend the line"),
        ("arrival,input,output\n1,2,3\n-1,2,3\n", "line 3: arrival '-1': give 0 to 10,000,000,000 seconds"),
        ("arrival,input,output\nnan,2,3\n", "line 2: arrival 'nan': give 0 to 10,000,000,000 seconds"),
        ("arrival,arrival,input,output\n1,2,3,4\n", "column arrival stands twice; leave one out"),
        ("arrival,input,output\nsoon,2,3\n", "line 2: arrival 'soon': give seconds, or a date such as 2023-11-16"),
        (
            "arrival,input,output\n2024-01-01T00:00:00+02:00,2,3\n2024-01-01T00:00:01,2,3\n",
            "arrival '2024-01-01T00:00:01': dates with an offset from UTC and dates without an offset are mixed",
        ),
        ("arrival,input,output\n2024-01-01,2,3\n5,2,3\n", "dates without an offset and seconds are mixed"),
        ("arrival,input,output\n1,2,2.5\n", "line 2: output '2.5': give a whole number of tokens"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path, text, said):
    with pytest.raises(ConfigError) as error:
        read_trace(trace(tmp_path, text))
    assert str(tmp_path) in str(error.value) and said in str(error.value)


@pytest.mark.parametrize(
    "text, said",
    [
        ("{\n", "line 1: not valid JSON (Expecting property name"),
        ("1\n", "line 1: arrival, input, output missing"),
        ('{"arrival": 0, "input": 1}\n', "line 1: output missing"),
        ('{"arrival": 0, "input": 1, "output": -4}\n', "line 1: output -4: give a whole number of tokens"),
    ],
)
def test_bad_json_lines_are_refused_with_their_line(tmp_path, text, said):
    with pytest.raises(ConfigError) as error:
        read_trace(trace(tmp_path, text, "trace.jsonl"))
    assert said in str(error.value)


@pytest.mark.slow
def test_arrivals_are_a_poisson_process_of_their_rate_and_seed():
    requests = poisson(4.0, 20_000, ONE, seed=1)
    gaps = [b.arrival - a.arrival for a, b in pairwise(requests)]
    assert fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1.0, rel=0.05)
    assert requests == poisson(4.0, 20_000, ONE, seed=1) != poisson(4.0, 20_000, ONE, seed=2)


def test_a_rescaled_trace_keeps_its_lengths_and_its_order():
    requests = poisson(3.0, 50, both(fixed(3), fixed(4)), seed=1)
    fast = rescaled(requests, 12.0)
    assert rate_of(fast) == pytest.approx(12.0) and fast[0].arrival == 0
    assert [(one.input, one.number) for one in fast] == [(one.input, one.number) for one in requests]


def test_lengths_are_drawn_from_their_text():
    source = random.Random(0)
    assert length_of("512")(source) == 512
    assert {length_of("2:4")(source) for _ in range(99)} == {2, 3, 4}


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: length_of("many"), "length 'many': write 512 or 64:1024"),
        (lambda: length_of("9:3"), "lengths of 9 to 3 tokens: the first is the larger; exchange them"),
        (lambda: length_of("0"), "tokens = 0 must be a whole number of at least 1"),
        (lambda: poisson(0, 1, ONE), "rate = 0 must be a number from"),
        (lambda: poisson(1, 0, ONE), "count = 0 must be a whole number of at least 1"),
        (lambda: rescaled([Request(0, 0.0, 1, 1)], 2.0), "1 requests in 0 seconds have no rate; leave --rate out"),
        (lambda: poisson(5, 10**9, ONE), "count = 1,000,000,000 is more than the 1,000,000 requests of one simulation"),
        (lambda: Request(3, 1e18, 1, 1), "request 3: arrival = 1e+18 must be 0 to 10,000,000,000 seconds"),
        (lambda: Request(0, 0.0, 1, 0), "output = 0 must be a whole number of at least 1"),
        (lambda: Slo(ttft=-1), "SLO: ttft = -1 must be a positive number of seconds"),
    ],
)
def test_bad_numbers_are_refused(make, said):
    with pytest.raises((ShapeError, ConfigError)) as error:
        make()
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"arrival,input,output,prompt\n0,1,1," + b"x" * 200_000, "is no CSV (field larger than field limit"),
        (b"arrival,input,output\n0,1," + b"9" * 5000, "line 2: output '999"),
    ],
)
def test_an_odd_file_is_refused(tmp_path, written, said):
    path = tmp_path / "odd.csv"
    path.write_bytes(written)
    with pytest.raises(ConfigError) as refused:
        read_trace(path)
    assert said in str(refused.value)
