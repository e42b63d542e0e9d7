"""A strict reader of traces in the Trace Event format ("Trace Event Format", Google, 2016)."""

from itertools import pairwise
from numbers import Real

# The format by phase: the fields of an event and their types.
FIELDS = {
    "X": {"name": str, "cat": str, "ts": Real, "dur": Real, "pid": int, "tid": int, "args": dict},
    "C": {"name": str, "ts": Real, "pid": int, "args": dict},
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
}


def read(events):
    """Read a trace as Perfetto does, in nanoseconds: names come first, and slices of a track follow one another.

    Returns the processes by name, each with its tracks by name, each a list of (start, end, name) in order.
    """
    processes, threads, tracks = {}, {}, {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            assert event["pid"] not in processes, "a process has one name"
            processes[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "M" and event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            assert event["pid"] in processes and (event["pid"], event["tid"]) in threads, "names come first"
            start, long = (round(1000 * event[name]) for name in ("ts", "dur"))
            assert abs(start - 1000 * event["ts"]) < 0.01, "a time is a whole number of nanoseconds"
            tracks.setdefault((event["pid"], event["tid"]), []).append((start, start + long, event["name"]))
    assert len(set(processes.values())) == len(processes)
    for number, slices in tracks.items():
        slices.sort(key=lambda each: each[:2])
        assert all(before[1] <= after[0] for before, after in pairwise(slices)), threads[number]
    return {
        name: {threads[number]: slices for number, slices in tracks.items() if number[0] == pid}
        for pid, name in processes.items()
    }
