"""Published models by name: the one table of configurations that are known without a file."""

from __future__ import annotations

from typing import Any

_KEYS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings",
)  # fmt: skip
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3 |= {"original_max_position_embeddings": 8192}


def _row(*values: Any, **more: Any) -> dict[str, Any]:
    """Return a configuration with these values of `_KEYS`, and more keys of its family."""
    return dict(zip(_KEYS, values, strict=True)) | more


# Each row has the values of the model's own config.json; the row of mistral-7b is release v0.3.
# Mixtral and OLMoE name no separate width of experts: `intermediate_size` is the width of an expert.
MODELS: dict[str, dict[str, Any]] = {
    "smollm2-135m": _row("llama", 576, 1536, 30, 9, 3, 64, 49152, 8192, 1e-5, 100000.0, True),
    "llama2-7b": _row("llama", 4096, 11008, 32, 32, 32, 128, 32000, 4096, 1e-5, 10000.0, False),
    "llama2-13b": _row("llama", 5120, 13824, 40, 40, 40, 128, 32000, 4096, 1e-5, 10000.0, False),
    "codellama-7b": _row("llama", 4096, 11008, 32, 32, 32, 128, 32016, 16384, 1e-5, 1000000.0, False),
    "codellama-34b": _row("llama", 8192, 22016, 48, 64, 8, 128, 32000, 16384, 1e-5, 1000000.0, False),
    "llama3-8b": _row("llama", 4096, 14336, 32, 32, 8, 128, 128256, 8192, 1e-5, 500000.0, False),
    "llama3.1-8b": _row("llama", 4096, 14336, 32, 32, 8, 128, 128256, 131072, 1e-5, 500000.0, False,
        rope_scaling=_LLAMA3),
    "llama3.2-1b": _row("llama", 2048, 8192, 16, 32, 8, 64, 128256, 131072, 1e-5, 500000.0, True,
        rope_scaling=_LLAMA3 | {"factor": 32.0}),
    "mistral-7b": _row("mistral", 4096, 14336, 32, 32, 8, 128, 32768, 32768, 1e-5, 1000000.0, False,
        sliding_window=None),
    "qwen2-72b": _row("qwen2", 8192, 29568, 80, 64, 8, 128, 152064, 131072, 1e-5, 1000000.0, False),
    "qwen2.5-0.5b": _row("qwen2", 896, 4864, 24, 14, 2, 64, 151936, 32768, 1e-6, 1000000.0, True),
    "qwen2.5-1.5b": _row("qwen2", 1536, 8960, 28, 12, 2, 128, 151936, 131072, 1e-6, 1000000.0, True),
    "qwen2.5-3b": _row("qwen2", 2048, 11008, 36, 16, 2, 128, 151936, 32768, 1e-6, 1000000.0, True),
    "qwen2.5-7b": _row("qwen2", 3584, 18944, 28, 28, 4, 128, 152064, 131072, 1e-6, 1000000.0, False),
    "qwen2.5-14b": _row("qwen2", 5120, 13824, 48, 40, 8, 128, 152064, 131072, 1e-5, 1000000.0, False),
    "qwen2.5-32b": _row("qwen2", 5120, 27648, 64, 40, 8, 128, 152064, 131072, 1e-5, 1000000.0, False),
    "qwen2.5-72b": _row("qwen2", 8192, 29568, 80, 64, 8, 128, 152064, 131072, 1e-5, 1000000.0, False),
    "qwen3-0.6b": _row("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, 40960, 1e-6, 1000000.0, True),
    "qwen3-1.7b": _row("qwen3", 2048, 6144, 28, 16, 8, 128, 151936, 40960, 1e-6, 1000000.0, True),
    "qwen3-4b": _row("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, 40960, 1e-6, 1000000.0, True),
    "qwen3-8b": _row("qwen3", 4096, 12288, 36, 32, 8, 128, 151936, 40960, 1e-6, 1000000.0, False),
    "qwen3-14b": _row("qwen3", 5120, 17408, 40, 40, 8, 128, 151936, 40960, 1e-6, 1000000.0, False),
    "qwen3-32b": _row("qwen3", 5120, 25600, 64, 64, 8, 128, 151936, 40960, 1e-6, 1000000.0, False),
    "mixtral-8x7b": _row("mixtral", 4096, 14336, 32, 32, 8, 128, 32000, 32768, 1e-5, 1000000.0, False,
        num_local_experts=8, num_experts_per_tok=2, sliding_window=None),
    "qwen3-30b-a3b": _row("qwen3_moe", 2048, 6144, 48, 32, 4, 128, 151936, 40960, 1e-6, 1000000.0, False,
        num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True),
    "qwen1.5-moe-a2.7b": _row("qwen2_moe", 2048, 5632, 24, 16, 16, 128, 151936, 8192, 1e-6, 1000000.0, False,
        num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408, norm_topk_prob=False,
        shared_expert_intermediate_size=5632),
    "olmoe-1b-7b": _row("olmoe", 2048, 1024, 16, 16, 16, 128, 50304, 4096, 1e-5, 10000.0, False,
        num_experts=64, num_experts_per_tok=8, norm_topk_prob=False),
}  # fmt: skip
