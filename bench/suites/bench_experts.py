"""A mixture of experts: prefill with experts over the whole mesh and in regions, a decode step, and transformers."""

import pytest
import torch

from cases import EXCHANGES, ROOMY
from wafer_triton import ExpertRegions
from wafer_triton.device.mesh import Mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.decoder import WaferForCausalLM

SIDE, PROMPT, STEPS = 16, 128, 12
SETTINGS = {
    "model_type": "qwen3_moe", "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "vocab_size": 512,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "num_experts": 16, "num_experts_per_tok": 4,
    "moe_intermediate_size": 64, "norm_topk_prob": True, "tie_word_embeddings": False, "initializer_range": 0.2,
}  # fmt: skip
PLACES = {"spread": "spread", "regions": ExpertRegions(2, 11)}
TOKENS = [(7 * number + 3) % 512 for number in range(PROMPT)]


@pytest.fixture(scope="module")
def judge():
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**SETTINGS)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()


def placed(judge, where: str, exchange: str) -> WaferForCausalLM:
    """Return the judge's model on a mesh, its logits within the bound of its parity tests."""
    model = WaferForCausalLM.from_weights(
        DecoderConfig.from_dict(SETTINGS), judge.state_dict(), mesh=Mesh(SIDE, SIDE, ROOMY), max_length=PROMPT + 64,
        max_prompt=PROMPT, experts=PLACES[where], executor=TorchExecutor(exchange=exchange),
    )  # fmt: skip
    with torch.no_grad():
        wanted = judge(torch.tensor([TOKENS])).logits[0, -1]
    got = model.prefill(TOKENS)
    assert (got - wanted).norm() <= 1e-4 * wanted.norm()
    return model


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("where", PLACES)
def test_prefill(benchmark, note, judge, where, exchange):
    model = placed(judge, where, exchange)
    ran = next(iter(model.passes))
    facts = {"mesh": f"{SIDE}x{SIDE}", "dtype": "fp32", "exchange": exchange, "passes": ran.region_passes}
    note(what=f"prefill, {PROMPT} tokens, experts {where}", rounds=model.account().rounds, **facts)
    benchmark.pedantic(model.prefill, args=(TOKENS,), setup=model.reset, rounds=STEPS, warmup_rounds=2)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_step(benchmark, note, judge, exchange):
    model = placed(judge, "spread", exchange)
    model.step(1)
    before = model.account().rounds
    model.step(2)
    facts = {"mesh": f"{SIDE}x{SIDE}", "dtype": "fp32", "exchange": exchange}
    note(what="decode step of a mixture", rounds=model.account().rounds - before, **facts)
    benchmark.pedantic(model.step, args=(3,), rounds=STEPS, warmup_rounds=2)


@torch.no_grad()
def test_transformers(benchmark, note, judge):
    note(what=f"prefill, {PROMPT} tokens, transformers", dtype="fp32")
    ids = torch.tensor([TOKENS])
    benchmark.pedantic(judge, args=(ids,), rounds=STEPS, warmup_rounds=2)
