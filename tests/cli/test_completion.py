"""Completion as a user installs it: in bash its function is called with the words of a line, zsh is driven by keys."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest

SECONDS = 60.0  # until a shell must have answered


def installed(shell, home, monkeypatch):
    """Install completion of a shell in a home folder; the environment of a session there."""
    for name in ("ZSH", "ZSH_CUSTOM", "ZDOTDIR", "BASH_ENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    command = [sys.executable, "-m", "wafer_triton", "--install-completion", "--shell", shell]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and str(home) in done.stdout
    return os.environ | {"TERM": "dumb"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash(tmp_path, monkeypatch):
    env = installed("bash", tmp_path, monkeypatch)
    (tmp_path / "trace.csv").touch()
    lines = {
        "est": {"estimate"},
        "estimate de": {"decode"},
        "estimate decode --conte": {"--context"},
        "estimate decode --json --mo": {"--model"},
        "compare gemm --backend ": {"torch", "triton"},
        "draw gemm --mesh 4 --picture t": {"timeline"},
        "serve --requests tra": {"trace.csv"},
        "compare tra": {"trace.csv"},
        "estimate decode --model tra": {"trace.csv"},
    }
    script = '. "$HOME/.bashrc"\nread -r _ _ name _ <<< "$(complete -p wafer-triton)"\n'
    for line in lines:
        script += f"COMP_WORDS=(wafer-triton {line}{chr(39) * 2 * line.endswith(' ')}); COMPREPLY=()\n"
        script += 'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "$name"; echo "${COMPREPLY[@]}"\n'
    done = subprocess.run(["bash", "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""
    assert dict(zip(lines, (set(found.split()) for found in done.stdout.splitlines()), strict=True)) == lines


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_zsh(tmp_path, monkeypatch):
    env = installed("zsh", tmp_path, monkeypatch)
    with (tmp_path / ".zshrc").open("a") as setup:
        setup.write("autoload -Uz compinit; compinit -u\nPS1='ready> '\n")
    keys, terminal = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    zsh = subprocess.Popen(["zsh", "-i"], env=env, start_new_session=True, **streams)
    try:
        shown("ready> ", keys)
        for typed, completed in ((b"wafer-triton estimate decode --conte", "--context "), (b"4 --mo", "--model ")):
            os.write(keys, typed + b"\t")
            shown(completed, keys)
    finally:
        zsh.kill()
        zsh.wait()
        os.close(keys)
        os.close(terminal)


def shown(text, keys):
    """Wait until a terminal shows a text."""
    got, end = b"", time.monotonic() + SECONDS
    while text.encode() not in got:
        assert time.monotonic() < end, got
        if select.select([keys], [], [], 0.2)[0]:
            got += os.read(keys, 65536)
