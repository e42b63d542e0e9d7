"""Everything that needs a GPU, in one command and under eight minutes: python bench/gpu.py

Runs tests/gpu, then the suites, the figures of merit first; writes bench/results/<name of the GPU>.json and plots; and
prints the table, the figures with their bounds, and one object of JSON as the last line of stdout. What fails or hangs
takes nothing else with it: the worker is ended, the case is noted, the next worker takes up the rest. What the time did
not suffice for is listed as not measured. Exit codes: 0; 1 if a test or a case failed; 2 without a GPU.
`--rehearse` does the same at small sizes on the CPU, kernels by Triton's interpreter.
"""

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "harness"))  # Python leaves it out under PYTHONSAFEPATH

import report  # noqa: E402

SUITES = tuple(HERE / "suites" / f"bench_{name}.py" for name in ("gemm", "gemv", "decode", "exchange"))
MINUTES = 7.5
TESTS_AT_MOST = 150.0  # seconds
QUIET_AT_MOST = 60.0  # seconds for a worker to begin; each case then says how long it may take
CLOSING = 20.0  # seconds for the table and the plots
Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="tests and benchmarks on a GPU")
    parser.add_argument("--rehearse", action="store_true", help="small sizes on the CPU")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--out", type=Path, help="folder of the results (default: bench/results)")
    given = parser.parse_args(arguments)
    until = time.time() + 60 * given.minutes
    device = "cpu" if given.rehearse else "cuda"
    facts = machine(device)
    if facts is None:
        print("no GPU here: torch.cuda.is_available() is false; nothing was measured", file=sys.stderr)
        return 2
    name = re.sub(r"[^a-z0-9]+", "-", str(facts.get("gpu", "rehearsal")).lower()).strip("-")
    out = given.out or (Path(tempfile.mkdtemp()) if given.rehearse else HERE / "results")
    out.mkdir(parents=True, exist_ok=True)

    tests = run_tests(device, min(TESTS_AT_MOST, until - time.time()))
    print(f"tests/gpu: {tests['summary']}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        lines = supervise(
            worker(device, log, until - CLOSING), log, QUIET_AT_MOST, until - CLOSING, environment(device)
        )
    results = gathered(lines, facts, tests)
    results["figures"] = report.figures(results)
    (out / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    print(report.table(results), "", report.figure_table(results["figures"]), "", sep="\n")
    for case, error in results["failed"].items():
        print(f"failed: {case}: {error}")
    for case in results["not_measured"]:
        print(f"not measured: {case}")
    try:
        report.plots(results, out, name)
    except Exception as error:  # the figures matter more than their picture
        print(f"no plots: {type(error).__name__}: {error}")
    print(json.dumps(summary(results, out / f"{name}.json"), separators=(",", ":")))
    return int(bool(results["failed"]) or not tests["passed"])


def machine(device: str) -> Row | None:
    """What it runs on; None if that device is missing."""
    import torch
    import triton
    from cpuinfo import get_cpu_info

    facts = {
        "cpu": get_cpu_info()["brand_raw"], "cores": os.cpu_count(), "threads": 1,
        "python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__,
    }  # fmt: skip
    if device == "cpu":
        return facts
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return {
        "gpu": found.name, "driver": driver(), "cuda": torch.version.cuda, "sms": found.multi_processor_count,
        "l2_bytes": found.L2_cache_size, "memory_bytes": found.total_memory, **facts,
    }  # fmt: skip


def driver() -> str:
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def environment(device: str) -> dict[str, str]:
    """The workers': kernels compiled on a GPU, interpreted in a rehearsal; nothing of a pytest that runs outside."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**outside, "TRITON_INTERPRET": "1" if device == "cpu" else "0", "OMP_NUM_THREADS": "1"}


def run_tests(device: str, seconds: float) -> Row:
    """tests/gpu in a process of its own, in parallel where pytest-xdist is there."""
    command = [sys.executable, "-P", "-m", "pytest", str(HERE.parent / "tests" / "gpu"), "-q", "--no-header", "-rfE"]
    if device == "cuda" and _has("xdist"):
        command += ["-n", str(max(1, min(8, (os.cpu_count() or 1) // 2)))]
    env = environment(device)
    if device == "cpu":
        command, env = [*command, "-k", "not fp16 and not fp32"], env | {"WAFER_REHEARSE": "1"}
    begun = time.time()
    code, text = _timed(command, env, seconds)
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "no output")
    failures = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if code is None:
        last = f"not finished after {seconds:.0f} s; {last}"
    if code != 0:
        print(text[-6000:])
    took = round(time.time() - begun, 1)
    return {"passed": code == 0, "summary": last.strip("= "), "failures": failures, "seconds": took}


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


def _timed(command: list[str], env: dict[str, str], seconds: float) -> tuple[int | None, str]:
    """Exit code (None: it was ended for being late) and output of a command."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, env=env, cwd=HERE.parent, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            end(process)
            code = None
        output.seek(0)
        return code, output.read()


def end(process: subprocess.Popen[Any]) -> None:
    """End a process that was started here, and its children."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def worker(device: str, log: Path, until: float) -> list[str]:
    options = [f"--bench-device={device}", f"--bench-log={log}", f"--bench-until={until}", "-k", "test_row", "-q"]
    return [sys.executable, "-P", "-m", "pytest", *map(str, SUITES), *options, "-p", "no:cacheprovider"]


def supervise(command: list[str], log: Path, quiet: float, until: float, env: dict[str, str]) -> list[Row]:
    """Run workers that take up the cases which `log` does not name yet, until all are done or time is up.

    A case that takes longer than it may, or whose worker dies, is noted as failed. Returns the log's lines.
    """
    while True:
        before = len(read(log))
        output = log.with_suffix(".out")
        with output.open("w") as file:
            process = subprocess.Popen(
                command, env=env, cwd=HERE.parent, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
            why = _watch(process, log, quiet, until)
            end(process)
        lines = read(log)
        if len(lines) == before:  # it could not even begin
            tail = " ".join(output.read_text().split())[-600:]
            return [*lines, {"ended": "the suites", "error": f"{why or f'exit {process.returncode}'}: {tail}"}]
        for case in unfinished(lines):
            lines.append({"ended": case, "error": why or f"the worker died, exit {process.returncode}"})
            with log.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
        left = _cases(lines) - {line.get("begun") for line in lines}
        if time.time() > until or not left:
            return lines


def _watch(process: subprocess.Popen[Any], log: Path, quiet: float, until: float) -> str:
    """Wait for a worker; why it must be ended, or "" if it ended by itself."""
    last, size = time.time(), log.stat().st_size if log.exists() else 0
    while process.poll() is None:
        time.sleep(0.1)
        now, grown = time.time(), log.stat().st_size if log.exists() else 0
        if grown != size:
            last, size = now, grown
            quiet = next((line["patience"] for line in reversed(read(log)) if "patience" in line), quiet)
        if now - last > quiet:
            return f"no result after {quiet:.0f} s"
        if now > until + CLOSING / 2:
            return "out of time"
    return ""


def read(log: Path) -> list[Row]:
    """The lines of the log; one that a dying worker left half-written is none."""
    lines = []
    for line in log.read_text().splitlines() if log.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def unfinished(lines: list[Row]) -> list[str]:
    ended = {line.get("ended") for line in lines}
    return [line["begun"] for line in lines if "begun" in line and line["begun"] not in ended]


def _cases(lines: list[Row]) -> set[str]:
    return set(next((line["cases"] for line in lines if "cases" in line), ()))


def gathered(lines: list[Row], facts: Row, tests: Row) -> Row:
    """The results file."""
    failed = {line["ended"]: line["error"] for line in lines if "error" in line}
    cases = next((line["cases"] for line in lines if "cases" in line), [])
    done = {line["ended"] for line in lines if "ended" in line}
    return {
        "machine_info": facts,
        "datetime": datetime.now(UTC).isoformat(timespec="seconds"),
        "tests": tests,
        "benchmarks": [line["benchmark"] for line in lines if line.get("benchmark")],
        "failed": failed,
        "not_measured": [case for case in cases if case not in done],
    }


def summary(results: Row, path: Path) -> Row:
    """What a program wants to know of a run."""
    verdicts = [one["verdict"] for one in results["figures"]]
    return {
        "gpu": results["machine_info"].get("gpu"), "tests_passed": results["tests"]["passed"],
        "tests": results["tests"]["summary"], "measured": len(results["benchmarks"]),
        "failed": sorted(results["failed"]), "not_measured": len(results["not_measured"]),
        "figures": {verdict: verdicts.count(verdict) for verdict in ("met", "not met", "not measured")},
        "results": str(path),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
