"""Ctrl-C from the first call to the end: one line, and never a traceback."""

import os
import subprocess
import sys

import pytest

# No clock decides when the signal comes, so that a busy machine changes nothing.
CODE = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)
calls = 0

def count(frame, event, argument):
    global calls
    calls += event == "call"
    if calls == {number}:
        sys.setprofile(None)

        os.kill(os.getpid(), signal.SIGINT)

from wafer_triton.cli.main import main

sys.argv = "wafer-triton plan --model llama3-8b --input 2048 --output 2048 --step 1".split()

sys.setprofile(count)
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [10, 300_000])
def test_one_line_at_any_call(number):
    done = subprocess.run([sys.executable, "-c", CODE.format(number=number)], capture_output=True, text=True)
    assert done.returncode == 130 and done.stderr.endswith("interrupted\n") and "Traceback" not in done.stderr


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
