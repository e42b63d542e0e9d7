"""The effect of number formats on a model on a mesh: logits against fp32's over a text, and perplexity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import exp
from typing import Any, TypeVar

import torch

from wafer_triton.errors import ShapeError
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.generate import each_forward
from wafer_triton.text.arguments import checked
from wafer_triton.text.progress import Progress, silent
from wafer_triton.text.quantity import unit

T = TypeVar("T")


def windows(ids: Sequence[int], length: int) -> list[list[int]]:
    """Return windows of `length` tokens, in each of which the model predicts every token but the first.

    A window begins with the last token of the one before, so that every token of a text but its first is predicted
    once. Raises ShapeError for a length below 2.
    """
    if length < 2:
        raise ShapeError(f"windows of {length} tokens have no token to predict; give at least 2")
    spans = [list(ids[start : start + length]) for start in range(0, len(ids) - 1, length - 1)]
    return [window for window in spans if len(window) > 1]


def logits_of(
    model: WaferForCausalLM, ids: Sequence[int], length: int, progress: Progress = silent
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield, for each window, logits [positions, vocab] in fp32 and the next tokens [positions]."""
    spans = windows(ids, length)
    progress("windows", 0, len(spans))
    outputs: Iterator[torch.Tensor] = (model(torch.tensor([window[:-1]]))[0] for window in spans)
    if model.pipeline.count > 1:
        outputs = each_forward(model, (window[:-1] for window in spans))
    for number, (window, logits) in enumerate(zip(spans, outputs, strict=True)):
        progress("windows", number + 1, len(spans))
        yield logits.float().cpu(), torch.tensor(window[1:])


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean negative log likelihood of `tokens` tokens, each given the earlier ones in its window.

    `nats` is the sum of the negative log likelihood over all tokens.
    """

    tokens: int = field(metadata=unit("tokens"))
    nats: float = field(metadata=unit("nats", "negative log likelihood"))
    window: int = field(metadata=unit("tokens"))

    @property
    def perplexity(self) -> float:
        """Perplexity; infinite if a token has likelihood 0."""
        mean = self.nats / self.tokens
        return exp(mean) if mean < 700 else float("inf")

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self) | {"perplexity": self.perplexity}


@checked
def perplexity(
    model: WaferForCausalLM, ids: Sequence[int], window: int = 256, progress: Progress = silent
) -> Perplexity:
    """Return the perplexity of a text."""
    return last(perplexities(model, ids, window, progress))


@checked
def perplexities(
    model: WaferForCausalLM, ids: Sequence[int], window: int = 256, progress: Progress = silent
) -> Iterator[Perplexity]:
    """Yield the perplexity of a text up to the end of each window."""
    nats, tokens = 0.0, 0
    for logits, following in logits_of(model, ids, window, progress):
        nats += float(torch.nn.functional.cross_entropy(logits.double(), following, reduction="sum"))
        tokens += len(following)
        yield Perplexity(tokens, nats, window)


def last(results: Iterable[T]) -> T:
    """Return the result up to the last window of a text; ShapeError for a text without a window."""
    final = list(results)[-1:]
    if not final:
        raise ShapeError("the text has no token to predict; give at least 2 tokens")
    return final[0]


@dataclass(frozen=True)
class Precision:
    """The difference between a format's logits and fp32's over a given text.

    `largest` is the largest error of a logit. `relative_rms` is the root mean square of the errors over the one of
    fp32's logits. At `differ` of the `tokens` positions the likeliest token is another one. The first of these
    positions is `first`, where fp32's likeliest token is `wanted`, and this format's is `got`.
    """

    tokens: int = field(metadata=unit("tokens"))
    largest: float = field(metadata=unit("", "largest logit error"))
    relative_rms: float = field(metadata=unit("%", "RMS logit error, relative"))
    differ: int = field(metadata=unit("positions", "positions with another likeliest token"))
    first: int | None = field(metadata=unit("id", "the first of them"))
    wanted: int | None = field(metadata=unit("id", "the token that fp32 says there"))
    got: int | None = field(metadata=unit("id", "the token said instead"))
    perplexity: float = field(metadata=unit(""))
    fp32_perplexity: float = field(metadata=unit(""))

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values; NaN and infinity become null, as JSON lacks them."""
        return {name: value if value == value and abs(value or 0) != float("inf") else None
                for name, value in asdict(self).items()}  # fmt: skip


@checked
def compare(
    model: WaferForCausalLM,
    reference: WaferForCausalLM,
    ids: Sequence[int],
    window: int = 256,
    progress: Progress = silent,
) -> Precision:
    """Return `model`'s logits over a text against `reference`'s, a model with the same weights in fp32."""
    return last(comparisons(model, reference, ids, window, progress))


@checked
def comparisons(
    model: WaferForCausalLM,
    reference: WaferForCausalLM,
    ids: Sequence[int],
    window: int = 256,
    progress: Progress = silent,
) -> Iterator[Precision]:
    """Yield the comparison up to the end of each window."""
    squares, scale, largest, tokens, differ = 0.0, 0.0, 0.0, 0, 0
    first: tuple[int, int, int] | None = None
    nats = [0.0, 0.0]
    pairs = zip(logits_of(model, ids, window, progress), logits_of(reference, ids, window), strict=True)
    for (got, following), (wanted, _) in pairs:
        error = (got - wanted).double()
        largest = max(largest, float(error.abs().max().nan_to_num(float("inf"))))
        squares, scale = squares + float(error.square().sum()), scale + float(wanted.double().square().sum())
        other = (got.argmax(-1) != wanted.argmax(-1)).nonzero().flatten()
        if len(other) and first is None:
            position = int(other[0])
            first = (tokens + position, int(wanted[position].argmax()), int(got[position].argmax()))
        differ += len(other)
        tokens += len(following)
        for number, logits in enumerate((got, wanted)):
            nats[number] += float(torch.nn.functional.cross_entropy(logits.double(), following, reduction="sum"))
        relative = (squares / scale) ** 0.5 if scale else 0.0 if squares == 0 else float("inf")
        place, said, instead = first or (None, None, None)
        ours, theirs = (Perplexity(tokens, total, window).perplexity for total in nats)
        yield Precision(tokens, largest, relative, differ, place, said, instead, ours, theirs)
