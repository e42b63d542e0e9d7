import dataclasses
import json

import pytest
import torch

from wafer_triton.errors import CheckpointError, ConfigError
from wafer_triton.models.config import DecoderConfig, RopeScaling, param_shapes

LLAMA = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "eos_token_id": 2,
}
MISTRAL = LLAMA | {"model_type": "mistral", "sliding_window": None}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32}


def without(values, key):
    return {name: value for name, value in values.items() if name != key}


def test_reads_the_transformers_4_spelling():
    config = DecoderConfig.from_dict(LLAMA | {"torch_dtype": "bfloat16", "rope_scaling": None}, name="tiny")
    assert (config.name, config.head_dim, config.rope_theta, config.rope_scaling) == ("tiny", 8, 5000.0, None)
    assert config.eos_token_ids == (2,) and config.bos_token_id is None and not config.tie_word_embeddings


def test_reads_the_transformers_5_spelling():
    v5 = without(LLAMA, "rope_theta") | {"dtype": "float32", "rope_parameters": {"rope_theta": 7.0, **LLAMA3}}
    config = DecoderConfig.from_dict(v5)
    assert config.rope_theta == 7.0
    assert config.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 32)
    assert hash(config) == hash(DecoderConfig.from_dict(v5))


def test_both_spellings_of_one_model_are_equal():
    v4 = LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}}
    v5 = without(LLAMA, "rope_theta") | {
        "rope_parameters": {"rope_theta": 5000.0, "rope_type": "linear", "factor": 2.0}
    }
    assert DecoderConfig.from_dict(v4) == DecoderConfig.from_dict(v5)


@pytest.mark.parametrize("missing", ["rope_theta", "num_key_value_heads", "hidden_act", "eos_token_id"])
def test_absent_keys_mean_what_llama_1_configs_meant(missing):
    config = DecoderConfig.from_dict(without(LLAMA, missing))
    found = config.rope_theta, config.num_key_value_heads, config.hidden_act, config.eos_token_ids
    meant = {"rope_theta": 10000.0, "num_key_value_heads": 6, "hidden_act": "silu", "eos_token_id": ()}
    given = {"rope_theta": 5000.0, "num_key_value_heads": 2, "hidden_act": "silu", "eos_token_id": (2,)}
    assert found == tuple((given | {missing: meant[missing]}).values())


def test_mistral_with_full_attention_and_its_own_head_dim():
    config = DecoderConfig.from_dict(MISTRAL | {"head_dim": 16, "use_sliding_window": False, "sliding_window": 64})
    assert config.head_dim == 16
    assert param_shapes(config)["model.layers.1.self_attn.o_proj.weight"] == (48, 96)


