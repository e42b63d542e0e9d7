"""The shape of a decoder from a name, a folder, the keys of a `config.json`, or sizes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from wafer_triton.device.dtype import WEIGHTS, DtypeLike, storage_name
from wafer_triton.errors import ConfigError, nearest, shown
from wafer_triton.shape.config import (
    MIXTURES,
    REFUSED,
    check_flag,
    check_positive,
    check_size,
    context,
    features,
    given_or_absent,
    read_json,
    required,
    short,
)
from wafer_triton.shape.decoder import SIZES, DecoderShape
from wafer_triton.shape.moe import experts_of
from wafer_triton.shape.published import MODELS
from wafer_triton.text.files import listed

DTYPES = (None, "auto", "float64", "float32", "float16", "bfloat16")  # of the key `dtype`, once `torch_dtype`


def shape_values(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `DecoderShape` from the keys of a `config.json`.

    An absent optional key has the meaning that transformers gives it. Raises ConfigError for a missing key, and for a
    value that no decoder can have.
    """
    model_type = values.get("model_type", "llama")
    check_positive(name, "rms_norm_eps", given_or_absent(values, "rms_norm_eps"))
    for key in ("dtype", "torch_dtype"):
        if values.get(key) not in DTYPES:
            known = ", ".join(filter(None, DTYPES))
            raise ConfigError(f"{name}: {key} = {short(values[key])} is no dtype of weights; take one of {known}")
    heads = required(name, values, "num_attention_heads")
    # null is as many as heads. Other families' default is 8 or 32 for any number of heads; no such model is meant, so
    # the key is required.
    kv_heads = values.get("num_key_value_heads")
    if "num_key_value_heads" not in values and model_type not in ("llama", "olmoe"):
        required(name, values, "num_key_value_heads")
    return {
        **{key: required(name, values, key) for key in ("hidden_size", "intermediate_size", "num_hidden_layers")},
        "num_attention_heads": heads,
        "num_key_value_heads": heads if kv_heads is None else kv_heads,
        "head_dim": _head_dim(name, model_type, values),
        "rms_norm_eps": given_or_absent(values, "rms_norm_eps"),
        "tie_word_embeddings": check_flag(name, values, "tie_word_embeddings"),
        "qkv_bias": model_type == "qwen2" or (model_type == "qwen2_moe" and bool(values.get("qkv_bias", True))),
        "qk_norm": model_type in ("qwen3", "qwen3_moe", "olmoe"),
        "qk_norm_whole": model_type == "olmoe",
        "clip_qkv": values.get("clip_qkv") if model_type == "olmoe" else None,
        "experts": experts_of(name, values),
        "name": name,
    }


def _head_dim(name: str, model_type: str, values: Mapping[str, Any]) -> Any:
    if values.get("head_dim") is not None:
        return values["head_dim"]
    if model_type == "qwen3":
        return 128  # transformers' default for this family
    width, heads = (required(name, values, key) for key in ("hidden_size", "num_attention_heads"))
    check_size(name, "hidden_size", width)
    check_size(name, "num_attention_heads", heads)
    if width % heads:
        raise ConfigError(f"{name}: hidden_size = {width} is not a multiple of num_attention_heads = {heads}")
    return width // heads


# Keys that change nothing that a layer computes, or whose values `features` reads; any other is refused, as it may.
# fmt: off
_HARMLESS = frozenset((
    "add_cross_attention", "architectures", "attention_dropout", "auto_map", "bos_token_id", "chunk_size_feed_forward",
    "cls_token_id", "cross_attention_hidden_size", "decoder_start_token_id", "dtype", "eos_token_id", "finetuning_task",
    "generation_config", "hidden_act", "id2label", "initializer_range", "is_causal", "is_decoder", "is_encoder_decoder",
    "is_llama_config", "label2id", "layer_types", "mask_token_id", "max_position_embeddings", "max_window_layers",
    "model_type", "name", "original_max_position_embeddings", "output_attentions", "output_hidden_states",
    "pad_token_id", "prefix", "pretraining_tp", "problem_type", "pruned_heads", "return_dict", "rms_norm_eps",
    "rope_interleaved", "rope_parameters", "rope_scaling", "rope_theta", "sep_token_id", "sliding_window",
    "task_specific_params", "tf_legacy_loss", "tie_encoder_decoder", "tie_word_embeddings", "torch_dtype",
    "torchscript", "transformers.js_config", "transformers_version", "unk_token_id", "use_bfloat16", "use_cache",
    "use_mrope", "use_sliding_window", "vocab_size",
    # of generation, see `DecoderConfig.from_file`
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff",
    "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length",
    "max_new_tokens", "min_length", "min_new_tokens", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate",
    "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
    # of tokenizers, trainers and exporters, and words about a model
    "attention_probs_dropout_prob", "attn_implementation", "attn_pdrop", "base_model", "classifier_dropout", "datasets",
    "embd_pdrop", "flash_attn", "fuse_attention_ffn", "fuse_attention_qkv", "gradient_checkpointing", "hidden_dropout",
    "hidden_dropout_prob", "language", "library_name", "license", "max_seq_len", "max_seq_length",
    "max_sequence_length", "model_max_length", "name_or_path", "neftune_noise_alpha", "num_labels",
    "output_router_logits", "pad_token", "paddlenlp_version", "pipeline_tag", "resid_pdrop", "router_aux_loss_coef",
    "seq_length", "tags", "tokenizer_class", "tokenizer_model_max_length", "tokenizer_padding_side", "unsloth_fixed",
    "unsloth_version", "use_flash_attention", "use_flash_attn", "use_fused_rms_norm", "use_fused_rope", "use_sdpa",
))
_OF_EXPERTS = (
    "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "num_local_experts",
    "shared_expert_intermediate_size", "mlp_only_layers", "decoder_sparse_step", "clip_qkv", "qkv_bias",
    "router_jitter_noise",
)
# fmt: on


