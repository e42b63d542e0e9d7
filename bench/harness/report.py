"""A results file as a Markdown table: python bench/harness/report.py bench/results/local.json

A file of a GPU gets the table with which `python bench/gpu.py` ends: each row on a mesh beside cuBLAS, beside plain
PyTorch, and beside the exchange limit.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from supervise import read

FACTS = ("what", "mesh", "tile", "dtype", "exchange", "rounds")
NUMBERS = ("median (ms)", "per second", "to emulation", "to BLAS", "of bandwidth")
PLAIN = ("emulation", "plain PyTorch", "transformers")  # rows of plain PyTorch, which need no mesh
Row = dict[str, Any]


def load(file: Path) -> Row:
    """Return the results of a file: of pytest-benchmark, or of bench/gpu.py, a line of JSON each row."""
    if file.suffix != ".jsonl":
        results: Row = json.loads(file.read_text())
        return results
    head, *lines = read(file)
    return {
        "machine_info": head,
        "benchmarks": [line for line in lines if "stats" in line],
        "tests": {line["row"]: line["tests"] for line in lines if "tests" in line},
        "failed": {line["row"]: line["error"] for line in lines if "error" in line},
        "not_measured": {line["row"]: line["not_measured"] for line in lines if "not_measured" in line},
    }


def table(results: Row) -> str:
    """Return one row a benchmark; times are emulation times of the machine that the last line names.

    "to emulation" and "to BLAS" are the speed in units of that row of the same group. "of bandwidth" is a ratio of
    times: the bytes that must move at the measured copy bandwidth, over the time taken.
    """
    head = ["case", *FACTS[1:], *NUMBERS]
    lines = [head, ["---"] * len(FACTS) + ["---:"] * len(NUMBERS)]
    for record in results["benchmarks"]:
        seconds, facts = record["stats"]["median"], {"what": record.get("name", ""), **record["extra_info"]}
        ratios = [_cell(ratio(results, record, to), "x") for to in ("emulation", "blas")]
        share = _cell(facts.get("fraction_of_bandwidth"), "%")
        numbers = [f"{seconds * 1e3:.3g}", f"{1 / seconds:,.1f}", *ratios, share]
        lines.append([*(str(facts.get(fact, "")) for fact in FACTS), *numbers])
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{rows}\n\nEmulation time on {machine(results)}."


def model_table(results: Row) -> str:
    """Return a table of whole models: emulation time beside transformers', and the peak memory of a process."""
    lines = [
        "| case | mesh | SRAM of a core | exchange | median (ms) | transformers (ms) | times transformers | bound |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    peaks = [
        "| case | mesh | dtype | weights (MB) | peak memory (MB) |",
        "| --- | --- | --- | ---: | ---: |",
    ]
    for record in results["benchmarks"]:
        facts = record["extra_info"]
        if "peak_bytes" in facts:
            bytes_ = f"{facts['weight_bytes'] / 1e6:.0f} | {facts['peak_bytes'] / 1e6:.0f}"
            peaks.append(f"| {facts['what']} | {facts['mesh']} | {facts['dtype']} | {bytes_} |")
            continue
        place = f"{facts['mesh']} | {facts['sram_bytes_per_core'] // 1024} KiB | {facts['exchange']}"
        seconds = f"{record['stats']['median'] * 1e3:.4g} | {facts['transformers_median_s'] * 1e3:.4g}"
        bound = "" if facts["at_most_times"] is None else f"{facts['at_most_times']:g}x"
        lines.append(f"| {facts['what']} | {place} | {seconds} | {facts['times_transformers']:.3g}x | {bound} |")
    return "\n".join([*lines, "", *peaks])


def machine(results: Row) -> str:
    """Return the machine, in words."""
    m = results["machine_info"]
    if "gpu" in m:
        return f"{m['gpu']}, driver {m['driver']}, CUDA {m['cuda']}, torch {m['torch']}, triton {m['triton']}"
    return f"{m['cpu']}, {m['threads']} of {m['cores']} cores used, torch {m['torch']}"


def ratio(results: Row, record: Row, to: str) -> float | None:
    """Return a benchmark's speed in units of row `to` of its group; None for that row itself or without one."""
    if not record.get("group") or record["extra_info"].get("exchange") == to:
        return None
    peers = (other for other in results["benchmarks"] if other.get("group") == record["group"])
    reference = next((other for other in peers if other["extra_info"].get("exchange") == to), None)
    return None if reference is None else reference["stats"]["median"] / record["stats"]["median"]


def _cell(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.0%}" if unit == "%" else f"{value:.3g}x"


def beside(results: Row) -> str:
    """Return the rows on a mesh in microseconds, each with the rows of its group that need no mesh.

    Limits are of the copy bandwidth measured in the same run: the time of the exchanged bytes, and of all that must
    move.
    """
    head = [
        "case", "row", "measured (us)", "cuBLAS (us)", "plain PyTorch (us)", "exchange limit (us)", "of the limit",
        "limit of all bytes (us)",
    ]  # fmt: skip
    lines = [head, ["---"] * 2 + ["---:"] * 6]
    for record in results["benchmarks"]:
        facts, seconds = record["extra_info"], record["stats"]["median"]
        if _row(record) in (*PLAIN, "blas", "copy"):
            continue
        group = [one for one in results["benchmarks"] if one["group"] == record["group"]] if record["group"] else []
        share = facts.get("fraction_of_exchange_limit")
        others = [_first(group, "blas"), next(filter(None, (_first(group, row) for row in PLAIN)), None)]
        all_bytes = facts.get("fraction_of_bandwidth")
        times = (seconds, *others, None if share is None else share * seconds)
        case, of_limit = record["group"] or facts["what"], "" if share is None else f"{share:.2f}"
        limit = _us(None if all_bytes is None else all_bytes * seconds)
        lines.append([case, facts["exchange"], *map(_us, times), of_limit, limit])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\nEmulation time on {machine(results)}."


def others(results: Row) -> list[str]:
    """Return a line for the tests, for each decode step with the host or without it, and for rows without a time."""
    lines = [f"{name}: {summary}" for name, summary in results.get("tests", {}).items()]
    for record in results["benchmarks"]:
        name = f"{record['group']}, {record['extra_info']['exchange']}"
        for fact, what in (("whole_step_seconds", "with the host's part"), ("replay_seconds", "the replay alone")):
            if seconds := record["extra_info"].get(fact):
                lines.append(f"{name}: {_us(seconds)} us {what}")
    lines += [f"failed: {name}: {error}" for name, error in results.get("failed", {}).items()]
    return lines + [f"not measured: {name}: {why}" for name, why in results.get("not_measured", {}).items()]


def _first(group: list[Row], row: str) -> float | None:
    """Return the median seconds of a row of a group."""
    return next((one["stats"]["median"] for one in group if _row(one) == row), None)


def _row(record: Row) -> str:
    """Return the row of a record; a decoder without a mesh is plain PyTorch, whose products are cuBLAS's."""
    facts = record["extra_info"]
    return "plain PyTorch" if facts["what"].endswith(", plain PyTorch") else str(facts["exchange"])


def _us(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e6:,.0f}" if seconds >= 1e-4 else f"{seconds * 1e6:.1f}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="a results file as a table")
    parser.add_argument("results", type=Path)
    results = load(parser.parse_args(arguments).results)
    if "gpu" in results["machine_info"]:
        print(beside(results), "", *others(results), sep="\n")
    elif any("times_transformers" in record["extra_info"] for record in results["benchmarks"]):
        print(model_table(results))
    else:
        print(table(results))


if __name__ == "__main__":
    main()
