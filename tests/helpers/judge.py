"""Small random models of transformers, which judge decoders."""

import torch
from torch import Tensor, nn

from wafer_triton.models.decoder import WaferForCausalLM


def random_model(kind: str, **settings: object) -> nn.Module:
    """Return a model whose norms and biases are drawn too, as transformers sets them to one and zero."""
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
    return model


def logits_of(decoder: WaferForCausalLM, tokens: list[int], prompt: int) -> Tensor:
    """Return a decoder's logits [steps + 1, vocab] after the prompt and each further token."""
    decoder.reset()
    return torch.stack([decoder.prefill(tokens[:prompt]), *(decoder.step(token) for token in tokens[prompt:])])


def near(got: Tensor, wanted: Tensor) -> bool:
    """Return whether logits differ from others by rounding alone."""
    return bool(((got - wanted).norm(dim=-1) <= 2e-5 * wanted.norm(dim=-1)).all())
