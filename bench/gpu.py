"""Everything that needs a GPU, in one command and under eight minutes: python bench/gpu.py

Runs tests/gpu, then the suites, the figures of merit first; writes bench/results/<name of the GPU>.json and plots; and
prints the table, the figures with their bounds, and one object of JSON as the last line of stdout. A case that fails
or hangs ends no other case (see harness/supervise.py), and a line is written as each case ends. A case for which no
time is left is listed as not measured. The package need not be installed: a checkout contains it, and elsewhere its
wheel may lie beside bench/. Without a checkout, tests/ must lie beside bench/ as well, except for `--only suites`.
Exit codes: 0; 1 if a test or a case failed; 2 without a GPU; 3 without the Python packages or tests that it needs.
`--only tests` or `--only suites` does the one part in all the `--minutes`; `--rehearse` does all at small sizes on the
CPU, kernels by Triton's interpreter, and without a limit of time.
"""

import argparse
import importlib.util
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "harness"))  # Python leaves it out under PYTHONSAFEPATH

import report  # noqa: E402
from supervise import Clock, Command, Row, Worker, cases, supervise, watch  # noqa: E402

TESTS = HERE.parent / "tests" / "gpu"
# the paths of pyproject.toml, which need not be here
FOLDERS = ("bench", "bench/harness", "bench/suites", "tests/helpers", "tests/kernels", "tests/emulate")
PYTEST = [sys.executable, "-P", "-m", "pytest", "--import-mode=importlib", "-q"]
NAMES = ("gemm", "gemv", "decode", "generate", "exchange", "hops")
SUITES = tuple(HERE / "suites" / f"bench_{name}.py" for name in NAMES)
MINUTES = 7.5
WORKERS = 8  # of pytest-xdist, for the tests
TESTS_AT_MOST = 150.0  # seconds
QUIET_AT_MOST = 60.0  # seconds for a worker to begin; each case then says how long it may take
CLOSING = 20.0  # seconds for the table and the plots
Start = Callable[[list[str], dict[str, str]], Worker]  # of a command and its environment


def main(arguments: list[str] | None = None, start: Start = Command, clock: Clock = time) -> int:
    parser = argparse.ArgumentParser(description="tests and benchmarks on a GPU")
    parser.add_argument("--rehearse", action="store_true", help="small sizes on the CPU, without a limit of time")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--only", choices=("tests", "suites"))
    parser.add_argument("--out", type=Path, help="folder of the results (default: bench/results)")
    args = parser.parse_args(arguments)
    device, until = "cuda", clock.time() + 60 * args.minutes
    tests_at_most, quiet = TESTS_AT_MOST, QUIET_AT_MOST
    if args.rehearse:
        device, until, tests_at_most, quiet = "cpu", math.inf, math.inf, math.inf
    if lacking := missing() or ("tests" if args.only != "suites" and not TESTS.is_dir() else ""):
        print(f"no {lacking} here; {remedy(lacking)}", file=sys.stderr)
        return 3
    facts = machine(device)
    if facts is None:
        print("no GPU here: torch.cuda.is_available() is false; nothing was measured", file=sys.stderr)
        return 2
    name = re.sub(r"[^a-z0-9]+", "-", str(facts.get("gpu", "rehearsal")).lower()).strip("-")
    out = args.out or (Path(tempfile.mkdtemp()) if args.rehearse else HERE / "results")
    out.mkdir(parents=True, exist_ok=True)

    tests = {"passed": True, "summary": "not run"}
    if args.only != "suites":
        at_most = until - clock.time() if args.only == "tests" else min(tests_at_most, until - clock.time())
        tests = run_tests(device, at_most, start, clock)
    print(f"tests/gpu: {tests['summary']}", flush=True)
    if args.only == "tests":
        return int(not tests["passed"])
    log = out / f"{name}.jsonl"  # if this process is ended, too, only the table is lost
    log.unlink(missing_ok=True)
    worker = partial(start, suites_command(device, log, until - CLOSING), environment(device))
    lines = supervise(worker, log, quiet, until - CLOSING, clock)
    results = gathered(lines, facts, tests)
    results["figures"] = report.figures(results)
    (out / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    print(report.table(results), "", report.figure_table(results["figures"]), "", sep="\n")
    print(*report.steps(results), sep="\n")
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


def missing() -> str:
    """Make the package of a checkout or wheel importable; return a needed package that is not installed, or ""."""
    find = importlib.util.find_spec
    installed = find("wafer_triton") and find("wafer_triton.kernels")
    if not installed and (found := unpacked()):
        sys.path.insert(0, str(found))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(found), os.environ.get("PYTHONPATH"))))
    needed = ("torch", "triton", "einops", "safetensors", "pytest", "pytest_benchmark", "cpuinfo", "wafer_triton")
    return next((name for name in needed if importlib.util.find_spec(name) is None), "")


