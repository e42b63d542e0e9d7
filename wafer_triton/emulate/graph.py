"""A run of launches as a CUDA graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from wafer_triton.emulate.plan import Step
from wafer_triton.errors import WaferError


class Graph:
    """Calls `run` at first, which compiles its kernels; records its launches at the second call, and replays them.

    With `compiled` the first call records already. Launches that CUDA refuses to record go one by one from then on; a
    `UserWarning` has the reason.
    """

    def __init__(
        self, run: Step, on_device: Callable[[], AbstractContextManager[object]], compiled: bool = False
    ) -> None:
        self.run, self.on_device, self.compiled = run, on_device, compiled
        self.graph: torch.cuda.CUDAGraph | None = None
        self.refused = False

    def __call__(self) -> None:
        if self.refused or not self.compiled:
            self.run()
            self.compiled = True
            return
        with self.on_device():
            if self.graph is None:
                self.graph = self._recorded()
            if self.graph is not None:
                self.graph.replay()
                return
        self.run()

    def _recorded(self) -> torch.cuda.CUDAGraph | None:
        """Returns the record of a run, which computes nothing yet; None if CUDA refuses it."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.Stream()):  # torch's own is the first GPU's
                self.run()
        except RuntimeError as error:
            if isinstance(error, WaferError):
                raise
            self.refused = True
            reason = " ".join(str(error).split())[:200]
            warnings.warn(
                f"CUDA recorded no graph of these launches ({type(error).__name__}: {reason}); they go one by one, "
                f"with the same results, in more time",
                stacklevel=3,
            )
            return None
        return graph
