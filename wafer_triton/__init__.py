"""Run the program of a wafer-scale chip on one GPU or a laptop, and predict its cycles on the wafer."""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

# Everything public, by the module that holds it. Names are loaded on first use, so that `import wafer_triton` pulls
# in neither torch nor triton, and costing works where they are missing. No public name may equal the
# name of a module of this package: an imported module is an attribute of its package and would replace the name.
_PUBLIC = {
    "cost.capacity": ("smallest_mesh", "what_fits"),
    "cost.price": ("price",),
    "count.account": ("Account", "account", "link_loads"),
    "count.routes": ("routes",),
    "device": ("Device",),
    "errors": ("WaferError",),
    "device.layout": ("MeshTensor", "scatter"),
    "device.mesh": ("Mesh", "as_mesh"),
    "models.convert": ("convert",),
    "models.decoder": ("WaferForCausalLM",),
    "ops": ("all_reduce", "mesh_gemm", "mesh_gemm_t", "mesh_gemv", "rms_norm", "softmax"),
    "ops.call": ("clear_cache", "run"),
    "ops.executors": ("executor",),
    "schedule.builder": ("Builder",),
    "schedule.expert_places": ("ExpertRegions",),
    "schedule.rounds": ("Cores", "Slot"),
    "schedule.schedule": ("Schedule",),
    "verify.faults": ("check",),
    "verify.intent": ("Intent",),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}
# Modules of functions: wafer_triton.estimate.gemm(...), wafer_triton.draw.links(...).
_MODULES = {"distributed": "ops.distributed", "draw": "draw", "estimate": "cost.estimate"}

__all__ = sorted((*_HOME, *_MODULES))


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"wafer_triton.{_MODULES[name]}")
    if name not in _HOME:
        raise AttributeError(f"module 'wafer_triton' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"wafer_triton.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
