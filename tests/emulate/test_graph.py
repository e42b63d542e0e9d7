"""CUDA graphs of the Triton executor's launches, with CUDA replaced by a recorder."""

import warnings
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.errors import BackendError


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
    assert TritonExecutor().capture(calls.clear) == calls.clear, "on a CPU nothing is captured"


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


def test_compiled_steps_are_recorded_at_the_first_call(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: calls.append("replay")))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    step = TritonExecutor(device="cuda").capture(lambda: calls.append("run"), compiled=True)
    step()
    step()
    assert calls == ["run", "replay", "replay"]


def test_a_recording_that_cuda_refuses_leaves_plain_launches_and_is_said_once(monkeypatch):
    calls = []

    def run():
        calls.append("run")
        if recording:
            raise error

    @contextmanager
    def graph(graph, stream):
        recording.append(True)
        try:
            yield
        finally:
            recording.clear()

    recording, error = [], RuntimeError("operation not permitted\nwhen stream is capturing")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    step = TritonExecutor(device="cuda").capture(run)
    step()
    said = r"no graph of these launches \(RuntimeError: operation not permitted when stream is capturing\); they go one"
    with pytest.warns(UserWarning, match=said):
        step()
    assert calls == ["run"] * 3, "compiled, refused, launched"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step()
    assert calls == ["run"] * 4
    error = BackendError("a core gave up")
    with pytest.raises(BackendError):
        TritonExecutor(device="cuda").capture(run, compiled=True)()
