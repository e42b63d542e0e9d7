"""The decoder against transformers on small random Llamas: logits of prefill and of every decode step, and tokens."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from wafer_triton.device.mesh import as_mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.ops.testing import assert_close

pytestmark = pytest.mark.slow

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, eq=False)
class Llama:
    """A small Llama with random weights."""

    name: str
    hidden: int = 48
    ffn: int = 80
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 8
    vocab: int = 97
    layers: int = 2
    tied: bool = False

    def __str__(self) -> str:
        return self.name


GQA = Llama("gqa")
MODELS = [
    GQA,
    Llama("mha-tied", 32, 50, 4, 4, 8, 61, tied=True),
    Llama("mqa-five-pairs", 27, 33, 3, 1, 10, 53, layers=3),
    Llama("one-head-one-pair", 5, 7, 1, 1, 2, 11, layers=1),
]
# A prompt of one or two tokens leaves rows of a mesh idle, which is the same for grouped and for single keys.
PROMPTS = [
    (llama, 29, mesh) for llama, meshes in zip(MODELS, (("1", "5x2"), ("3", "7")) * 2, strict=True) for mesh in meshes
]
PROMPTS += [(GQA, 1, "5x2"), (GQA, 2, "3"), (MODELS[2], 1, "7"), (MODELS[2], 2, "1")]
prompts = pytest.mark.parametrize(("llama", "length", "mesh"), PROMPTS, ids=lambda value: str(value))


@cache
def judge(llama: Llama, dtype: str = "fp32") -> LlamaForCausalLM:
    """Return transformers' model; its weights are numbers of `dtype`."""
    torch.manual_seed(7)
    config = LlamaConfig(
        hidden_size=llama.hidden, intermediate_size=llama.ffn, num_attention_heads=llama.heads,
        num_key_value_heads=llama.kv_heads, head_dim=llama.head_dim, vocab_size=llama.vocab,
        num_hidden_layers=llama.layers, tie_word_embeddings=llama.tied, max_position_embeddings=256,
        rope_parameters={"rope_theta": 1000.0, "rope_type": "default"}, rms_norm_eps=1e-5, initializer_range=0.3,
        eos_token_id=None, bos_token_id=None, pad_token_id=None, attn_implementation="eager",
    )  # fmt: skip
    decoder = LlamaForCausalLM(config).eval()
    for name, weight in decoder.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    for weight in decoder.parameters():
        weight.data = weight.data.to(DTYPES[dtype]).float()
    return decoder


def wafer(llama: Llama, mesh: str, device, dtype: str = "fp32", **options) -> WaferForCausalLM:
    model = judge(llama, dtype)
    config = DecoderConfig.from_dict(model.config.to_dict(), name=llama.name)
    weights = {name: weight.detach().to(DTYPES[dtype]) for name, weight in model.state_dict().items()}
    options = {"max_length": 64, "max_prompt": 48} | options
    return WaferForCausalLM.from_weights(config, weights, mesh=as_mesh(mesh, device), dtype=dtype, **options)


def some_tokens(llama: Llama, count: int) -> list[int]:
    return torch.randint(llama.vocab, (count,), generator=torch.Generator().manual_seed(count)).tolist()


def logits_of(decoder: WaferForCausalLM, tokens: list[int], prompt: int) -> torch.Tensor:
    """Return logits [steps + 1, vocab] after the prompt and each further token."""
    decoder.reset()
    return torch.stack([decoder.prefill(tokens[:prompt]), *(decoder.step(token) for token in tokens[prompt:])])


@torch.no_grad()
def judged(llama: Llama, tokens: list[int], prompt: int, weights: str = "fp32", run: torch.dtype = torch.float32):
    model = judge(llama, weights)
    try:
        return model.to(run)(torch.tensor([tokens])).logits[0, prompt - 1 :]
    finally:
        model.float()


@prompts
def test_prefill_and_decode_logits(llama, length, mesh, roomy):
    tokens = some_tokens(llama, length + 11)
    got = logits_of(wafer(llama, mesh, roomy), tokens, length)
    want = judged(llama, tokens, length)
    assert got.shape == want.shape == (12, llama.vocab)
    worst = (got - want).abs().amax(1) / want.abs().amax(1)
    assert worst.max() < 1e-4, f"step {int(worst.argmax())}: {worst.max():.2e}"


