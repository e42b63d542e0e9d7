"""docs/devices.md: its device is read, its commands run, its Python prints the output shown, its keys are all there."""

import io
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from wafer_triton import Device
from wafer_triton.cli.main import main
from wafer_triton.device.keys import KEYS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "devices.md").read_text(encoding="utf-8")
LINES = [
    line for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]
(TOML,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_table_of_keys_has_every_key() -> None:
    table = PAGE.partition("| number | keys |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z_0-9]+)`", table)) == set(KEYS)


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_a_command_runs(line: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wide.toml").write_text(TOML)
    assert Device.from_file("wide.toml").name == "wide"
    assert main(shlex.split(line)[1:]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_the_python_prints_the_output_shown() -> None:
    space: dict[str, object] = {}
    shown = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(shown) == PAGE.count("```python")
    for block, text in shown:
        stream = io.StringIO()
        with redirect_stdout(stream), redirect_stderr(io.StringIO()):
            exec(block, space)
        assert stream.getvalue() == text
