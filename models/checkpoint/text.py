"""Text to tokens, by the tokenizer of a checkpoint's folder."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from textwrap import shorten
from typing import Any

from wafer_triton.errors import CheckpointError, WaferError
from wafer_triton.shape.config import read_json
from wafer_triton.text.files import parse_json, read_text

_VOCABULARIES = ("tokenizer.*", "vocab.*", "*.model", "*.tiktoken")  # one of them, for any kind of tokenizer
_TEXTS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "chat_template.jinja",
)  # fmt: skip


@lru_cache(maxsize=4)
def tokenizer_of(folder: Path) -> Any:
    """Return the tokenizer in a folder; CheckpointError without one."""
    if not any(folder.glob("tokenizer*")):
        raise CheckpointError(f"{folder}: no tokenizer there (tokenizer.json); give the folder of a whole checkpoint")
    # Read before imports that take seconds.
    settings = read_json(path) if (path := folder / "tokenizer_config.json").exists() else {}
    if (file := folder / "tokenizer.json").exists():
        text = read_text(file, CheckpointError)
        with _reading(folder):
            from tokenizers import Tokenizer

            Tokenizer.from_str(text)
    from transformers import AutoTokenizer

    with _reading(folder):
        return AutoTokenizer.from_pretrained(folder, config=_config_of(folder, settings), local_files_only=True)


def _config_of(folder: Path, settings: Mapping[str, Any]) -> Any:
    """Return a plain configuration if the tokenizer's class has a name: a model's takes two seconds to import."""
    if "tokenizer_class" not in settings or "auto_map" in settings or not (file := folder / "config.json").exists():
        return None
    from transformers import PreTrainedConfig

    config = PreTrainedConfig()
    config.model_type = read_json(file).get("model_type", "")
    return config


def _check_files(folder: Path) -> None:
    """Raise CheckpointError for the first file of a tokenizer that is at fault."""
    if not any(path.is_file() for pattern in _VOCABULARIES for path in folder.glob(pattern)):
        raise CheckpointError(f"{folder}: no tokenizer.json there; give the folder of a whole checkpoint")
    for file in (folder / name for name in _TEXTS if (folder / name).exists()):
        text = read_text(file, CheckpointError)
        if file.suffix != ".json":
            continue
        if file.read_bytes().startswith(codecs.BOM_UTF8):
            raise CheckpointError(f"{file}: begins with a byte order mark, which transformers refuses; save it without")
        values = parse_json(text, file, CheckpointError)
        if not isinstance(values, dict):
            raise CheckpointError(f"{file}: holds no table; put a whole copy there")
        if file.name == "tokenizer.json" and not isinstance(values.get("model"), dict):
            raise CheckpointError(f'{file}: has no "model", the table of a vocabulary; put a whole copy there')


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Turn any exception of a reader into one line."""
    try:
        yield
    except (ModuleNotFoundError, WaferError):
        raise
    except Exception as error:
        try:
            _check_files(folder)
        except CheckpointError as found:
            raise found from None
        reason = shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
        raise CheckpointError(
            f"{folder}: no tokenizer that can be read (tokenizer.json): {reason}; put a whole copy there"
        ) from None
