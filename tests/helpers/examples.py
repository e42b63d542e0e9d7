"""The scripts of docs/examples, loaded without their operations staying behind."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wafer_triton.local import registry

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "examples"


@contextmanager
def with_names_of_operations() -> Iterator[None]:
    """Let a script define operations in a `with` block, whose names are free afterwards."""
    before = dict(registry.LOCAL_OPS)
    try:
        yield
    finally:
        registry.LOCAL_OPS.clear()
        registry.LOCAL_OPS.update(before)
