"""The choice of the emulating device: a GPU where there is one, the CPU, or the given one."""

import warnings

import pytest
import torch
from torch import nn

from wafer_triton import convert, distributed, ops
from wafer_triton.cli.main import main
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import BackendError
from wafer_triton.models import convert as conversion
from wafer_triton.models import demo
from wafer_triton.models import options as options_of_models
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.ops import executors

SHAPE = {
    "model_type": "llama", "hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 13,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip


@pytest.fixture
def with_gpu(monkeypatch):
    """Patch a machine whose torch finds a GPU and whose Triton compiles; nothing may run there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.fixture
def asked(monkeypatch):
    """Record the executors that models and conversions ask for; each gets torch's on the CPU."""
    given = []

    def make(backend=None, exchange="explicit", emulate_on="auto", **more):
        given.append(emulate_on)
        return TorchExecutor(exchange=exchange)

    monkeypatch.setattr(options_of_models, "executor_of", make)
    monkeypatch.setattr(conversion, "executor", make)
    monkeypatch.setattr(conversion, "shared_executor", make)
    return given


def test_auto_is_a_gpu_where_there_is_one(with_gpu, monkeypatch):
    assert ops.emulation_device() == "cuda"
    assert [ops.emulation_device(on) for on in ("cpu", "cuda:1")] == ["cpu", "cuda:1"]
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert ops.emulation_device() == "cpu", "the interpreter runs kernels on the CPU"
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(executors, "find_spec", lambda name: None)
    assert ops.emulation_device() == "cpu", "no Triton is installed"


def test_without_a_gpu_auto_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert ops.emulation_device() == ops.executor().device == distributed.executor().device == "cpu"


def test_a_model_and_a_conversion_pass_their_choice_on(asked):
    WaferForCausalLM.from_config(SHAPE, mesh=2)
    WaferForCausalLM.from_config(SHAPE, mesh=2, emulate_on="cuda:1")
    x = torch.randn(3, 4)
    for on in ("auto", "cpu"):
        layer = convert(nn.Sequential(nn.Linear(4, 5)), mesh=2, emulate_on=on)
        assert layer(x).device == x.device
    assert asked == ["auto", "cuda:1", "auto", "auto", "cpu", "cpu"]


def test_a_description_has_machine_backend_and_exchange(monkeypatch):
    assert ops.described(TorchExecutor(exchange="elided")) == "on the CPU by torch, exchange elided"
    assert ops.described(ops.executor("triton", emulate_on="cpu")) == (
        "on the CPU by Triton's interpreter, exchange explicit"
    )
    model = WaferForCausalLM.from_config(SHAPE, mesh=2, emulate_on="cpu")
    assert "on 2x2 cores, emulated on the CPU by torch, exchange explicit" in repr(model)

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(executors, "TorchExecutor", type("Other", (), {}))
    on = TorchExecutor(device="cuda:0")
    assert ops.described(on) == "on NVIDIA H200 by Triton, exchange explicit"
    on.ranks, on.inside = 4, on
    assert ops.described(on) == "on 4 ranks, each on NVIDIA H200 by Triton, exchange explicit"


def test_an_executor_and_a_device_together_are_refused():
    with pytest.raises(BackendError, match="emulate_on 'cpu' beside an executor on the CPU by torch, .*: give one of"):
        WaferForCausalLM.from_config(SHAPE, mesh=2, emulate_on="cpu", executor=TorchExecutor())


@pytest.mark.parametrize(
    ("gpus", "said"),
    [(0, "'auto' or 'cpu'"), (1, "'auto', 'cpu' or 'cuda:0'"), (2, "'auto', 'cpu', 'cuda:0' or 'cuda:1'")],
)
def test_a_device_that_is_not_there_is_refused_with_those_that_are(monkeypatch, gpus, said):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(BackendError, match=f"emulate_on 'nope': torch has no such device here; use {said}$"):
        WaferForCausalLM.from_config(SHAPE, mesh=2, emulate_on="nope")


def test_a_device_without_values_is_refused():
    said = r"emulate_on 'meta': torch has no such device here \(it is neither a CPU nor a GPU with CUDA\); use 'auto'"
    with pytest.raises(BackendError, match=said):
        WaferForCausalLM.from_config(SHAPE, mesh=2, emulate_on="meta")


def test_the_command_line_passes_the_choice_on(monkeypatch):
    given = []
    monkeypatch.setattr(distributed, "executor", lambda *_, emulate_on, **more: given.append(emulate_on))
    threads = torch.get_num_threads()
    for words in ([], ["--emulate-on", "cuda:1"]):
        assert main(["generate", "--model", "nowhere", "--prompt", "a", *words]) == 2
    torch.set_num_threads(threads)
    assert given == ["auto", "cuda:1"]


class Elsewhere(torch.Tensor):
    """A tensor on a device of its own: it computes with no other before it has been moved."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        given = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if function is torch.Tensor.to:
            return args[0].as_subclass(torch.Tensor)
        if not all(isinstance(arg, Elsewhere) for arg in given):
            raise RuntimeError("Expected all tensors to be on the same device")
        return super().__torch_function__(function, types, args, kwargs or {})


def test_the_demo_compares_with_a_judge_on_another_device():
    model = WaferForCausalLM.from_config(SHAPE, mesh=2, emulate_on="cpu")
    tokens = list(model.generate([3, 1, 4], 3, stop=()))
    model.reset()
    logits = [model.prefill([3, 1, 4]), *(model.step(token) for token in tokens[:-1])]

    class Judge:
        device = torch.device("cpu")

        def generate(self, ids, **options):
            assert ids.device == self.device
            said = [row[None].clone().as_subclass(Elsewhere) for row in logits]
            return type("Said", (), {"sequences": torch.tensor([[3, 1, 4, *tokens]]), "logits": said})

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert demo.compare(model, Judge(), [3, 1, 4], 3).passed