def test_greedy_tokens(roomy):
    llama, prompt = GQA, some_tokens(GQA, 6)
    with torch.no_grad():
        want = judge(llama).generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, 6, dtype=torch.long),
            max_new_tokens=20,
            do_sample=False,
        )
    assert list(wafer(llama, "5x2", roomy).generate(prompt, 20)) == want[0, 6:].tolist()


@pytest.mark.parametrize(
    ("llama", "mesh", "dtype"), [(GQA, "3", "bf16"), (GQA, "2x3", "fp16"), (MODELS[2], "3", "fp16")], ids=str
)
def test_errors_are_at_most_twice_transformers(llama, mesh, dtype, roomy):
    tokens = some_tokens(llama, 27)
    got = logits_of(wafer(llama, mesh, roomy, dtype), tokens, 10)
    reference = judged(llama, tokens, 10, dtype, torch.float64)
    plain = judged(llama, tokens, 10, dtype, DTYPES[dtype])
    assert_close(got, reference, dtype, plain, name=f"{llama} on {mesh}")


@pytest.mark.parametrize("mesh", ["2x3"])
def test_fp16_accumulation_stays_near(mesh, roomy):
    tokens = some_tokens(GQA, 20)
    narrow = logits_of(wafer(GQA, mesh, roomy, "fp16", accumulate="fp16"), tokens, 9)
    wide = logits_of(wafer(GQA, mesh, roomy, "fp16"), tokens, 9)
    assert not torch.equal(narrow, wide)
    assert (narrow - wide).abs().max() < 0.05 * wide.abs().max()


@pytest.mark.parametrize(("mesh", "dtype"), [("3", "fp32"), ("2", "bf16"), ("5x2", "fp16")])
def test_explicit_and_elided_are_the_same_bits(mesh, dtype, roomy):
    tokens = some_tokens(GQA, 20)
    explicit, elided = (
        logits_of(wafer(GQA, mesh, roomy, dtype, executor=TorchExecutor(exchange=exchange)), tokens, 7)
        for exchange in ("explicit", "elided")
    )
    assert torch.equal(explicit, elided)


@pytest.mark.parametrize(("mesh", "exchange"), [("2", "explicit"), ("5x2", "elided")])
def test_poison_reaches_no_logit(mesh, exchange, roomy):
    tokens = some_tokens(GQA, 20)
    decoder = wafer(GQA, mesh, roomy, executor=TorchExecutor(exchange=exchange, poison=True))
    got = logits_of(decoder, tokens, 7)
    assert torch.equal(got, logits_of(wafer(GQA, mesh, roomy), tokens, 7))


@pytest.mark.parametrize(("mesh", "exchange"), [("1", "elided"), ("3", "explicit"), ("2x3", "elided")])
def test_a_second_prompt_does_not_depend_on_the_first(mesh, exchange, roomy):
    decoder = wafer(GQA, mesh, roomy, executor=TorchExecutor(exchange=exchange))
    first, second = some_tokens(GQA, 40), some_tokens(GQA, 12)
    before = logits_of(decoder, first, 30)
    after = logits_of(decoder, second, 3)
    assert torch.equal(after, logits_of(wafer(GQA, mesh, roomy), second, 3))
    assert torch.equal(before, logits_of(decoder, first, 30))


@pytest.mark.parametrize("mesh", ["2", "7"])
def test_the_cache_may_be_filled_to_the_last_entry(mesh, roomy):
    decoder = wafer(GQA, mesh, roomy, max_length=24)
    tokens = some_tokens(GQA, 24)
    got = logits_of(decoder, tokens, 1)
    want = judged(GQA, tokens, 1)
    assert ((got - want).abs().amax() / want.abs().amax()) < 1e-4
    assert decoder.count == 24


@pytest.mark.slow
def test_hundreds_of_steps_round_the_cache(roomy):
    llama = replace(GQA, name="long", layers=1)
    tokens = some_tokens(llama, 230)
    got, want = logits_of(wafer(llama, "5x2", roomy, max_length=230), tokens, 8), judged(llama, tokens, 8)
    worst = (got - want).abs().amax(1) / want.abs().amax(1)
    assert worst.max() < 1e-4, f"step {int(worst.argmax())}: {worst.max():.2e}"
