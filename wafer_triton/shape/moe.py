"""Mixtures of experts: the settings of a router and its experts, read from a `config.json`. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wafer_triton.errors import ConfigError
from wafer_triton.shape.config import MIXTURES, check_flag, check_size, required, short

MOST = 4096  # experts, some ten times the most that are known


@dataclass(frozen=True)
class Experts:
    """The feed-forward block of sparse layers: by its router each token takes `top_k` of `count` experts.

    Shares are the softmax over all experts; if `normalized`, the shares of a token's experts add up to 1. With
    `shared_width` every token takes a shared expert of that width too, times a sigmoid. Layers in `dense` have no
    experts. The constructor raises ConfigError for impossible numbers.
    """

    count: int
    top_k: int
    width: int
    shared_width: int = 0
    normalized: bool = True
    dense: tuple[int, ...] = ()
    name: str = "decoder"

    def __post_init__(self) -> None:
        check_size(self.name, "num_experts", self.count, most=MOST)
        check_size(self.name, "num_experts_per_tok", self.top_k)
        check_size(self.name, "moe_intermediate_size", self.width)
        check_size(self.name, "shared_expert_intermediate_size", self.shared_width, least=0)
        if self.top_k > self.count:
            raise ConfigError(
                f"{self.name}: num_experts_per_tok = {self.top_k} is more than the {self.count} experts there are"
            )

    @property
    def shared(self) -> int:
        """The shared expert as experts of the common width, the last of them padded, which every token takes."""
        return -(-self.shared_width // self.width)

    @property
    def tiles(self) -> int:
        """Experts of the common width, shared ones last."""
        return self.count + self.shared

    @property
    def per_token(self) -> int:
        """Experts of the common width that a token takes."""
        return self.top_k + self.shared

    @property
    def logits(self) -> int:
        """Outputs of the router: one for each expert, and one for the shared expert's sigmoid."""
        return self.count + min(self.shared, 1)


@dataclass(frozen=True)
class Names:
    """A family's names of a block of experts, and of the gate, up and down projection of one."""

    block: str = "mlp."
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")

    @property
    def router(self) -> str:
        """The router's weight [experts, width]."""
        return f"{self.block}gate.weight"

    def expert(self, number: int) -> tuple[str, ...]:
        """Return the weights of an expert's gate, up and down projections."""
        return tuple(f"{self.block}experts.{number}.{part}.weight" for part in self.parts)


SHARED = "mlp.shared_expert."
SHARED_GATE = "mlp.shared_expert_gate.weight"  # [1, width]
MIXTRAL = Names("block_sparse_moe.", ("w1", "w3", "w2"))


def names_of(config: Any) -> Names:
    """Return the names of a model's family, by the `model_type` of its configuration if there is one."""
    return MIXTRAL if getattr(config, "model_type", None) == "mixtral" else Names()


def experts_of(name: str, values: Mapping[str, Any]) -> Experts | None:
    """Return the experts that the keys of a `config.json` describe; None for a family without.

    An absent optional key has the default of transformers. Raises ConfigError for impossible values.
    """
    family = values.get("model_type", "llama")
    if family not in MIXTURES:
        return None
    counts = {key: values[key] for key in ("num_experts", "num_local_experts") if values.get(key) is not None}
    if len(set(map(repr, counts.values()))) > 1:
        raise ConfigError(f"{name}: num_experts = {counts['num_experts']} and num_local_experts differ; keep one")
    own = "num_local_experts" if family == "mixtral" else "num_experts"
    count = next(iter(counts.values())) if counts else required(name, values, own)
    check_size(name, next(iter(counts), own), count, most=MOST)
    qwen, shared = family.startswith("qwen"), family == "qwen2_moe"
    return Experts(
        count,
        required(name, values, "num_experts_per_tok"),
        required(name, values, "moe_intermediate_size" if qwen else "intermediate_size"),
        required(name, values, "shared_expert_intermediate_size") if shared else 0,
        family == "mixtral" or check_flag(name, values, "norm_topk_prob"),
        _dense(name, values) if qwen else (),
        name,
    )


def _dense(name: str, values: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the layers without experts, of as many as there are."""
    layers, step = required(name, values, "num_hidden_layers"), values.get("decoder_sparse_step")
    alone, step = values.get("mlp_only_layers") or [], 1 if step is None else step
    check_size(name, "num_hidden_layers", layers)
    check_size(name, "decoder_sparse_step", step)
    if not isinstance(alone, list) or not all(type(layer) is int and 0 <= layer < layers for layer in alone):
        raise ConfigError(f"{name}: mlp_only_layers = {short(alone)} must be a list of layers from 0 to {layers - 1}")
    dense = tuple(layer for layer in range(layers) if layer in alone or (layer + 1) % step)
    if len(dense) == layers:
        raise ConfigError(
            f"{name}: mlp_only_layers and decoder_sparse_step leave no layer with experts; use a dense model"
        )
    return dense
