"""Ctrl-C from the first 50 ms to the end: one line, and never a traceback."""

import os
import signal
import subprocess
import sys
import time

import pytest

CODE = "import sys; from wafer_triton.cli.main import main; sys.exit(main())"


def interrupted(line: str, seconds: float) -> tuple[int, str]:
    """Return the exit code and stderr of a command that gets Ctrl-C after some seconds."""
    command = subprocess.Popen(
        [sys.executable, "-c", CODE, *line.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    time.sleep(seconds)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=60)
    return command.returncode, err


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.3, 0.6, 1.2])
def test_one_line_whenever_it_comes(seconds):
    code, err = interrupted("plan --model llama3-8b --input 2048 --output 2048 --step 1", seconds)
    assert code == 130 and err.endswith("interrupted\n") and "Traceback" not in err


def test_it_is_one_line_while_python_ends():
    code = (
        "import os, signal, sys; sys.argv = ['wafer-triton', 'devices']\n"
        "from wafer_triton.cli.main import main\n"
        "assert main() == 0\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_it_is_one_line_before_anything_is_imported():
    code = (
        "import os, signal, sys, builtins; sys.argv = ['wafer-triton', 'devices']\n"
        "from wafer_triton.cli import main\n"
        "def stop(argv): os.kill(os.getpid(), signal.SIGINT)\n"
        "main._main = stop\n"
        "main.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
