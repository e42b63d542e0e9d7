"""Every family and option against transformers, from folders of small random checkpoints."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from judge import Family, judge, logits_of, near, random_model
from wafer_triton.device.dtype import torch_dtype
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.ops.testing import assert_close
from wafer_triton.shape.read import shape_of

pytestmark = pytest.mark.slow

SIZES = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 80, "initializer_range": 0.2,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
PROMPT, STEPS = 11, 64


def of(name: str, kind: str = "llama", tied: bool = False, rope: dict | None = None, **more) -> Family:
    """Return a family of `SIZES` and further settings."""
    angles = {"rope_theta": 5000.0, **(rope or {})}
    return Family(name, kind, SIZES | {"tie_word_embeddings": tied, "rope_parameters": angles} | more)


FAMILIES = [
    of("llama2", num_key_value_heads=6),
    of("llama3", rope={"rope_theta": 500000.0}),
    of("llama3.1-llama3-rope", rope=LLAMA3 | {"original_max_position_embeddings": 16}),
    of("llama3.2-tied", tied=True, rope=LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 16}),
    of("linear-rope", rope={"rope_type": "linear", "factor": 2.0}),
    # the text goes past the 64 positions where dynamic scaling begins
    of("dynamic-rope", rope={"rope_type": "dynamic", "factor": 2.0}, max_position_embeddings=64),
    of("yarn-rope", rope={"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}),
    of("mistral-own-head-dim", "mistral", sliding_window=None, head_dim=12),
    of("qwen2", "qwen2", tied=True),
    of("qwen2.5-yarn", "qwen2", rope={"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}),
    of("qwen3", "qwen3", head_dim=10),
    of("qwen3-tied", "qwen3", tied=True, head_dim=16, num_attention_heads=4),
]
families = pytest.mark.parametrize("family", FAMILIES, ids=str)
BIASED = next(family for family in FAMILIES if family.name == "qwen2")
NORMED = next(family for family in FAMILIES if family.name == "qwen3")


@cache
@torch.no_grad()
def judged(family: Family, weights: str = "fp32") -> tuple[list[int], torch.Tensor]:
    """Return a text of greedy tokens after a prompt, and the logits that chose each."""
    model = judge(family, weights)
    tokens = torch.randint(97, (PROMPT,), generator=torch.Generator().manual_seed(3)).tolist()
    out = model(torch.tensor([tokens]), use_cache=True)
    logits = [out.logits[0, -1]]
    for _ in range(STEPS):
        tokens.append(int(logits[-1].argmax()))
        out = model(torch.tensor([tokens[-1:]]), past_key_values=out.past_key_values, use_cache=True)
        logits.append(out.logits[0, -1])
    return tokens, torch.stack(logits)


def wafer(folder: Path, mesh: str = "3", **options) -> WaferForCausalLM:
    return WaferForCausalLM.from_pretrained(folder, mesh=mesh, **({"max_length": PROMPT + STEPS} | options))


@families
def test_logits_and_tokens_equal_transformers(family, folders, roomy):
    tokens, wanted = judged(family)
    count = len(tokens) if family.name == "dynamic-rope" else PROMPT + 12  # its angles change past 64 positions
    decoder = wafer(folders(family), device=roomy)
    assert near(logits_of(decoder, tokens[:count], PROMPT), wanted[: count - PROMPT + 1])
    assert list(decoder.generate(tokens[:PROMPT], 8)) == tokens[PROMPT : PROMPT + 8]


@families
def test_parameters_equal_transformers(family, folders, roomy):
    wanted, decoder = judge(family).state_dict(), wafer(folders(family), "2x3", device=roomy)
    assert decoder.state_dict().keys() == wanted.keys()
    assert all(torch.equal(weight, wanted[name]) for name, weight in decoder.state_dict().items())
    assert [name for name, _ in decoder.named_parameters()] == list(decoder.weights)
    assert sum(weight.numel() for weight in decoder.parameters()) == judge(family).num_parameters()


@pytest.mark.parametrize(
    ("family", "mesh", "dtype"), [(BIASED, "3", "bf16"), (NORMED, "2x3", "fp16"), (FAMILIES[1], "3", "fp16")], ids=str
)
@torch.no_grad()
def test_errors_are_at_most_twice_transformers(family, mesh, dtype, folders, roomy):
    (tokens, _), model = judged(family, dtype), judge(family, dtype)
    plain, reference = (
        model.to(run)(torch.tensor([tokens])).logits[0, PROMPT - 1 :] for run in (torch_dtype(dtype), torch.float64)
    )
    model.float()
    decoder = wafer(folders(family, dtype), mesh, device=roomy, dtype=dtype)
    assert_close(logits_of(decoder, tokens, PROMPT), reference, dtype, plain=plain)


@pytest.mark.parametrize(
    ("family", "mesh"), [(BIASED, "1"), (BIASED, "5x2"), (BIASED, "1x4"), (NORMED, "2x3"), (NORMED, "7")], ids=str
)
def test_every_mesh_says_the_same(family, mesh, folders, roomy):
    tokens, _ = judged(family)
    decoder = wafer(folders(family), mesh, device=roomy, max_length=PROMPT + 20)
    assert list(decoder.generate(tokens[:PROMPT], 20)) == tokens[PROMPT : PROMPT + 20]


# Changes of a `config.json` with which transformers computes the same model, or another that is computed here as well.
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 20}
MEANT = [
    ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2, "layer_types": ...}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 28, "layer_types": ...}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}),  # `layer_types` is full
    ("qwen2", {"use_sliding_window": True, "sliding_window": 80, "max_window_layers": 0, "layer_types": ...}),
    ("qwen3", {"use_sliding_window": False, "sliding_window": 4, "layer_types": ...}),
    ("mistral", {"sliding_window": 80}),
    ("mistral", {"sliding_window": ..., "max_position_embeddings": 4096}),
    ("llama", {"sliding_window": 4}),
    ("llama", {"hidden_act": "swish"}),
    ("llama", {"num_key_value_heads": None}),
    ("qwen2", {"num_key_value_heads": None}),
    ("qwen3", {"num_key_value_heads": None}),
    ("llama", {"rms_norm_eps": ...}),
    ("llama", {"max_position_embeddings": ..., "max_sequence_length": 80}),
    ("llama", {"head_dim": None, "layer_types": None, "vision_config": None}),
    ("llama", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0}}),
    ("llama", {"rope_parameters": YARN | {"mscale": 0, "mscale_all_dim": 0.7, "beta_fast": 0, "beta_slow": 0}}),
    ("llama", {"rope_parameters": YARN | {"mscale": None, "beta_fast": None, "attention_factor": None}}),
    ("llama", {"rope_parameters": None, "rope_scaling": {}, "rope_theta": 10000}),
    (
        "llama",
        {
            "tokenizer_padding_side": "left",
            "unsloth_version": "2025.1",
            "use_flash_attn": True,
            "alibi": False,
            "license": "mit",
            "neftune_noise_alpha": 5,
            "gradient_checkpointing": True,
            "base_model": "llama",
            "use_sdpa": True,
        },
    ),
    ("llama", {"num_beams": 1, "no_repeat_ngram_size": 0, "length_penalty": 1.0, "num_labels": 2, "seq_length": 9}),
    ("llama", {"output_router_logits": False, "n_shared_experts": None, "router_aux_loss_coef": 0.0}),
]


@pytest.mark.parametrize(("kind", "change"), MEANT, ids=[str(number) for number in range(len(MEANT))])
def test_a_config_that_means_a_model_of_here_runs_and_is_priced(kind, change, tmp_path, roomy):
    heads = 6 if change.get("num_key_value_heads", 2) is None else 2
    settings = SIZES | {"num_key_value_heads": heads, "rope_parameters": {"rope_theta": 10000.0}, "head_dim": 8}
    random_model(kind, **settings).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))
    tokens = list(range(3, 3 + PROMPT))
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        wanted = theirs(torch.tensor([tokens])).logits[0, -1]
    got = wafer(tmp_path, device=roomy).prefill(tokens)
    assert near(got, wanted)
    assert shape_of(tmp_path).num_key_value_heads == heads
