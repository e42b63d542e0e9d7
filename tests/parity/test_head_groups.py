"""Head groups against transformers: any number, on meshes wider than a head's pairs, equals the model."""

from functools import cache

import pytest
import torch

from judge import logits_of, near, placed, random_model
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import MeshError
from wafer_triton.models.decoder import WaferForCausalLM

pytestmark = pytest.mark.slow

SIZES = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 61, "max_position_embeddings": 80, "initializer_range": 0.3,
    "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
}  # fmt: skip
MODELS = {
    "llama": ("llama", {}),
    "llama-mha": ("llama", {"num_attention_heads": 8, "num_key_value_heads": 8}),
    "qwen2": ("qwen2", {"hidden_size": 60}),  # whose heads are as wide as its width over their number
    "qwen3": ("qwen3", {"num_attention_heads": 8, "num_key_value_heads": 2}),
}
TOKENS, PROMPT = 20, 11


@cache
def judge(model: str) -> torch.nn.Module:
    kind, more = MODELS[model]
    return random_model(kind, **SIZES | more)


@cache
@torch.no_grad()
def judged(model: str, seed: int = 3) -> tuple[list[int], torch.Tensor]:
    """Return tokens, and the logits after the prompt and each further token."""
    tokens = torch.randint(61, (TOKENS,), generator=torch.Generator().manual_seed(seed)).tolist()
    return tokens, judge(model)(torch.tensor([tokens])).logits[0, PROMPT - 1 :]


def wafer(model: str, mesh: str, device, **options) -> WaferForCausalLM:
    return placed(judge(model), mesh, device, **{"max_length": 40} | options)


def check(decoder: WaferForCausalLM, model: str) -> None:
    tokens, wanted = judged(model)
    assert near(logits_of(decoder, tokens, PROMPT), wanted)


def counts(model: str) -> dict[str, int]:
    """Return numbers of head groups to try, by a description."""
    config = judge(model).config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    return {"one": 1, "two": 2, "odd": 3, "key-value heads": kv_heads, "between": heads - 1, "query heads": heads}


NAMES = ("one", "two", "odd", "key-value heads", "between", "query heads")
# Each number on the model with most heads, and some on the others.
CASES = [("llama-mha", name, "3x12", "explicit") for name in NAMES if name != "key-value heads"]
CASES += [
    ("qwen2", "between", "3x12", "explicit"),
    ("qwen3", "key-value heads", "3x12", "explicit"),
]
CASES += [("llama", "odd", "2x23", "elided"), ("qwen3", "query heads", "2x23", "elided")]


@pytest.mark.parametrize(("model", "name", "mesh", "exchange"), CASES)
def test_every_number_of_head_groups_equals_the_model(model, name, mesh, exchange, roomy):
    number = counts(model)[name]
    decoder = wafer(model, mesh, roomy, head_groups=number, executor=TorchExecutor(exchange=exchange, poison=True))
    assert decoder.block.head_groups == decoder.placement.prefill.head_groups == number
    check(decoder, model)


def test_on_forty_columns(roomy):
    for number in {counts("qwen3")["key-value heads"], counts("qwen3")["query heads"]}:
        check(wafer("qwen3", "1x40", roomy, head_groups=number, prefill_mesh="3"), "qwen3")


@pytest.mark.parametrize("model", ["llama-mha", "qwen3"])
def test_without_a_number_the_fastest_is_taken(model, roomy):
    decoder = wafer(model, "3x13", roomy)
    assert decoder.block.head_groups > 1
    check(decoder, model)


@pytest.mark.parametrize(
    ("mesh", "other", "exchange"), [("4", "3", "explicit"), ("12", None, "explicit"), ("3x16", "2x3", "elided")]
)
def test_prefill_and_decode_on_meshes_of_their_own(mesh, other, exchange, roomy):
    executor = TorchExecutor(exchange=exchange)
    decoder = wafer("qwen3", mesh, roomy, head_groups=3, prefill_mesh=other, groups=(2,), executor=executor)
    check(decoder, "qwen3")


@pytest.mark.parametrize(("model", "exchange"), [("qwen2", "elided"), ("qwen3", "explicit")])
def test_each_sequence_of_a_batch_equals_itself_alone(model, exchange, roomy):
    decoder = wafer(model, "3x14", roomy, head_groups=4, batch=2, executor=TorchExecutor(exchange=exchange))
    texts = [judged(model, seed)[0] for seed in (3, 7)]
    logits = torch.stack([decoder.prefill(text[:PROMPT], sequence=number) for number, text in enumerate(texts)])
    for step in range(PROMPT, TOKENS):
        logits = decoder.advance([text[step] for text in texts])
    assert near(logits, torch.stack([judged(model, seed)[1][-1] for seed in (3, 7)]))


@pytest.mark.parametrize(("model", "number"), [("llama-mha", 6), ("qwen2", 6), ("qwen3", 5)])
def test_parameters_are_put_together_from_the_groups(model, number, roomy):
    decoder, wanted = wafer(model, "2x13", roomy, head_groups=number), judge(model).state_dict()
    state = decoder.state_dict()
    assert all(torch.equal(state[name], weight) for name, weight in wanted.items() if name in state)
    decoder.load_state_dict({name: torch.zeros_like(weight) for name, weight in state.items()})
    assert decoder.prefill([1, 2, 3]).eq(0).all() and decoder.step(4).eq(0).all()
    decoder.load_state_dict(state)
    check(decoder, model)


@pytest.mark.parametrize(("number", "other"), [(6, 1), (1, 5), (3, 2)])
def test_the_phases_may_hold_heads_in_different_groups(number, other, roomy):
    decoder = wafer("qwen3", "12", roomy, head_groups=number, prefill_head_groups=other)
    assert (decoder.placement.decode.head_groups, decoder.placement.prefill.head_groups) == (number, other)
    check(decoder, "qwen3")


def test_a_prefill_mesh_of_fewer_columns_has_as_many_groups(roomy):
    decoder = wafer("llama", "1x12", roomy, head_groups=6, prefill_mesh="4")
    assert decoder.placement.prefill.head_groups == 4
    check(decoder, "llama")


def test_a_number_that_does_not_fit_says_which_do(roomy):
    with pytest.raises(MeshError, match="head_groups = 7, but 6 query heads on 12 columns take .* from 1 to 6"):
        wafer("llama", "12", roomy, head_groups=7)
    with pytest.raises(MeshError, match="head_groups = 5, but 6 query heads on 4 columns take a whole .* from 1 to 4"):
        wafer("llama", "4", roomy, head_groups=5)
