import json
import warnings
from dataclasses import replace
from math import prod

import pytest
import torch

from wafer_triton.errors import CheckpointError, ConfigError
from wafer_triton.models.config import DecoderConfig, RopeScaling
from wafer_triton.models.random import config_of
from wafer_triton.place.need import param_shapes
from wafer_triton.shape.config import ABSENT, MIXTURES, SUPPORTED
from wafer_triton.shape.read import positions, shape_of

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
    assert config.eos_token_ids == (2,) and not config.tie_word_embeddings


def test_keys_that_may_be_off_change_no_model_where_they_are_not():
    assert DecoderConfig.from_dict(LLAMA | {"is_causal": True, "use_cache": False}) == DecoderConfig.from_dict(LLAMA)
    mixture = MOE | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 24}
    biased = {bias: DecoderConfig.from_dict(mixture | {"qkv_bias": bias}).qkv_bias for bias in (True, False, None)}
    assert biased == {True: True, False: False, None: False}


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
def test_absent_keys_have_the_defaults_of_llama_1(missing):
    config = DecoderConfig.from_dict(without(LLAMA, missing))
    values = config.rope_theta, config.num_key_value_heads, config.hidden_act, config.eos_token_ids
    meant = {"rope_theta": 10000.0, "num_key_value_heads": 6, "hidden_act": "silu", "eos_token_id": ()}
    given = {"rope_theta": 5000.0, "num_key_value_heads": 2, "hidden_act": "silu", "eos_token_id": (2,)}
    assert values == tuple((given | {missing: meant[missing]}).values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", SUPPORTED["model_type"])
@pytest.mark.parametrize("key", ABSENT)
def test_an_absent_key_has_the_default_of_transformers(kind, key, tmp_path):
    from transformers import AutoConfig

    theirs = AutoConfig.for_model(kind)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    experts |= {"shared_expert_intermediate_size": 8} if kind == "qwen2_moe" else {}
    values = MISTRAL | {"model_type": kind} | (experts if kind in MIXTURES else {})
    (tmp_path / "config.json").write_text(json.dumps(without(values, key)))
    config = DecoderConfig.from_folder(tmp_path)
    wanted = theirs.rope_parameters["rope_theta"] if key == "rope_theta" else getattr(theirs, key)
    assert getattr(config, key) == wanted
    assert shape_of(tmp_path).rms_norm_eps == config.rms_norm_eps and positions(tmp_path) == config.context


def test_mistral_with_full_attention_and_its_own_head_dim():
    config = DecoderConfig.from_dict(MISTRAL | {"head_dim": 16, "use_sliding_window": False, "sliding_window": 64})
    assert config.head_dim == 16
    assert param_shapes(config)["model.layers.1.self_attn.o_proj.weight"] == (48, 96)


REFUSED = {
    "model_type": (LLAMA | {"model_type": "gpt2"}, r"model_type = 'gpt2' .* supported: 'llama', 'mistral'"),
    "hidden_act": (LLAMA | {"hidden_act": "gelu"}, r"hidden_act = 'gelu' .* supported: 'silu'"),
    "attention_bias": (LLAMA | {"attention_bias": True}, "attention_bias = True is not computed here"),
    "mlp_bias": (LLAMA | {"mlp_bias": True}, "mlp_bias = True is not computed here"),
    "quantized": (LLAMA | {"quantization_config": {"bits": 4}}, r"quantization_config = \{'bits': 4\} .* dtype int8"),
    "moe": (LLAMA | {"num_local_experts": 8}, "num_local_experts = 8 is not computed here"),
    "partial-rotary": (LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    "partial-rotary-5": (LLAMA | {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
    "rope": (
        LLAMA | {"rope_scaling": {"type": "longrope", "factor": 2.0}},
        r"rope_type = 'longrope' .*'llama3', 'yarn'",
    ),
    "rope-per-layer": (LLAMA | {"rope_parameters": {"full_attention": {}}}, "one flat table for all layers"),
    "rope-factor": (LLAMA | {"rope_scaling": {"type": "linear"}}, "rope 'linear': factor is missing"),
    "rope-negative": (LLAMA | {"rope_scaling": {"type": "linear", "factor": -1}}, "factor = -1 must be a positive"),
    "rope-beta": (
        LLAMA | {"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": "32"}},
        "beta_fast = '32' must be a positive number",
    ),
    "rope-order": (LLAMA | {"rope_scaling": LLAMA3 | {"low_freq_factor": 9.0}}, "low_freq_factor = 9.0 must be below"),
    "window": (MISTRAL | {"sliding_window": 127}, "sliding_window = 127 is not computed here"),
    "window-absent": (
        without(MISTRAL, "sliding_window") | {"max_position_embeddings": 4097},
        "sliding_window = 4096 is not computed here",
    ),
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
    "tied": (LLAMA | {"tie_word_embeddings": "false"}, "tie_word_embeddings = 'false' must be true or false"),
    "layers-number": (LLAMA | {"layer_types": 5}, "layer_types = 5 must be a list of words"),
    "layers-lists": (LLAMA | {"layer_types": [["a"]]}, "layer_types = .* must be a list of words"),
    "eos": (LLAMA | {"eos_token_id": "</s>"}, "eos_token_id = '</s>' must be a token id"),
    "no-type": (LLAMA | {"model_type": ["llama"]}, r"model_type = \['llama'\] is not computed here"),
    "rope-text": (LLAMA | {"rope_scaling": "linear"}, "rope settings 'linear' must be one flat table"),
    "bidirectional": (LLAMA | {"is_causal": False}, "is_causal = False is not computed here; only true"),
    "bidirectional-null": (LLAMA | {"is_causal": None}, "is_causal = None is not computed here; only true"),
    "rope-nan": (LLAMA | {"rope_scaling": {"type": "linear", "factor": float("nan")}}, "factor = nan must be a pos"),
}

MOE = LLAMA | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
REFUSED |= {
    "deepseek": (
        LLAMA | {"model_type": "deepseek_v2"},
        r"model_type = 'deepseek_v2' is not computed here \(multi-head latent attention, .*\); supported: 'llama'",
    ),
    "experts-many": (MOE | {"num_experts_per_tok": 9}, "num_experts_per_tok = 9 is more than the 8 experts there are"),
    "experts-none": (without(MOE, "num_experts"), "num_experts is missing"),
    "experts-zero": (MOE | {"num_experts": 0}, "num_experts = 0 must be a positive integer"),
    "experts-two": (MOE | {"num_local_experts": 9}, "num_experts = 8 and num_local_experts differ; keep one"),
    "experts-width": (without(MOE, "moe_intermediate_size"), "moe_intermediate_size is missing"),
    "experts-shared": (MOE | {"model_type": "qwen2_moe"}, "shared_expert_intermediate_size is missing"),
    "experts-norm": (MOE | {"norm_topk_prob": 1.5}, "norm_topk_prob = 1.5 must be true or false"),
    "experts-layers": (MOE | {"mlp_only_layers": [2]}, r"mlp_only_layers = \[2\] must be a list of layers from 0 to 1"),
    "experts-dense": (MOE | {"mlp_only_layers": [0, 1]}, "leave no layer with experts; use a dense model"),
    "experts-clip": (MOE | {"model_type": "olmoe", "clip_qkv": -1.0}, "clip_qkv = -1.0 must be a positive number"),
}


@pytest.mark.parametrize(("values", "message"), REFUSED.values(), ids=REFUSED)
def test_a_config_that_cannot_run_is_refused_by_name_and_not_priced(values, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        DecoderConfig.from_dict(values)
    (tmp_path / "config.json").write_text(json.dumps(values))
    if "os_token_id" not in message:  # on which no price depends
        with pytest.raises(ConfigError, match=message):
            shape_of(tmp_path)


@pytest.mark.slow
def test_a_config_that_runs_is_priced(tmp_path):
    from transformers import LlamaConfig

    values = LlamaConfig(**without(LLAMA, "model_type")).to_dict() | {"unk_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert shape_of(tmp_path).decode_macs(9) == DecoderConfig.from_dict(values).decode_macs(9)


@pytest.mark.parametrize("key", ["model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_names_a_missing_key(key):
    with pytest.raises(ConfigError, match=f"tiny: {key} is missing"):
        DecoderConfig.from_dict(without(LLAMA, key), name="tiny")


QWEN = LLAMA | {"sliding_window": 64, "max_window_layers": 1}


def test_families_differ_in_biases_and_norms():
    llama, qwen2, qwen3 = (
        DecoderConfig.from_dict(QWEN | {"model_type": kind, "sliding_window": None})
        for kind in ("llama", "qwen2", "qwen3")
    )
    assert [(config.qkv_bias, config.qk_norm) for config in (llama, qwen2, qwen3)] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    assert (llama.head_dim, qwen2.head_dim, qwen3.head_dim) == (8, 8, 128), "Qwen3's head_dim has a default of its own"
    first = "model.layers.1.self_attn."
    assert param_shapes(qwen2)[first + "k_proj.bias"] == (16,) and first + "o_proj.bias" not in param_shapes(qwen2)
    assert param_shapes(qwen3)[first + "q_norm.weight"] == (128,) and first + "q_proj.bias" not in param_shapes(qwen3)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_qwen_slides_only_when_it_says_so(kind):
    assert DecoderConfig.from_dict(QWEN | {"model_type": kind}) == DecoderConfig.from_dict(
        QWEN | {"model_type": kind, "use_sliding_window": False, "layer_types": ["full_attention"] * 2}
    )
    with pytest.raises(ConfigError, match="sliding_window = 64 is not computed here"):
        DecoderConfig.from_dict(QWEN | {"model_type": kind, "use_sliding_window": True})
    with pytest.raises(ConfigError, match="attention_bias = True is not computed here"):
        DecoderConfig.from_dict(QWEN | {"model_type": kind, "attention_bias": True})


@pytest.mark.parametrize(
    ("name", "billions"),
    [("qwen3-30b-a3b", 30.5), ("mixtral-8x7b", 46.7), ("qwen1.5-moe-a2.7b", 14.3), ("olmoe-1b-7b", 6.9)],
)
def test_known_mixtures_have_as_many_parameters_as_published(name, billions):
    shape = shape_of(name)
    assert abs(shape.parameters / 1e9 / billions - 1) < 0.005
    one = replace(config_of(name), num_hidden_layers=1)
    assert sum(map(prod, param_shapes(one).values())) == replace(shape, num_hidden_layers=1).parameters


def test_which_layers_have_experts():
    config = DecoderConfig.from_dict(MOE | {"num_hidden_layers": 6, "mlp_only_layers": [1], "decoder_sparse_step": 2})
    assert [config.kinds(layer)[1] for layer in range(6)] == ["ffn", "ffn", "ffn", "experts", "ffn", "experts"]
    assert config.layers_of == {"attention": 6, "ffn": 4, "experts": 2}


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


@pytest.mark.parametrize(
    ("file", "more", "named"),
    [
        ({"bad_words_ids": [[3]], "num_beams": 4, "max_length": 9}, {}, ["bad_words_ids", "num_beams"]),
        ({"penalty_alpha": 0.6, "stop_strings": ["."]}, {}, ["penalty_alpha", "stop_strings"]),
        ({"forced_eos_token_id": 0}, {"repetition_penalty": 1.2}, ["forced_eos_token_id"]),
        (None, {"repetition_penalty": 1.2, "min_length": 0}, ["repetition_penalty"]),
        ({}, {"repetition_penalty": 1.2}, []),
    ],
)
def test_settings_of_generation_that_are_not_obeyed_are_named_once(tmp_path, file, more, named):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | more))
    if file is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(file))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DecoderConfig.from_folder(tmp_path)
    said = [str(warning.message) for warning in caught]
    assert [key for key in {**(file or {}), **more} if any(key in text for text in said)] == named
    assert len(said) == bool(named)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not valid JSON"), ("[" * 100_000, "not valid JSON"), ("[1]", "holds a list, not a table")],
    ids=["cut", "deep", "list"],
)
def test_from_folder_names_a_bad_file(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=f"config.json: {message}"):
        DecoderConfig.from_folder(tmp_path)


YARN_128 = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
CONTEXTS = {  # of a model with 128 positions; the file of a "llama3" names the stretched length
    "plain": ({"rope_type": "default"}, {}, 128),
    "linear": ({"rope_type": "linear", "factor": 2.0}, {}, 256),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 32}, {}, 256),
    "llama3": (LLAMA3 | {"factor": 32.0}, {}, 128),
    "yarn": (YARN_128, {}, 512),
    "yarn-fraction": (YARN_128 | {"factor": 2.5}, {}, 320),
    "yarn-shorter": (YARN_128 | {"factor": 0.5}, {}, 128),
    "yarn-trained-outside": (YARN_128, {"original_max_position_embeddings": 64}, 256),
    "yarn-stretched-already": (YARN_128 | {"original_max_position_embeddings": 32}, {}, 128),
    "yarn-trained-unsaid": ({"rope_type": "yarn", "factor": 3.0}, {}, 384),
}


@pytest.mark.parametrize(("rope", "more", "most"), CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_rope_scaling_sets_the_context_of_runs_and_prices(rope, more, most, spelling, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | more | {spelling: rope}))
    assert (DecoderConfig.from_folder(tmp_path).context, positions(tmp_path)) == (most, most)


@pytest.mark.parametrize("name", ["llama3.1-8b", "llama3.2-1b"])
def test_a_published_model_has_as_many_positions_as_its_maker_says(name):
    assert (config_of(name).context, positions(name)) == (131072, 131072)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
ROPES = {
    "plain": {},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn-betas": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    "yarn-mscale": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn-factor": YARN | {"attention_factor": 0.9},
}


@pytest.mark.slow
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
@pytest.mark.parametrize("spelling", [4, 5])
def test_frequencies_equal_transformers(rope, spelling):
    from transformers import LlamaConfig, LlamaForCausalLM

    values = without(LLAMA, "rope_theta") | {"head_dim": 16}
    theirs = LlamaConfig(**without(values, "model_type"), rope_parameters={"rope_theta": 5000.0, **rope})
    config = DecoderConfig.from_dict(
        values | {"rope_theta": 5000.0, "rope_scaling": rope or None} if spelling == 4 else theirs.to_dict()
    )
    rotary = LlamaForCausalLM(theirs).model.rotary_emb
    for length in (1, 128, 129, 300):  # 128 is the trained context
        cos, _ = rotary(torch.zeros(1), torch.arange(length)[None])
        freq, scale = config.inv_freq(length)
        assert torch.equal(freq, rotary.inv_freq) and scale == rotary.attention_scaling
        assert freq.dtype == torch.float32 and freq.shape == (config.head_dim // 2,)
    assert cos.shape[-1] == config.head_dim


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_parameters_equal_transformers(kind, tied):
    from transformers import AutoConfig, AutoModelForCausalLM

    values = without(LLAMA, "model_type") | {"sliding_window": None, "tie_word_embeddings": tied}
    theirs = AutoConfig.for_model(kind, **values)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(theirs)
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    assert param_shapes(DecoderConfig.from_dict(theirs.to_dict())) == shapes
