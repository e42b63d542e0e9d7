"""Every figure of a GPU, in one command and within ten minutes: python bench/gpu.py

It times the rows of harness/order.py, the most valuable first, and writes one file, the one to send:
bench/results/<GPU>-<commit>.jsonl. Its first line names the GPU and the versions. The rows of a group are timed in
turns, so that ratios are of the same rounds at the same clocks, which stand beside them. A line is added as rows begin
and as each ends, so that nothing is lost when the command is stopped. A row that fails or hangs ends no other, and rows
for which no time is left are listed as not measured. A table of the rows beside cuBLAS, beside plain PyTorch and beside
the limits comes last; `python bench/harness/report.py FILE` prints it again.

The package need not be installed, the packages that it needs must be. Exit codes: 0; 1 if a row failed; 2 without a
GPU that is supported; 3 without the Python packages. `--rehearse` times small rows on the CPU without a limit of time.
"""

import argparse
import importlib.util
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "harness"), str(HERE / "suites")]  # Python leaves them out under PYTHONSAFEPATH

from supervise import GRACE, QUIET, ROOT, TIME_IS_UP, Clock, Command, Row, Worker, read, supervise, write  # noqa: E402

NEEDED = ("torch", "triton", "einops", "numpy", "safetensors", "lazy_loader", "pytest", "wafer_triton")
MINUTES = 10.0
CLOSING = 20.0  # seconds to end the last worker and to print the table
Start = Callable[[list[str], dict[str, str]], Worker]  # of a command and its environment


def main(arguments: list[str] | None = None, start: Start = Command, clock: Clock = time) -> int:
    parser = argparse.ArgumentParser(description="every figure of a GPU, in one file")
    parser.add_argument("--rehearse", action="store_true", help="small rows on the CPU, without a limit of time")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--out", type=Path, help="folder of the file (default: bench/results)")
    args = parser.parse_args(arguments)
    until = clock.time() + 60 * args.minutes - CLOSING - GRACE
    if lacking := missing():
        print(f"no {lacking} here; run: pip install {ROOT}[bench]", file=sys.stderr)
        return 3
    if args.rehearse:
        device, quiet, until = "cpu", math.inf, math.inf
    else:
        device, quiet = "cuda", QUIET
        if why := unsupported():
            print(f"{why}; nothing was measured", file=sys.stderr)
            return 2
    import order
    import report

    rows = [row.name for group in (order.rehearsed() if args.rehearse else order.on_a_gpu()) for row in group]
    facts = machine(device)
    out = args.out or (Path(tempfile.mkdtemp()) if args.rehearse else HERE / "results")
    out.mkdir(parents=True, exist_ok=True)
    words = f"{facts.get('gpu', 'rehearsal')} {facts['commit']}".lower()
    file = out / f"{re.sub('[^a-z0-9]+', '-', words)}.jsonl"
    file.unlink(missing_ok=True)
    write(file, **facts, rows=rows)
    print(f"{len(rows)} rows, the most valuable first, each written as it ends: {file}", flush=True)
    command = [sys.executable, "-P", str(HERE / "harness" / "worker.py"), device, str(file), str(until)]
    supervise(lambda: start(command, environment(device)), rows, file, quiet, until, clock)
    ended = {line.get("row") for line in read(file)}
    for name in rows:
        if name not in ended:
            write(file, row=name, not_measured=TIME_IS_UP)
    results = report.load(file)
    print(report.beside(results), "", *report.others(results), f"send {file}", sep="\n")
    return int(bool(results["failed"]))


def missing() -> str:
    """Make the package of this checkout importable; return a needed package that is not installed, or ""."""
    find = importlib.util.find_spec
    if not (find("wafer_triton") and find("wafer_triton.kernels")):
        folder = str(ROOT / "src")
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    return next((name for name in NEEDED if find(name) is None), "")


def unsupported() -> str:
    """Return why nothing can be measured here, or ""."""
    import torch

    if not torch.cuda.is_available():
        return "no GPU here: torch.cuda.is_available() is false"
    gpu = torch.cuda.get_device_properties(0)
    if torch.version.hip is None and gpu.major < 8:
        return f"{gpu.name} has compute capability {gpu.major}.{gpu.minor}; bf16 kernels need 8.0 or later"
    try:
        torch.ones(1, device="cuda").add_(1).item()
    except RuntimeError as error:
        return f"{gpu.name} runs nothing by torch {torch.__version__}: {str(error).splitlines()[0]}"
    return ""


def machine(device: str) -> Row:
    """Return the facts of the machine, the versions and the commit."""
    import torch
    import triton

    facts = {
        "commit": commit(), "datetime": datetime.now(UTC).isoformat(timespec="seconds"), "cpu": processor(),
        "cores": os.cpu_count(), "threads": 1, "python": platform.python_version(), "torch": torch.__version__,
        "triton": triton.__version__,
    }  # fmt: skip
    if device == "cpu":
        return facts
    gpu = torch.cuda.get_device_properties(0)
    driver = said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split()
    return {
        "gpu": gpu.name, "driver": driver[0] if driver else "unknown", "cuda": torch.version.cuda,
        "sms": gpu.multi_processor_count, "l2_bytes": gpu.L2_cache_size, "memory_bytes": gpu.total_memory, **facts,
    }  # fmt: skip


def commit() -> str:
    """Return the commit of this checkout, with a word for changes; "unknown" without git."""
    return said("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*") or "unknown"


def processor() -> str:
    names = re.findall(r"^model name\s*: (.*)$", said("cat", "/proc/cpuinfo"), re.MULTILINE)
    return names[0] if names else platform.machine()


def said(*command: str) -> str:
    """Return the output of a command; "" if it fails or is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def environment(device: str) -> dict[str, str]:
    """Return the variables of a worker: compiled kernels on a GPU, interpreted ones in a rehearsal."""
    folders = [str(HERE / "harness"), str(HERE / "suites"), *filter(None, [os.environ.get("PYTHONPATH")])]
    fixed = {"TRITON_INTERPRET": "1" if device == "cpu" else "0", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **fixed, "PYTHONPATH": os.pathsep.join(folders)}


if __name__ == "__main__":
    sys.exit(main())
