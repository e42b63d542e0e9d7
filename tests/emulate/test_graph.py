"""CUDA graphs of what the Triton executor launches, with CUDA replaced by a recorder."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from wafer_triton.emulate.triton import TritonExecutor


def test_a_graph_is_recorded_at_the_second_call_and_then_replayed(monkeypatch):
    calls = []

    class Graph:
        def replay(self):
            calls.append("replay")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream: nullcontext(calls.append("record")))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    step = TritonExecutor(device="cuda").capture(lambda: calls.append("run"))
    assert calls == []
    for now in (["run"], ["record", "run", "replay"], ["replay"]):
        calls.clear()
        step()
        assert calls == now
    assert TritonExecutor().capture(calls.clear) == calls.clear, "on a CPU it is what it was"


def test_a_recording_that_was_interrupted_is_done_again(monkeypatch):
    calls = []

    def run():
        calls.append("run")
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: calls.append("replay")))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    step = TritonExecutor(device="cuda").capture(run)
    step()
    with pytest.raises(KeyboardInterrupt):
        step()
    step()
    assert calls == ["run", "run", "run", "replay"]
