"""The example of docs/serving.md prints the output shown."""

import re
from pathlib import Path

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


def test_the_example_prints_the_output_shown(capsys):
    code, shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", TEXT, re.DOTALL).groups()
    exec(compile(code, "docs/serving.md", "exec"), {})
    assert capsys.readouterr().out == shown
