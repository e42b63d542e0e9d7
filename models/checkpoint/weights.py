"""A checkpoint's tensors, read from safetensors files and checked against the configuration.

Files are memory-mapped: a tensor that is already of the wanted dtype is a view of the file, any other is converted on
its own. Pickle files (`.bin`, `.pth`) are never opened, as unpickling runs code in the file.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from wafer_triton.errors import CheckpointError, DtypeError, article, shown
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.experts import by_expert, sources, stored_shape
from wafer_triton.place.need import param_shapes
from wafer_triton.text.files import fetched_in_place, parse_json, read_text

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_MODEL, _TABLE, _HEAD = "model.", "model.embed_tokens.weight", "lm_head.weight"
_FILE_DTYPES = ("F64", "F32", "F16", "BF16")
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def complete(weights: Mapping[str, torch.Tensor], config: DecoderConfig) -> Mapping[str, torch.Tensor]:
    """Return weights in either layout of experts by the names of `param_shapes`; CheckpointError if one is missing."""
    named = by_expert(weights, config)
    names = set(named)  # names alone, as access to a tensor reads it
    if missing := [name for name in param_shapes(config) if name not in names]:
        raise CheckpointError(f"{config.name}: {len(missing)} weights are missing, the first is {missing[0]}")
    return named


class NamedWeights(Mapping[str, torch.Tensor]):
    """Parameters by Hugging Face name, whose shapes are known before one is read."""

    shapes: dict[str, tuple[int, ...]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


class StoredWeights(NamedWeights):
    """A folder's parameters by Hugging Face name, each read from its file, as `dtype`, on access.

    The constructor checks names, shapes and dtypes of all files. A file is mapped only while one of its tensors is
    held. So a parameter that was read and placed takes no memory here. Raises `CheckpointError`, also on access to a
    parameter with NaN or infinity.
    """

    def __init__(self, folder: str | Path, config: DecoderConfig, dtype: torch.dtype = torch.float32) -> None:
        if dtype not in _DTYPES:
            raise DtypeError(f"weights cannot be loaded as {dtype}; choose one of {', '.join(map(str, _DTYPES))}")
        self.folder, self.config, self.dtype = Path(folder), config, dtype
        self.shapes = param_shapes(config)
        files = _open_all(self.folder)
        where = _locate(self.folder, files, config)
        self.sources = sources(where, config)
        if _TABLE not in where and _TABLE.removeprefix(_MODEL) in where:  # the files of a backbone alone
            self.sources = {name if name == _HEAD else _MODEL + name: source for name, source in self.sources.items()}
        if config.tie_word_embeddings and _HEAD in self.sources:
            self.sources.setdefault(_TABLE, self.sources[_HEAD])
        _check_names(self.folder, self.sources, config)
        for name, shape in self.shapes.items():
            source = self.sources[name]
            stored = shape if source.expert is None else stored_shape(source, config)
            _check_tensor(where[source.name], files[where[source.name]], source.name, stored)
        self.where = where
        if config.tie_word_embeddings and _HEAD in where:
            names = self.sources[_TABLE].name, _HEAD
            table, head = (_open(where[name]).get_tensor(name) for name in names)
            if not same(table, head):
                raise CheckpointError(
                    f"{where[_HEAD]}: {_HEAD} differs from {_TABLE}, though config.json ties them; set "
                    f"tie_word_embeddings to false there, or take {_HEAD} out"
                )

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        source = self.sources[name]
        return self._checked(name, source.of(_open(self.where[source.name]).get_tensor(source.name)))

    def part(self, name: str, index: tuple[slice, ...]) -> torch.Tensor:
        """Return a part of a parameter that is a stored tensor of its own; nothing else of it is read."""
        stored = self.sources[name].name
        return self._checked(name, _open(self.where[stored]).get_slice(stored)[index])

    def _checked(self, name: str, stored: torch.Tensor) -> torch.Tensor:
        weight = stored.to(self.dtype)
        if weight.numel() and not is_finite(weight):
            remedy = "take dtype='bf16' or 'fp32'" if is_finite(stored) else "take another checkpoint"
            where = self.where[self.sources[name].name]
            raise CheckpointError(f"{where}: {name} holds NaN or infinity as {self.dtype}; {remedy}")
        return weight


def _open_all(folder: Path) -> dict[Path, Any]:
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; give a checkpoint folder in Hugging Face layout")
    if (folder / _SINGLE).is_file():
        paths = [folder / _SINGLE]
    elif (folder / _INDEX).is_file():
        paths = sorted({folder / shard for shard in _weight_map(folder).values()})
    else:
        held = {path.name for path in folder.iterdir() if path.suffix != ".json"}
        raise CheckpointError(
            f"{folder}: no file {_SINGLE} and no file {_INDEX}, but {_some(held) or 'no weights'}; give a whole model "
            f"in safetensors, as transformers' model.save_pretrained(folder) writes it: an adapter, a shard or GGUF "
            f"alone is not read, and a pickle file never opened"
        )
    return {path: _open(path) for path in paths}


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing, though {_INDEX} lists it; fetch the checkpoint again") from None
    except (SafetensorError, OSError) as error:
        if what := _in_place_of(path):
            raise CheckpointError(f"{path}: is {what}, not the weights; put the file itself there") from None
        raise CheckpointError(
            f"{path} ({path.stat().st_size:,} bytes): truncated, damaged or not safetensors ({error}); put a whole "
            f"copy there, or remove {path.parent} if it was fetched by name: it is then made again"
        ) from None


def _in_place_of(path: Path) -> str:
    """Return the kind of a file that was fetched in place of weights; "" if it is unknown."""
    if path.is_dir():
        return "a folder"
    with suppress(OSError), path.open("rb") as file:
        return fetched_in_place(file.read(512).decode("latin-1"))
    return ""


def _weight_map(folder: Path) -> dict[str, str]:
    index = folder / _INDEX
    table = parse_json(read_text(index, CheckpointError), index, CheckpointError)
    weight_map = table.get("weight_map") if isinstance(table, dict) else None
    if not isinstance(weight_map, dict):
        raise CheckpointError(
            f"{index}: has no weight_map, a table of parameters and the names of their files; put a whole copy there"
        )
    shards: dict[str, str] = weight_map
    for name, shard in shards.items():
        if not isinstance(shard, str):
            raise CheckpointError(f"{index}: {shown(name)} is in {shown(shard)}, no file name; put a whole copy there")
        # A bare file name cannot leave the folder, even in a forged index.
        if shard in ("", ".", "..") or "/" in shard or "\\" in shard:
            raise CheckpointError(f"{index}: {name} points outside the folder, at {shard!r}; refused")
    return shards


def _locate(folder: Path, files: dict[Path, Any], config: DecoderConfig) -> dict[str, Path]:
    """Return the file that holds each tensor: of several, the one that the index names.

    An index that places a tensor in a shard without it is an error, but for one that the model does not need.
    """
    held = {path: set(file.keys()) for path, file in files.items()}
    where = {name: path for path, names in held.items() for name in names}
    if (folder / _SINGLE) not in files:
        for name, shard in _weight_map(folder).items():
            if name in held[folder / shard]:
                where[name] = folder / shard
            elif not _is_spare(name, config):
                raise CheckpointError(f"{folder / shard}: has no {name}, though {_INDEX} places it there")
    return where


def _is_spare(name: str, config: DecoderConfig) -> bool:
    """Return whether a tensor follows from the config, as old checkpoints have it, or from the tied embedding."""
    return ".rotary_emb." in name or (name == _HEAD and config.tie_word_embeddings)


def _check_names(folder: Path, names: Iterable[str], config: DecoderConfig) -> None:
    stored, expected = set(names), set(param_shapes(config))
    if missing := expected - stored:
        raise CheckpointError(
            f"{folder}: {len(missing)} of {len(expected)} parameters missing: {_some(missing)}; stored are "
            f"{_some(stored)}; does config.json belong to it?"
        )
    if unexpected := {name for name in stored - expected if not _is_spare(name, config)}:
        kind = article(config.model_type)
        raise CheckpointError(
            f"{folder}: {len(unexpected)} tensor{'s' * (len(unexpected) > 1)} that {kind} decoder of "
            f"{config.num_hidden_layers} layers does not have: {_some(unexpected)}; does config.json belong to it?"
        )


def _check_tensor(path: Path, file: Any, name: str, expected: tuple[int, ...]) -> None:
    entry = file.get_slice(name)
    if tuple(entry.get_shape()) != expected:
        raise CheckpointError(f"{path}: {name} has shape {tuple(entry.get_shape())}, config.json asks for {expected}")
    if entry.get_dtype() not in _FILE_DTYPES:
        raise CheckpointError(
            f"{path}: {name} is stored as {entry.get_dtype()}; supported: {', '.join(_FILE_DTYPES)} "
            f"(dequantize the checkpoint first)"
        )


def same(weight: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two weights of any shape and dtype are equal, NaN where the other is NaN."""
    return weight.shape == other.shape and bool(((weight == other) | ((weight != weight) & (other != other))).all())


def is_finite(weight: torch.Tensor) -> bool:
    """Return whether a weight holds neither NaN nor infinity."""
    # The extremes carry any NaN or infinity, and unlike isfinite they need no second tensor.
    return all(map(torch.isfinite, torch.aminmax(weight)))


def _some(names: set[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")
