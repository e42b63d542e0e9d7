"""Completion as a user installs it: in bash its function is called with the words of a line, zsh is driven by keys."""

import os
import pty
import shutil
import subprocess
import sys

import pytest


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
    with (tmp_path / ".zshrc").open("a") as setup:  # Ctrl-T shows the line, whatever became of it
        setup.write('autoload -Uz compinit; compinit -u\ntell() { print -r -- "<$BUFFER>" }\n')
        setup.write("zle -N tell; bindkey '^T' tell\nPS1='ready> '\n")
    keys, terminal = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    zsh = subprocess.Popen(["zsh", "-i"], env=env, start_new_session=True, **streams)
    try:
        shown(b"ready> ", keys)
        os.write(keys, b"wafer-triton estimate decode --conte\t4 --mo\t\x14")
        assert b"<wafer-triton estimate decode --context 4 --model >" in shown(b">\r\n", keys)
    finally:
        zsh.kill()
        zsh.wait()
        os.close(keys)
        os.close(terminal)


def shown(text, keys):
    """Read what a terminal shows until there is a text that it shows in any case."""
    got = b""
    while text not in got:
        got += os.read(keys, 65536)
    return got
