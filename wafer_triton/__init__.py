"""Run the program of a wafer-scale chip on one GPU or a laptop, and predict its cycles on the wafer."""

import lazy_loader

__version__ = "0.2.0"

# The stub __init__.pyi lists everything public. Names are loaded on first use, so that `import wafer_triton` pulls in
# neither torch nor triton, and costing works where they are missing. No public name but `draw` may equal the name of a
# module of this package: an imported module is an attribute of its package and would replace the name.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
