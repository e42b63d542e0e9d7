"""Executors by name: the backend, the exchange and the torch device that emulate a mesh on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from inspect import signature
from typing import Any

import torch

from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import BackendError, nearest


def emulation_device(emulate_on: str | torch.device = "auto") -> str:
    """Return the torch device of `emulate_on`: "auto" is a GPU if torch finds one and Triton compiles for it."""
    if emulate_on != "auto":
        return str(emulate_on)
    compiles = os.environ.get("TRITON_INTERPRET") != "1" and find_spec("triton") is not None
    return "cuda" if compiles and torch.cuda.is_available() else "cpu"


def executor(
    backend: str | None = None, exchange: str = "explicit", emulate_on: str | torch.device = "auto", **options: Any
) -> Executor:
    """Return the executor on a torch device or "auto", a GPU where there is one; triton on a GPU, torch on a CPU.

    `backend` "torch" or "triton" chooses otherwise, `exchange` is "explicit" (tiles are copied) or "elided" (read where
    they lie), and `options` has `poison=True` to fill memory with NaN. `Executor.bind` makes a program:

        >>> program = executor("torch").bind(schedule, {"a": tiles})  # [rows, cols, *tile]
        >>> program.run()
        >>> program.read("c")

    Raises BackendError if the backend or the device is unknown or cannot run here.
    """
    device = emulation_device(emulate_on)
    try:
        if torch.empty(0, device=device).device.type not in ("cpu", "cuda"):
            raise RuntimeError("it is neither a CPU nor a GPU with CUDA")
    except (RuntimeError, AssertionError, TypeError) as error:  # torch raises all of them for a device it lacks
        reason = str(error).partition("\n")[0]
        said = f" ({reason})" if len(reason) <= 100 else ""
        raise BackendError(f"emulate_on {device!r}: torch has no such device here{said}; use {_devices()}") from None
    chosen = backend or ("torch" if torch.device(device).type == "cpu" else "triton")
    if chosen == "torch":
        _check_options(chosen, TorchExecutor, options)
        return TorchExecutor(device=device, exchange=exchange, **options)
    if chosen == "triton":
        try:
            from wafer_triton.emulate.triton import TritonExecutor
        except ImportError as missing:
            raise BackendError(
                f"the Triton backend needs the package triton ({missing}); use backend='torch'"
            ) from None
        _check_options(chosen, TritonExecutor, options)
        return TritonExecutor(device=device, exchange=exchange, **options)
    raise BackendError(f"backend {backend!r}: choose 'torch' or 'triton'")


def _devices() -> str:
    """Return the choices of `emulate_on` that this machine has."""
    every = ("auto", "cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count())))
    return f"{', '.join(map(repr, every[:-1]))} or {every[-1]!r}"


def _check_options(backend: str, kind: type[Executor], options: Mapping[str, Any]) -> None:
    """Raise BackendError for an option that a backend lacks."""
    known = ["emulate_on", *(name for name in signature(kind).parameters if name != "device")]
    for name in options:
        if name not in known:
            hint = "; a device is given as emulate_on" if name == "device" else nearest(name, known)
            options_are = f"options: {', '.join(known)}"
            raise BackendError(f"executor: backend {backend!r} has no option {name!r}{hint}; {options_are}")


def described(on: Executor) -> str:
    """Return where and how an executor runs, such as "on NVIDIA H200 by Triton, exchange explicit"."""
    ranks, inside = getattr(on, "ranks", 1), getattr(on, "inside", on)  # of a DistributedExecutor
    on_gpu = torch.device(inside.device).type == "cuda"
    where = torch.cuda.get_device_name(inside.device) if on_gpu else "the CPU"
    by = "torch" if isinstance(inside, TorchExecutor) else "Triton" if on_gpu else "Triton's interpreter"
    each = f"{ranks} ranks, each on " if ranks > 1 else ""
    return f"on {each}{where} by {by}, exchange {inside.exchange}"
