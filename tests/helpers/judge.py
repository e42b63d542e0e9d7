"""Small random models of transformers, which judge decoders."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from wafer_triton.device.dtype import torch_dtype
from wafer_triton.device.mesh import MeshLike, as_mesh
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.decoder import WaferForCausalLM


def random_model(kind: str, dtype: str = "fp32", **settings: object) -> nn.Module:
    """Return a model in fp32, all of whose weights, norms and biases too, are random numbers of `dtype`."""
    from transformers import AutoConfig, AutoModelForCausalLM  # two seconds, in the workers that need them

    torch.manual_seed(5)
    ends = dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"))
    config = AutoConfig.for_model(kind, **{"rms_norm_eps": 1e-5} | ends | settings)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.uniform_(weight, 0.5, 1.5)
        if name.endswith("bias"):
            torch.nn.init.normal_(weight)
        weight.data = weight.data.to(torch_dtype(dtype)).float()
    return model


@dataclass(frozen=True, eq=False)
class Family:
    """A family with its options and sizes, as transformers names them."""

    name: str
    kind: str
    settings: dict[str, Any]

    def __str__(self) -> str:
        return self.name


@cache
def judge(family: Family, dtype: str = "fp32") -> nn.Module:
    """Return the random model of a family."""
    return random_model(family.kind, dtype, **family.settings)


def placed(model: nn.Module, mesh: MeshLike, device: object, dtype: str = "fp32", **options: Any) -> WaferForCausalLM:
    """Return the decoder of a model's weights on a mesh."""
    config = DecoderConfig.from_dict(model.config.to_dict())
    weights = {name: weight.detach().to(torch_dtype(dtype)) for name, weight in model.state_dict().items()}
    return WaferForCausalLM.from_weights(config, weights, mesh=as_mesh(mesh, device), dtype=dtype, **options)


def logits_of(decoder: WaferForCausalLM, tokens: list[int], prompt: int) -> Tensor:
    """Return a decoder's logits [steps + 1, vocab] after the prompt and each further token."""
    decoder.reset()
    return torch.stack([decoder.prefill(tokens[:prompt]), *(decoder.step(token) for token in tokens[prompt:])])


def near(got: Tensor, wanted: Tensor) -> bool:
    """Return whether logits differ from others by rounding alone."""
    return bool(((got - wanted).norm(dim=-1) <= 2e-5 * wanted.norm(dim=-1)).all())