REFUSED = {
    "model_type": (LLAMA | {"model_type": "gpt2"}, r"model_type = 'gpt2' .* supported: 'llama', 'mistral'"),
    "hidden_act": (LLAMA | {"hidden_act": "gelu"}, r"hidden_act = 'gelu' .* supported: 'silu'"),
    "attention_bias": (LLAMA | {"attention_bias": True}, "attention_bias = True is not computed here"),
    "mlp_bias": (LLAMA | {"mlp_bias": True}, "mlp_bias = True is not computed here"),
    "quantized": (LLAMA | {"quantization_config": {"bits": 4}}, r"quantization_config = \{'bits': 4\}"),
    "moe": (LLAMA | {"num_local_experts": 8}, "num_local_experts = 8 is not computed here"),
    "partial-rotary": (LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    "partial-rotary-5": (LLAMA | {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
    "rope": (LLAMA | {"rope_scaling": {"type": "yarn", "factor": 2.0}}, r"rope_type = 'yarn' .*'linear', 'llama3'"),
    "rope-per-layer": (LLAMA | {"rope_parameters": {"full_attention": {}}}, "one flat table for all layers"),
    "rope-factor": (LLAMA | {"rope_scaling": {"type": "linear"}}, "rope 'linear': factor is missing"),
    "rope-negative": (LLAMA | {"rope_scaling": {"type": "linear", "factor": -1}}, "factor = -1 must be a positive"),
    "rope-order": (LLAMA | {"rope_scaling": LLAMA3 | {"low_freq_factor": 9.0}}, "low_freq_factor = 9.0 must be below"),
    "window": (MISTRAL | {"sliding_window": 4096}, "sliding_window = 4096 is not computed here"),
    "window-absent": (without(MISTRAL, "sliding_window"), "sliding_window = 4096 is not computed here"),
    "window-layers": (LLAMA | {"layer_types": ["full_attention", "sliding_attention"]}, "with sliding_attention"),
    "mistral-kv": (without(MISTRAL, "num_key_value_heads"), "num_key_value_heads is missing"),
    "kv-heads": (LLAMA | {"num_key_value_heads": 4}, "heads = 6 is not a multiple of num_key_value_heads = 4"),
    "width": (LLAMA | {"hidden_size": 50}, "hidden_size = 50 is not a multiple of num_attention_heads = 6"),
    "odd-head": (LLAMA | {"head_dim": 7}, "head_dim = 7 is odd"),
    "negative": (LLAMA | {"intermediate_size": -8}, "intermediate_size = -8 must be a positive integer"),
    "zero-heads": (LLAMA | {"num_attention_heads": 0}, "num_attention_heads = 0 must be a positive integer"),
    "text": (LLAMA | {"hidden_size": "48"}, "hidden_size = '48' must be a positive integer"),
    "eps": (LLAMA | {"rms_norm_eps": 0.0}, "rms_norm_eps = 0.0 must be a positive number"),
    "theta": (LLAMA | {"rope_theta": float("inf")}, "rope_theta = inf must be a positive number"),
    "eos": (LLAMA | {"eos_token_id": "</s>"}, "eos_token_id = '</s>' must be a token id"),
}


@pytest.mark.parametrize(("values", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses_by_name(values, message):
    with pytest.raises(ConfigError, match=message):
        DecoderConfig.from_dict(values)


@pytest.mark.parametrize(
    "key", ["model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "rms_norm_eps"]
)
def test_names_a_missing_key(key):
    with pytest.raises(ConfigError, match=f"tiny: {key} is missing"):
        DecoderConfig.from_dict(without(LLAMA, key), name="tiny")


@pytest.mark.parametrize("flag", ["qkv_bias", "qk_norm"])
def test_refuses_what_later_families_need(flag):
    with pytest.raises(ConfigError, match=f"{flag} = True is not computed here; supported: False"):
        dataclasses.replace(DecoderConfig.from_dict(LLAMA), **{flag: True})


def test_a_long_value_is_cut_in_the_message():
    with pytest.raises(ConfigError) as caught:
        DecoderConfig.from_dict(LLAMA | {"quantization_config": {"skip": ["layer"] * 500}})
    assert len(str(caught.value)) < 200


def test_from_folder(tmp_path):
    with pytest.raises(CheckpointError, match="no config.json; give a folder in Hugging Face layout"):
        DecoderConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert DecoderConfig.from_folder(tmp_path) == DecoderConfig.from_dict(LLAMA, name=tmp_path.name)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    assert DecoderConfig.from_folder(str(tmp_path)).eos_token_ids == (2, 5)


@pytest.mark.parametrize(("text", "message"), [("{", "not valid JSON"), ("[1]", "holds a list, not a table")])
def test_from_folder_names_a_bad_file(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=f"config.json: {message}"):
        DecoderConfig.from_folder(tmp_path)


@pytest.mark.parametrize(
    "rope", [{}, {"rope_type": "linear", "factor": 3.0}, LLAMA3], ids=["plain", "linear", "llama3"]
)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_frequencies_and_parameters_are_those_of_transformers(rope, tied):
    from transformers import LlamaConfig, LlamaForCausalLM

    theirs = LlamaConfig(**without(LLAMA, "model_type"), tie_word_embeddings=tied, rope_scaling=rope or None)
    config = DecoderConfig.from_dict(theirs.to_dict())
    with torch.device("meta"):
        shapes = {name: tuple(weight.shape) for name, weight in LlamaForCausalLM(theirs).named_parameters()}
    rotary = LlamaForCausalLM(theirs).model.rotary_emb
    freq, scale = config.inv_freq()
    assert param_shapes(config) == shapes
    assert torch.equal(freq, rotary.inv_freq) and scale == rotary.attention_scaling
    assert freq.dtype == torch.float32 and freq.shape == (config.head_dim // 2,)
