"""A decoder by the Triton executor against the torch executor, as tests/test_triton_executor.py by the interpreter."""

from dataclasses import replace

import pytest
import torch

from tiles import same_bits
from tiny import drawn
from wafer_triton import ExpertRegions
from wafer_triton.device.mesh import as_mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.ops.testing import assert_close
from wafer_triton.shape.moe import Experts

pytestmark = pytest.mark.slow

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CONFIG = DecoderConfig(
    hidden_size=12, intermediate_size=16, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
    vocab_size=13, max_position_embeddings=64, rms_norm_eps=1e-5,
)  # fmt: skip
MIXTURE = replace(
    CONFIG, num_key_value_heads=4, qk_norm=True, qk_norm_whole=True, clip_qkv=2.0,
    model_type="qwen2_moe", experts=Experts(5, 2, 7, shared_width=10, normalized=False),
)  # fmt: skip
TOKENS = [3, 1, 4, 1, 5, 9, 2]


def logits(executor, mesh: str, dtype: str = "fp32", prompt: int = 5, config=CONFIG, **options) -> torch.Tensor:
    weights = {name: weight.to(DTYPES[dtype]) for name, weight in drawn(config).items()}
    model = WaferForCausalLM.from_weights(
        config, weights, mesh=as_mesh(mesh), dtype=dtype, max_length=10, executor=executor, **options
    )
    logits = [model.prefill(TOKENS[:prompt]), *(model.step(token) for token in TOKENS[prompt:])]
    return torch.stack([row.cpu().clone() for row in logits])


def test_a_decoder_layer_agrees_with_torch():
    want = logits(TorchExecutor(), "2", "fp16")
    got = logits(TritonExecutor(), "2", "fp16")
    assert_close(got, want.double(), "fp16", want * (1 + 2e-3))


def test_head_groups_agree_with_torch():
    want = logits(TorchExecutor(), "2", head_groups=2)
    got = logits(TritonExecutor(), "2", head_groups=2)
    assert_close(got, want.double(), "fp32", want * (1 + 1e-5))
    elided = logits(TritonExecutor(exchange="elided", shuffle=6, poison=True), "2", head_groups=2)
    assert same_bits(elided, got)


def test_a_mixture_of_experts_agrees_with_torch():
    want = logits(TorchExecutor(), "2", prompt=6, config=MIXTURE)
    elided = logits(TritonExecutor(exchange="elided", shuffle=6, poison=True), "2", prompt=6, config=MIXTURE)
    assert_close(elided, want.double(), "fp32", want * (1 + 1e-5))
    regions = {"experts": ExpertRegions(2, 1), "config": MIXTURE, "prompt": 6}
    here = logits(TritonExecutor(shuffle=6, poison=True), "2", **regions)
    assert_close(here, logits(TorchExecutor(), "2", **regions).double(), "fp32", want * (1 + 1e-5))
    assert same_bits(logits(TritonExecutor(exchange="elided"), "2", **regions), here)


def test_the_decoder_runs_on_compute_shift_and_trees(launches):
    logits(TritonExecutor(), "3", prompt=6)
    # prefill: qkv, attention, output, gate and up, down on 3 x 3; GEMM-T's 3 row reductions; norms and softmax
    assert launches["compute-shift, 3 rounds in a launch"] == 5
    assert sum(number for what, number in launches.items() if "reduce tree" in what) > 0
