"""The decoder against transformers on small random Llamas: logits of prefill and of every decode step, and tokens."""

from functools import cache

import pytest
import torch

import peers
from judge import logits_of, near, placed, random_model
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.random import config_of

pytestmark = pytest.mark.slow

SIZES = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 97, "max_position_embeddings": 256, "initializer_range": 0.3,
    "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
}  # fmt: skip
MODELS = {
    "gqa": {},
    "mha-tied": {
        "hidden_size": 32, "intermediate_size": 50, "num_attention_heads": 4, "num_key_value_heads": 4,
        "vocab_size": 61, "tie_word_embeddings": True,
    },
    "mqa-five-pairs": {
        "hidden_size": 27, "intermediate_size": 33, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10,
        "vocab_size": 53, "num_hidden_layers": 3,
    },
    "one-head-one-pair": {
        "hidden_size": 5, "intermediate_size": 7, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2,
        "vocab_size": 11, "num_hidden_layers": 1,
    },
    "one-layer": {"num_hidden_layers": 1},
}  # fmt: skip
# A prompt of one or two tokens leaves rows of a mesh idle, which is the same for grouped and for single keys.
PROMPTS = [
    ("gqa", 29, "1"), ("gqa", 29, "5x2"), ("mha-tied", 29, "3"), ("mha-tied", 29, "7"), ("mqa-five-pairs", 29, "1"),
    ("mqa-five-pairs", 29, "5x2"), ("one-head-one-pair", 29, "3"), ("one-head-one-pair", 29, "7"), ("gqa", 1, "5x2"),
    ("gqa", 2, "3"), ("mqa-five-pairs", 1, "7"), ("mqa-five-pairs", 2, "1"),
]  # fmt: skip


@cache
def judge(llama: str, dtype: str = "fp32") -> torch.nn.Module:
    return random_model("llama", dtype, **SIZES | MODELS[llama])


def wafer(llama: str, mesh: str, device, dtype: str = "fp32", **options) -> WaferForCausalLM:
    return placed(judge(llama, dtype), mesh, device, dtype, **{"max_length": 64, "max_prompt": 48} | options)


def some_tokens(count: int, llama: str = "gqa") -> list[int]:
    most = judge(llama).config.vocab_size
    return torch.randint(most, (count,), generator=torch.Generator().manual_seed(count)).tolist()


@torch.no_grad()
def judged(llama: str, tokens: list[int], prompt: int) -> torch.Tensor:
    return judge(llama)(torch.tensor([tokens])).logits[0, prompt - 1 :]


@pytest.mark.parametrize(("llama", "length", "mesh"), PROMPTS)
def test_prefill_and_decode_logits(llama, length, mesh, roomy):
    tokens = some_tokens(length + 11, llama)
    got = logits_of(wafer(llama, mesh, roomy), tokens, length)
    assert got.shape == (12, judge(llama).config.vocab_size) and near(got, judged(llama, tokens, length))


def test_fp16_accumulation_stays_near(roomy):
    tokens = some_tokens(20)
    narrow = logits_of(wafer("gqa", "2x3", roomy, "fp16", accumulate="fp16"), tokens, 9)
    wide = logits_of(wafer("gqa", "2x3", roomy, "fp16"), tokens, 9)
    assert not torch.equal(narrow, wide)
    assert (narrow - wide).abs().max() < 0.05 * wide.abs().max()


@pytest.mark.parametrize(("mesh", "exchange"), [("2", "explicit"), ("5x2", "elided")])
def test_poison_reaches_no_logit(mesh, exchange, roomy):
    tokens = some_tokens(20)
    decoder = wafer("gqa", mesh, roomy, executor=TorchExecutor(exchange=exchange, poison=True))
    got = logits_of(decoder, tokens, 7)
    assert torch.equal(got, logits_of(wafer("gqa", mesh, roomy), tokens, 7))


@pytest.mark.parametrize(("mesh", "exchange"), [("1", "elided"), ("3", "explicit"), ("2x3", "elided")])
def test_a_second_prompt_does_not_depend_on_the_first(mesh, exchange, roomy):
    decoder = wafer("gqa", mesh, roomy, executor=TorchExecutor(exchange=exchange))
    first, second = some_tokens(40), some_tokens(12)
    before = logits_of(decoder, first, 30)
    after = logits_of(decoder, second, 3)
    assert torch.equal(after, logits_of(wafer("gqa", mesh, roomy), second, 3))
    assert torch.equal(before, logits_of(decoder, first, 30))


def test_hundreds_of_steps_round_the_cache_fill_it_to_the_last_entry(roomy):
    tokens, decoder = some_tokens(230), wafer("one-layer", "5x2", roomy, max_length=230)
    assert near(logits_of(decoder, tokens, 8), judged("one-layer", tokens, 8)) and decoder.count == 230


def test_the_plain_layer_of_the_bench_equals_transformers():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaModel

    made = LlamaConfig(
        hidden_size=24, intermediate_size=40, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=6, vocab_size=9, rms_norm_eps=1e-5, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaModel(made).double().eval()
    ours = config_of({**made.to_dict(), "model_type": "llama"})
    weights = {f"model.{name}": one.detach() for name, one in model.named_parameters() if "layers.0" in name}
    ids = torch.tensor([[1, 5, 2, 7]])
    kept = {}
    hook = model.layers[0].register_forward_hook(lambda _, given, out: kept.update(x=given[0], out=out))
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values.layers[0]
    hook.remove()
    angle = torch.tensor([[3.0]]) * ours.inv_freq()[0]
    held = [one[0].transpose(0, 1).clone() for one in (cache.keys, cache.values)]
    for one in held:
        one[3] = float("nan")  # to be written
    out = peers.layer(kept["x"][0, 3:], weights, ours, *held, (angle.cos().double(), angle.sin().double()))
    want = kept["out"][0] if isinstance(kept["out"], tuple) else kept["out"]
    torch.testing.assert_close(out, want.view(4, -1)[3:], rtol=1e-6, atol=1e-6)
