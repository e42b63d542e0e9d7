"""A run of launches as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from wafer_triton.emulate.plan import Step


class Graph:
    """Calls a function at first, which compiles what is not compiled yet; then records it, and replays the record."""

    def __init__(self, run: Step, on_device: Callable[[], AbstractContextManager[object]]) -> None:
        self.run, self.on_device, self.ready = run, on_device, False
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if not self.ready:
            self.run()
            self.ready = True
            return
        with self.on_device():
            if self.graph is None:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=torch.cuda.Stream()):  # torch's own is the first GPU's
                    self.run()
                self.graph = graph
            self.graph.replay()
