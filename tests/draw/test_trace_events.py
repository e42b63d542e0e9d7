"""Traces obey the Trace Event format, and their durations add up to the price."""

import json
from dataclasses import replace
from itertools import pairwise
from numbers import Real

import pytest

from schedules import LAYERS, build, squares
from wafer_triton import draw
from wafer_triton.algorithms.product import recipe
from wafer_triton.cost.price import intervals, price
from wafer_triton.count.account import account
from wafer_triton.device.mesh import Mesh
from wafer_triton.draw.trace_events import TRACKS, bounded
from wafer_triton.draw.trace_file import MEANING
from wafer_triton.errors import DrawError, ShapeError

SCHEDULES = {
    **{algorithm: squares(Mesh(4, 4), algorithm) for algorithm in ("mesh", "summa")},
    "gemv": recipe("gemv", Mesh(5, 4), "fp32", ((1, 12), (12, 12)), ()).schedule,
    "prefill": build(LAYERS["prefill-attention"], "3x3", "fp16"),
}


# The Trace Event format (Google, 2016) by the phase of an event: the fields and their types.
FIELDS = {
    "X": {"name": str, "cat": str, "ts": Real, "dur": Real, "pid": int, "tid": int, "args": dict},
    "C": {"name": str, "ts": Real, "pid": int, "args": dict},
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
}


def check_tracks(events):
    """Check that names come first and once, times are whole nanoseconds, and slices of a track follow one another."""
    processes, threads, tracks = {}, set(), {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            assert event["pid"] not in processes
            processes[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "M" and event["name"] == "thread_name":
            threads.add((event["pid"], event["tid"]))
        elif event["ph"] == "X":
            track = event["pid"], event["tid"]
            assert event["pid"] in processes and track in threads
            start, long = (round(1000 * event[name]) for name in ("ts", "dur"))
            assert abs(start - 1000 * event["ts"]) < 0.01
            tracks.setdefault(track, []).append((start, start + long))
    assert len(set(processes.values())) == len(processes)
    for slices in tracks.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(slices)))


def written(schedule, path, **more):
    draw.perfetto(schedule, path, **more)
    return json.loads(path.read_text())


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_trace_obeys_the_format_and_adds_up_to_the_price(schedule, tmp_path):
    whole = written(schedule, tmp_path / "run.json")
    assert whole["displayTimeUnit"] in ("ms", "ns") and whole["otherData"]["times"] == MEANING
    for event in whole["traceEvents"]:
        fields = FIELDS[event["ph"]]
        assert event.keys() == fields.keys() | {"ph"}
        assert all(isinstance(event[name], kind) for name, kind in fields.items())
        assert event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0
        assert event["ph"] != "C" or all(isinstance(value, Real) for value in event["args"].values())
    cost = price(schedule)
    lasting = {track: [e for e in whole["traceEvents"] if e.get("cat") == track] for track in TRACKS}
    predicted = (cost.cycles, cost.cycles, cost.compute_cycles, cost.communication_cycles, cost.link_cycles)
    for track, cycles in zip(TRACKS, predicted, strict=True):
        rounding = 1e-3 * len(lasting[track])  # a viewer's time is of thousandths
        assert sum(event["dur"] for event in lasting[track]) == pytest.approx(cycles, abs=rounding)
    check_tracks(whole["traceEvents"])
    assert sum(event["args"]["bytes over links"] for event in lasting["runs of rounds"]) == account(schedule).link_bytes
    held = [sum(event["args"].values()) for event in whole["traceEvents"] if event["name"].startswith("SRAM")]
    assert max(held) == account(schedule).sram_peak_bytes


def test_several_schedules_are_processes_with_short_names_and_numbers_on_every_slice(tmp_path):
    chosen = {name: SCHEDULES[name] for name in ("mesh", "summa")}
    whole = written(chosen, tmp_path / "run.json")
    names = {e["pid"]: e["args"]["name"] for e in whole["traceEvents"] if e["name"] == "process_name"}
    assert names == {1: "mesh", 2: "summa"}
    for number, (name, schedule) in enumerate(chosen.items(), 1):
        cost, slices = price(schedule), [e for e in whole["traceEvents"] if e["ph"] == "X" and e["pid"] == number]
        assert whole["otherData"]["processes"][name]["cycles"] == cost.cycles
        assert all(
            {"cores", "hops", "bytes over links", "cycles", "cycles of set-up"} <= e["args"].keys() for e in slices
        )
        steps = [e["args"] for e in slices if e["cat"] == "steps"]
        assert sum(of["cycles"] for of in steps) == pytest.approx(cost.cycles)
        for bound, cycles in cost.bounds.items():
            assert sum(of[f"cycles of {bound}"] for of in steps) == pytest.approx(cycles, abs=1e-6)
        totals = [e["args"]["bytes"] for e in whole["traceEvents"] if "in all" in e["name"] and e["pid"] == number]
        assert max(totals) == account(schedule).sram_peak_bytes


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_intervals_follow_one_another_to_the_price(schedule):
    placed = intervals(schedule)
    assert [each.first for each in placed[1:]] == [each.last + 1 for each in placed[:-1]]
    assert placed[-1].last == len(schedule.rounds) - 1
    assert all(after.start == before.end for before, after in pairwise(placed))
    assert placed[-1].end == pytest.approx(price(schedule).cycles)


def test_a_long_trace_is_bounded_and_still_adds_up(tmp_path):
    schedule = SCHEDULES["mesh"]
    placed = intervals(schedule)
    few = bounded(placed, 3)
    assert len(few) == 3 < len(placed)
    assert (few[0].first, few[-1].last) == (0, len(schedule.rounds) - 1)
    assert sum(each.cost.cycles for each in few) == pytest.approx(price(schedule).cycles)
    events = written(schedule, tmp_path / "run.json", most=3)["traceEvents"]
    assert sum(event.get("cat") == "runs of rounds" for event in events) == 3


def test_a_trace_of_no_runs_is_refused(tmp_path):
    with pytest.raises(ShapeError, match="most = 0 must be a whole number of at least 1"):
        draw.perfetto(SCHEDULES["mesh"], tmp_path / "run.json", most=0)


def test_a_schedule_without_rounds_has_no_trace(tmp_path):
    with pytest.raises(DrawError, match="a trace of a schedule without rounds has nothing to show"):
        draw.perfetto(replace(SCHEDULES["mesh"], rounds=()), tmp_path / "run.json")
    assert list(tmp_path.iterdir()) == []
