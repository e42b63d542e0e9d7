"""Rotary position embedding: the frequencies of a head's pairs, and their scaling for longer contexts.

The same float32 operations in the same order as transformers' `modeling_rope_utils`, so the same bits.
"""

from __future__ import annotations

import math

import torch

from wafer_triton.shape.config import RopeScaling


def inv_freq(
    theta: float, head_dim: int, scaling: RopeScaling | None = None, length: int | None = None
) -> tuple[torch.Tensor, float]:
    """Return inverse frequencies (head_dim / 2,) float32 in radians per token, and the factor on cos and sin.

    `length` is the number of tokens so far; only the kind "dynamic" uses it.
    """
    if scaling is None:
        return _plain(theta, head_dim), 1.0
    match scaling.kind:
        case "linear":
            return _plain(theta, head_dim) / scaling.factor, 1.0
        case "dynamic":
            return _dynamic(theta, head_dim, scaling, length), 1.0
        case "llama3":
            return _llama3(_plain(theta, head_dim), scaling), 1.0
    return _yarn(theta, head_dim, scaling), _attention_factor(scaling)


def _plain(theta: float | torch.Tensor, head_dim: int) -> torch.Tensor:
    return 1.0 / (theta ** _exponents(head_dim))


def _exponents(head_dim: int) -> torch.Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim


def _dynamic(theta: float, head_dim: int, scaling: RopeScaling, length: int | None) -> torch.Tensor:
    """Return NTK-aware frequencies: beyond the trained context the base grows with the length."""
    context = scaling.original_max_position_embeddings
    if length is None or length <= context:
        return _plain(theta, head_dim)
    growth = (scaling.factor * torch.tensor(length) / context) - (scaling.factor - 1)
    return _plain(theta * growth ** (head_dim / (head_dim - 2)), head_dim)


def _llama3(freq: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Return frequencies with long waves stretched by `factor`, short ones kept, and waves between blended."""
    context, low, high = scaling.original_max_position_embeddings, scaling.low_freq_factor, scaling.high_freq_factor
    wavelength = 2 * math.pi / freq
    is_long, is_short = wavelength > context / low, wavelength < context / high
    blend = (context / wavelength - low) / (high - low)
    blended = (1 - blend) * freq / scaling.factor + blend * freq
    return torch.where(is_long, freq / scaling.factor, torch.where(is_short, freq, blended))


def _yarn(theta: float, head_dim: int, scaling: RopeScaling) -> torch.Tensor:
    """Return frequencies with fast pairs kept, slow pairs interpolated, and a ramp between (arXiv 2309.00071)."""
    context, factor = scaling.original_max_position_embeddings, scaling.factor

    def pair(turns: float) -> float:
        """Return the dimension with this number of turns over the trained context."""
        return (head_dim * math.log(context / (turns * 2 * math.pi))) / (2 * math.log(theta))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    waves = theta ** _exponents(head_dim)
    kept = 1 - ramp
    return (1.0 / (factor * waves)) * (1 - kept) + (1.0 / waves) * kept


def _attention_factor(scaling: RopeScaling) -> float:
    def grown(mscale: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * mscale * math.log(scaling.factor) + 1.0

    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return grown(scaling.mscale) / grown(scaling.mscale_all_dim)
    return grown(1)
