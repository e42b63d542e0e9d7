"""The perplexity of a text on a mesh, to compare meshes, algorithms and number formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import torch

from wafer_triton.errors import ShapeError
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.generate import each_forward
from wafer_triton.text.progress import Progress, silent


def windows(ids: Sequence[int], length: int) -> list[list[int]]:
    """Return windows of `length` tokens, in each of which the model predicts every token but the first.

    A window begins with the last token of the one before, so that every token of a text but its first is predicted
    once. Raises ShapeError for a length below 2.
    """
    if length < 2:
        raise ShapeError(f"windows of {length} tokens have no token to predict; give at least 2")
    spans = [list(ids[start : start + length]) for start in range(0, len(ids) - 1, length - 1)]
    return [window for window in spans if len(window) > 1]


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean negative log likelihood of `tokens` tokens, each given the earlier ones in its window.

    `nats` is the sum of the negative log likelihood over all tokens.
    """

    tokens: int
    nats: float
    window: int

    @property
    def perplexity(self) -> float:
        """Perplexity; infinite if a token has likelihood 0."""
        mean = self.nats / self.tokens
        return exp(mean) if mean < 700 else float("inf")


def perplexity(
    model: WaferForCausalLM, ids: Sequence[int], window: int = 256, progress: Progress = silent
) -> Perplexity:
    """Return the perplexity of a text; ShapeError for one of less than two tokens."""
    nats, tokens, spans = 0.0, 0, windows(ids, window)
    progress("windows", 0, len(spans))
    outputs = each_forward(model, (span[:-1] for span in spans))
    for number, (span, logits) in enumerate(zip(spans, outputs, strict=True), 1):
        following = torch.tensor(span[1:])
        nats += float(torch.nn.functional.cross_entropy(logits.float().cpu().double(), following, reduction="sum"))
        tokens += len(following)
        progress("windows", number, len(spans))
    if not tokens:
        raise ShapeError("the text has no token to predict; give at least 2 tokens")
    return Perplexity(tokens, nats, window)
