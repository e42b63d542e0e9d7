"""docs/tutorial.md runs from top to bottom."""

import re
import sys
from pathlib import Path

from wafer_triton.kernels import KERNELS
from wafer_triton.local import registry

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)


def test_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "LOCAL_OPS", dict(registry.LOCAL_OPS))
    saved, names = dict(KERNELS), {"__name__": "tutorial"}
    try:
        for block in BLOCKS:
            if file := re.match(r"# file: (\S+)\n", block):
                (tmp_path / file[1]).write_text(block)
            else:
                exec(compile(block, str(TUTORIAL), "exec"), names)
    finally:
        KERNELS.clear()
        KERNELS.update(saved)
        sys.modules.pop("clamp", None)
    out = capsys.readouterr().out
    assert "3 routing stages" in out and "wrong-values" in out and "predicted" in out
    assert (tmp_path / "butterfly.png").stat().st_size > 1000


def test_the_all_reduce_is_under_forty_lines():
    (block,) = [block for block in BLOCKS if "def butterfly" in block]
    assert len(block.splitlines()) < 40
