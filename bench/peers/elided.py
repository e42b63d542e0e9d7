"""wafer_triton: `mesh_gemm` of torch tensors, tiles read where they lie."""

from collections.abc import Callable
from functools import partial

import explicit

PACKAGES = explicit.PACKAGES
prepare: Callable = partial(explicit.prepare, exchange="elided")
