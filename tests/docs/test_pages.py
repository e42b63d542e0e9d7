"""Pages of docs/ are true from top to bottom: their Python and their commands run and print what is shown.

A block whose first line is `# file: NAME` is written to that file. All other Python of a page runs in one namespace,
and a `text` block right below has its output. A `console` block is a command and its output, each line of a `bash`
block a command. An output that ends with "..." goes on like that.

Run as a program, it writes the outputs of all pages anew, or of those that are named.
"""

import io
import os
import re
import shlex
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from wafer_triton.cli.main import main
from wafer_triton.device.keys import KEYS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("predict", "serve")
BLOCK = re.compile(r"^```(python|toml|bash|console)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
MORE = "...\n"


def printed_by(action, *args):
    """Return the output of a call for people."""
    stream = io.StringIO()
    with redirect_stdout(stream), redirect_stderr(io.StringIO()):
        action(*args)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def command(line):
    words = shlex.split(line, comments=True)
    if words[:1] == ["wafer-triton"]:
        assert main(words[1:]) == 0, line


def renewed(page):
    """Return a page with the outputs of today."""
    names = {"__name__": page}

    def block(match):
        kind, body, shown = match.groups()
        if file := re.match(r"# file: (\S+)\n", body):
            Path(file[1]).write_text(body, encoding="utf-8")
            return match[0]
        if kind == "bash":
            for line in body.splitlines():
                printed_by(command, line)
        if kind == "console":
            line, _, shown = body.partition("\n")
            return f"```console\n{line}\n{cut(printed_by(command, line.removeprefix('$ ')), shown)}```"
        if kind == "python":
            printed = printed_by(exec, compile(body, f"docs/{page}.md", "exec"), names)
            return match[0] if shown is None else f"```python\n{body}```\n\n```text\n{cut(printed, shown)}```"
        return match[0]

    return BLOCK.sub(block, (DOCS / f"{page}.md").read_text(encoding="utf-8"))


def cut(printed, shown):
    """Return as many lines of an output as are shown, if what is shown ends with "..."."""
    if not shown.endswith(MORE):
        return printed
    return "".join(printed.splitlines(keepends=True)[: shown.count("\n") - 1]) + MORE


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_the_outputs_of_today(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert renewed(page) == (DOCS / f"{page}.md").read_text(encoding="utf-8"), "run python tests/docs/test_pages.py"


def test_the_table_of_a_device_has_every_key():
    table = (DOCS / "predict.md").read_text(encoding="utf-8").partition("| number | keys |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z_0-9]+)`", table)) == set(KEYS)


if __name__ == "__main__":
    for name in sys.argv[1:] or PAGES:
        os.chdir(tempfile.mkdtemp())
        (DOCS / f"{name}.md").write_text(renewed(name), encoding="utf-8")
