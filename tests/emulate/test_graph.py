"""CUDA graphs of the Triton executor's launches, with CUDA replaced by a recorder."""

import re
import warnings
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from tiny import CONFIG
from wafer_triton import mesh_gemm
from wafer_triton.algorithms.product import recipe
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.parts import Graph
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.errors import BackendError
from wafer_triton.models.decoder import WaferForCausalLM


@pytest.fixture
def cuda(monkeypatch):
    """Patch CUDA's graphs: `calls` lists what is done, `capturing` says whether the current stream records."""

    @contextmanager
    def graph(graph, stream, capture_error_mode):
        assert capture_error_mode == "thread_local", "or other threads cannot allocate"
        assert not Graph.recording.acquire(blocking=False), "no other thread records"
        seen.calls.append("record")
        seen.capturing = True
        try:
            yield
        finally:
            seen.capturing = False

    seen = SimpleNamespace(calls=[], capturing=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: seen.calls.append("replay")))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: seen.capturing)
    return seen


def test_a_graph_is_recorded_at_the_second_call_and_then_replayed(cuda):
    step = TritonExecutor(device="cuda").capture(lambda: cuda.calls.append("run"))
    assert cuda.calls == []
    for now in (["run"], ["record", "run", "replay"], ["replay"]):
        cuda.calls.clear()
        step()
        assert cuda.calls == now
    assert not Graph.recording.locked()
    assert TritonExecutor().capture(cuda.calls.clear) == cuda.calls.clear, "on a CPU nothing is captured"


def test_a_recording_that_was_interrupted_is_done_again(cuda):
    def run():
        cuda.calls.append("run")
        if cuda.calls == ["run", "record", "run"]:
            raise KeyboardInterrupt

    step = TritonExecutor(device="cuda").capture(run)
    step()
    with pytest.raises(KeyboardInterrupt):
        step()
    step()
    assert cuda.calls == ["run", "record", "run", "record", "run", "replay"]


def test_compiled_steps_are_recorded_at_the_first_call(cuda):
    step = TritonExecutor(device="cuda").capture(lambda: cuda.calls.append("run"), compiled=True)
    step()
    step()
    assert cuda.calls == ["record", "run", "replay", "replay"]


def test_a_recording_that_cuda_refuses_leaves_plain_launches_and_is_said_once(cuda):
    def run():
        cuda.calls.append("run")
        if cuda.capturing:
            raise error

    error = RuntimeError("operation not permitted\nwhen stream is capturing")
    step = TritonExecutor(device="cuda").capture(run)
    step()
    said = r"no graph of these launches \(RuntimeError: operation not permitted when stream is capturing\); they go one"
    with pytest.warns(UserWarning, match=said):
        step()
    assert cuda.calls == ["run", "record", "run", "run"], "compiled, refused, launched"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step()
    assert cuda.calls[4:] == ["run"]
    error = BackendError("a core gave up")
    with pytest.raises(BackendError):
        TritonExecutor(device="cuda").capture(run, compiled=True)()


# --- within a graph that the caller records ---


def test_launches_go_one_by_one_into_a_graph_of_the_caller(cuda):
    step = TritonExecutor(device="cuda").capture(lambda: cuda.calls.append("run"))
    step()
    cuda.capturing = True
    step()
    assert cuda.calls == ["run", "run"]


def test_calls_within_a_graph_of_the_caller_are_refused_by_name(cuda):
    what, on = recipe("gemm", Mesh(2, 2), "fp32", ((2, 2), (2, 2)), ()), TorchExecutor()
    model = WaferForCausalLM.from_config(CONFIG, mesh=2, max_length=8, executor=on)
    model.prefill([1, 2])
    on.device, cuda.capturing = "cuda", True
    ones = torch.ones(2, 2)
    for name, refused in (
        (what.schedule.name, lambda: mesh_gemm(ones, ones, mesh=2, executor=on)),
        (what.schedule.name, lambda: on.bind(what.schedule, {})),
        (model.config.name, lambda: model.step(3)),
        (model.config.name, lambda: model(torch.tensor([[1, 2]]))),
    ):
        words = rf"^{re.escape(name)}: the current stream records a CUDA graph.* call it outside of torch.cuda.graph"
        with pytest.raises(BackendError, match=words):
            refused()


def test_torch_compile_leaves_the_operator_out_of_its_graphs():
    assert torch.Tag.cudagraph_unsafe in torch.ops.wafer_triton.apply.default.tags