def check_keys(name: str, values: Mapping[str, Any]) -> None:
    """Raise ConfigError for a key that is not read, not known to be harmless and not off, in all commands alike.

    A value that is off is null, false, 0 or empty.
    """
    known = {*SIZES, *REFUSED, *_HARMLESS, *(_OF_EXPERTS if values.get("model_type") in MIXTURES else ())}
    unknown = [key for key, value in values.items() if key not in known and key[:1] != "_" and value]
    if unknown:
        raise ConfigError(
            f"{name}: unknown key {', '.join(map(short, unknown))}; read are {', '.join(SIZES)}: mend its name, or "
            f"take it out if it changes nothing that a layer computes"
        )


# Keys of a text of sizes, and the fields of `DecoderShape` that they stand for.
KEYS = {
    "dim": "hidden_size",
    "ffn": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "layers": "num_hidden_layers",
    "head_dim": "head_dim",
    "vocab": "vocab_size",
    "weights": "weights",
    "name": "name",
}
NEEDED = ("dim", "ffn", "heads", "layers")  # of sizes alone


class Configuration(Protocol):
    """A configuration of transformers."""

    def to_dict(self) -> dict[str, Any]:
        """Return the keys of its `config.json`."""


# A name, a folder or its config.json, sizes as "dim=2048,ffn=8192,...", a shape, or a configuration and its table.
Model = str | PathLike[str] | DecoderShape | Configuration | Mapping[str, Any]


def shape_of(model: Model, dtype: DtypeLike | None = None) -> DecoderShape:
    """Return the shape of a model: of a name, a `config.json` or its folder, a configuration of transformers, or sizes.

    Sizes are a text such as "dim=2048,ffn=8192,heads=32,layers=16", or follow a model: "llama3-8b,layers=16". `dtype`
    is the storage of its matrices, of `dtype.WEIGHTS` (None: as the model says, else as its tiles).
    Raises ConfigError with the nearest names for an unknown model, and with the key that a configuration lacks. Raises
    it for a key of another kind of layer, too.
    """
    if dtype is not None:
        return replace(shape_of(model), weights=storage_name(dtype, WEIGHTS))
    if isinstance(model, DecoderShape):
        return model
    base, own = split(model)
    if own:
        return _sized(str(model), base, own)
    name, where, values = settings_of(base)
    required(where, values, "model_type")
    features(where, values)
    check_keys(where, values)
    sizes = shape_values(where, values)
    vocabulary = 0  # a config without the key is of the layers alone
    if "vocab_size" in values:
        vocabulary = required(where, values, "vocab_size")
        check_size(where, "vocab_size", vocabulary)
    return replace(DecoderShape(**sizes, vocab_size=vocabulary), name=name)


def settings_of(model: Any) -> tuple[str, str, Mapping[str, Any]]:
    """Return the name of a model, the place that errors name, and the keys of its `config.json`."""
    if (table := table_of(model)) is not None:
        name = Path(str(table.get("_name_or_path") or "config")).name
        return name, name, table
    path = located(model)
    return (str(model), str(model), MODELS[str(model)]) if path is None else (name_of(path), str(path), read_json(path))


def table_of(model: Any) -> Mapping[str, Any] | None:
    """Return the keys of a configuration of transformers, or of a table of them; None of anything else."""
    table = model.to_dict() if hasattr(model, "to_dict") else model
    return table if isinstance(table, Mapping) else None


