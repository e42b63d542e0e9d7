"""Pictures, tables, traces and pages of schedules: they show counts and prices, and compute nothing anew."""

from importlib import import_module
from typing import Any

# Every public function by the module that holds it, loaded on first use: most commands need its tables alone.
_PUBLIC = {
    "pages": ("page",),
    "pictures": ("links", "timeline"),
    "scenes": ("scene",),
    "studies": ("validation",),
    "sweeps": ("curves",),
    "summaries": ("values",),
    "tiles": ("inspect",),
    "trace": ("rounds",),
    "trace_file": ("perfetto",),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'wafer_triton.draw' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"wafer_triton.draw.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]
