"""Pictures, tables, traces and pages of schedules: they show counts and prices, and compute nothing anew."""

import lazy_loader

# The stub __init__.pyi lists every public function; each is loaded on first use: most commands need its tables alone.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