def unpacked() -> Path | None:
    """Make a folder with the package as it installs, from the checkout or else the newest wheel; None without both."""
    sources = [HERE.parent / name for name in ("wafer_triton", "kernels", "models")]
    wheels = [path for folder in (HERE.parent, HERE.parent / "dist") for path in folder.glob("wafer_triton-*.whl")]
    folder = Path(tempfile.mkdtemp())
    if all(path.is_dir() for path in sources):
        package = folder / "wafer_triton"
        package.mkdir()
        for source in (*sources[0].iterdir(), *sources[1:]):  # kernels and models are folders of the package
            (package / source.name).symlink_to(source)
    elif wheels:
        zipfile.ZipFile(max(wheels, key=lambda path: path.stat().st_mtime)).extractall(folder)
    else:
        return None
    return folder


def remedy(lacking: str) -> str:
    """Return the command, or the copy of a folder, by which the missing package or folder is added."""
    if lacking == "tests":
        return f"copy the checkout's tests/ to {TESTS.parent}, or take --only suites"
    if lacking == "wafer_triton":
        return f"in a checkout, run: pip wheel --no-deps --wheel-dir {HERE.parent} ."
    checkout = (HERE.parent / "pyproject.toml").exists()
    every = f"{HERE.parent}[bench]" if checkout else "torch triton einops safetensors pytest pytest-benchmark"
    return f"run: pip install {every}"


def machine(device: str) -> Row | None:
    """Return the facts of the machine; None if the device is missing."""
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
    gpu = torch.cuda.get_device_properties(0)
    return {
        "gpu": gpu.name, "driver": driver(), "cuda": torch.version.cuda, "sms": gpu.multi_processor_count,
        "l2_bytes": gpu.L2_cache_size, "memory_bytes": gpu.total_memory, **facts,
    }  # fmt: skip


def driver() -> str:
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def environment(device: str) -> dict[str, str]:
    """Return the workers' variables: compiled kernels on a GPU, interpreted in a rehearsal, none of an outer pytest."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    folders = [*(str(HERE.parent / folder) for folder in FOLDERS), *filter(None, [os.environ.get("PYTHONPATH")])]
    fixed = {"TRITON_INTERPRET": "1" if device == "cpu" else "0", "OMP_NUM_THREADS": "1"}
    return {**outside, **fixed, "PYTHONPATH": os.pathsep.join(folders)}


def run_tests(device: str, seconds: float, start: Start = Command, clock: Clock = time) -> Row:
    """Run tests/gpu, by `WORKERS` processes where pytest-xdist is installed, and end it after `seconds`."""
    command = [*PYTEST, str(TESTS), "--no-header", "-rfE"]
    variables = environment(device)
    if device == "cuda" and importlib.util.find_spec("xdist"):
        command += ["-n", str(WORKERS), "--dist", "worksteal"]
        print(f"tests/gpu on {WORKERS} workers", flush=True)
    elif device == "cuda":
        print(f"tests/gpu in one process; pip install pytest-xdist runs them on {WORKERS} workers", flush=True)
    if device == "cpu":
        command, variables = [*command, "-k", "not fp16 and not fp32"], variables | {"WAFER_REHEARSE": "1"}
    begun = clock.time()
    worker = start(command, variables)
    late = watch(worker, lambda now: f"not finished after {seconds:.0f} s" if now - begun > seconds else "", clock)
    passed, text = worker.end() == 0, worker.output()
    last = next((line.strip("= ") for line in reversed(text.splitlines()) if line.strip()), "no output")
    if not passed:
        print(text[-6000:])
    return {
        "passed": passed,
        "summary": f"{late}; {last}" if late else last,
        "failures": [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))],
        "seconds": round(clock.time() - begun, 1),
    }


def suites_command(device: str, log: Path, until: float) -> list[str]:
    options = [f"--bench-device={device}", f"--bench-log={log}", f"--bench-until={until}", "-k", "test_row"]
    return [*PYTEST, *map(str, SUITES), *options, "-p", "no:cacheprovider"]


def gathered(lines: list[Row], facts: Row, tests: Row) -> Row:
    """Return the content of the results file."""
    failed = {line["ended"]: line["error"] for line in lines if "error" in line}
    done = {line["ended"] for line in lines if "ended" in line}
    return {
        "machine_info": facts,
        "datetime": datetime.now(UTC).isoformat(timespec="seconds"),
        "tests": tests,
        "benchmarks": [line["benchmark"] for line in lines if line.get("benchmark")],
        "failed": failed,
        "not_measured": [case for case in cases(lines) if case not in done],
    }


def summary(results: Row, path: Path) -> Row:
    """Return the summary of a run, for programs."""
    verdicts = [figure["verdict"] for figure in results["figures"]]
    return {
        "gpu": results["machine_info"].get("gpu"), "tests_passed": results["tests"]["passed"],
        "tests": results["tests"]["summary"], "measured": len(results["benchmarks"]),
        "failed": sorted(results["failed"]), "not_measured": len(results["not_measured"]),
        "figures": {verdict: verdicts.count(verdict) for verdict in ("met", "not met", "not measured")},
        "results": str(path),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