def split(model: Any) -> tuple[Any, dict[str, str]]:
    """Return the model before its sizes, "" where sizes are all, and the sizes by key; see `shape_of`."""
    if not isinstance(model, str) or "=" not in model or model in MODELS or os.path.exists(os.path.expanduser(model)):
        return model, {}
    first, *words = listed(model)
    base, words = ("", [first, *words]) if "=" in first else (first, words)
    sizes: dict[str, str] = {}
    for word in words:
        key, sign, value = (part.strip() for part in word.partition("="))
        if not sign or not value:
            raise ConfigError(f"model {short(model)}: {word!r} is no size; write KEY=VALUE, as layers=16")
        if key not in KEYS:
            raise ConfigError(f"model {short(model)}: no size {key!r}{nearest(key, KEYS)} (sizes: {', '.join(KEYS)})")
        if key in sizes:
            raise ConfigError(f"model {short(model)}: {key} is given twice; give it once")
        sizes[key] = value
    return base, sizes


def _sized(text: str, base: str, sizes: Mapping[str, str]) -> DecoderShape:
    """Return the shape of sizes, of a base with other sizes if there is one."""
    words = {key: value for key, value in sizes.items() if key in ("name", "weights")}
    numbers = {key: _whole(text, key, value) for key, value in sizes.items() if key not in words}
    for key in numbers:
        check_size(f"model {short(text)}", key, numbers[key], least=key != "vocab")
    if not base:
        if missing := [key for key in NEEDED if key not in numbers]:
            raise ConfigError(f"model {short(text)}: {', '.join(missing)} missing; give them, or a model first")
        dim, ffn, heads, layers = (numbers[key] for key in NEEDED)
        made = of_sizes(dim, ffn, heads, numbers.get("kv_heads", heads), layers)
    else:
        made = shape_of(base)
    own: dict[str, Any] = {KEYS[key]: value for key, value in (words | numbers).items()}
    return replace(made, **{"name": text, **own})


def _whole(text: str, key: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal()):
        raise ConfigError(f"model {short(text)}: {key} = {value!r} must be a whole number")
    return int(value)


def positions(model: Model) -> int | None:
    """Return the most tokens that a text of a model may have, rope scaling included; None for sizes alone."""
    base, _ = split(model)
    if isinstance(base, DecoderShape) or not base:
        return None
    _, where, values = settings_of(base)
    return context(where, values, features(where, values)[1])


def located(model: Any) -> Path | None:
    """Return the `config.json` of a model, which is its path or the folder that holds it; None of a name in `MODELS`.

    Raises ConfigError for anything else.
    """
    if not isinstance(model, str | PathLike) or not str(model):
        raise ConfigError(
            f"model {shown(model)}: give a name such as {next(iter(MODELS))}, a folder or its config.json"
        )
    if str(model) in MODELS:
        return None
    path = Path(model).expanduser()
    if path.is_dir():
        path = path if path.name == "config.json" else path / "config.json"
        if not path.exists():
            raise ConfigError(f"{path.parent}: no config.json; give a folder in Hugging Face layout")
    elif not path.exists():
        raise unknown_model(str(model))
    return path


def name_of(path: Path) -> str:
    """Return the name of the model of a `config.json`: its folder, or the path where the folder has no name."""
    return path.resolve().parent.name or str(path)


ENDINGS = (".json", ".safetensors", ".gguf")  # of a model's files


def is_path(name: str) -> bool:
    """Return whether a text that is no file can only have been meant as a path."""
    return name.startswith(("~", ".", os.sep)) or os.sep in name or name.endswith(ENDINGS)


def is_hub(name: str) -> bool:
    """Return whether a text that is no file has the form of a Hugging Face name: an owner and a model."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is not None and not name.endswith(ENDINGS)


def unknown_model(name: str) -> ConfigError:
    """Return the error of a name that no table, folder or file has."""
    near = nearest(name.rpartition("/")[2], MODELS)
    if is_hub(name):
        return ConfigError(
            f"model {short(name)} is no folder here, and names on a hub are not fetched; give a published name, "
            f"or the folder of a download with its config.json{near}"
        )
    if is_path(name):
        return ConfigError(f"{short(name).strip(chr(39))}: there is no such file or folder")
    return ConfigError(
        f"unknown model {short(name)}{near} (known: {', '.join(MODELS)}; or a folder with a config.json)"
    )


def of_sizes(hidden_size: int, intermediate_size: int, heads: int, kv_heads: int, layers: int) -> DecoderShape:
    """Return the shape of layers of the given sizes; ConfigError when they do not divide."""
    name = "model of the given sizes"
    sizes = {"dim": hidden_size, "ffn": intermediate_size, "heads": heads, "kv_heads": kv_heads, "layers": layers}
    for key, value in sizes.items():  # by the names that a user gives
        check_size(name, key, value)
    if hidden_size % heads:
        raise ConfigError(f"{name}: dim = {hidden_size} is not a multiple of heads = {heads}")
    return DecoderShape(hidden_size, intermediate_size, layers, heads, kv_heads, hidden_size // heads, 0, name=name)
