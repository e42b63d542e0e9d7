"""Names of the library: a class name has one meaning."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_each_class_name_is_defined_once():
    defined = defaultdict(list)
    for folder in ("wafer_triton", "kernels", "models"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    defined[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert defined["SubLayer"], "the library's classes are found"
    assert {name: places for name, places in defined.items() if len(places) > 1} == {}
