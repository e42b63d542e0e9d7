"""Checkpoints of families of models."""

from functools import cache
from pathlib import Path

import pytest

from judge import Family, judge


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Return a function that saves a family's checkpoint once and returns its folder."""

    @cache
    def folder(family: Family, dtype: str = "fp32") -> Path:
        path = tmp_path_factory.mktemp(family.name)
        judge(family, dtype).save_pretrained(path)
        return path

    return folder
