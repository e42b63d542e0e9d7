"""Generation: the choice of the next token, and a stream of tokens of one prompt or of several together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from numbers import Integral, Real
from operator import index
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

import torch
from typing_extensions import Unpack

from wafer_triton.errors import CacheError, DtypeError, ShapeError, plain, shown
from wafer_triton.text.progress import Progress, silent

if TYPE_CHECKING:
    from wafer_triton.models.decoder import WaferForCausalLM

Prompt = Sequence[int]
T = TypeVar("T", covariant=True)


@dataclass(frozen=True)
class Sampling:
    """Greedy at temperature 0; else a draw among the `top_k` likeliest, or among the fewest with probability `top_p`.

    Sequence i draws from `seed + i`, so a batch gives the same tokens as its prompts one by one. Raises ShapeError for
    a number that makes no sense.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, kind in (("temperature", Real), ("top_k", Integral), ("top_p", Real), ("seed", Integral)):
            value = getattr(self, name)
            if value is None and name != "temperature":
                continue
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ShapeError(f"{name} = {shown(value)} must be {'a whole' if kind is Integral else 'a'} number")
        if not (self.temperature == 0 or 1e-300 <= float(self.temperature) <= 1e300):  # which a division of fp64 takes
            raise ShapeError(f"temperature = {self.temperature} must be 0 (greedy) or a positive number up to 1e300")
        if self.seed is not None and not -(2**62) <= self.seed < 2**62:
            raise ShapeError(f"seed = {self.seed} must lie between -2**62 and 2**62")
        if self.top_k is not None and self.top_k < 1:
            raise ShapeError(f"top_k = {self.top_k} must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ShapeError(f"top_p = {self.top_p} must be above 0 and at most 1")
        for name in ("top_k", "top_p"):
            if self.temperature == 0 and getattr(self, name) is not None:
                raise ShapeError(
                    f"{name} = {getattr(self, name)}: at temperature 0 the likeliest token is taken; give a "
                    f"temperature above 0, or leave {name} out"
                )

    def generator(self, sequence: int) -> torch.Generator:
        """Return the generator of a sequence's random numbers."""
        source = torch.Generator()
        if self.seed is None:
            source.seed()
        else:
            source.manual_seed(int(self.seed) + sequence)
        return source

    def choose(self, logits: torch.Tensor, source: torch.Generator) -> int:
        """Return the next token by its logits [vocab]; DtypeError if they are NaN."""
        if bool(logits.isnan().any()):
            raise DtypeError(
                "the logits of the next token are NaN, as a value left the range of its dtype; place the model with "
                "dtype='bf16' or 'fp32', and accumulate='fp32'"
            )
        if self.temperature == 0:
            return int(logits.argmax())
        scores = logits.double().cpu()
        scores, ids = ((scores - scores.max()) / float(self.temperature)).sort(descending=True, stable=True)
        odds = scores[: self.top_k].softmax(-1)
        if self.top_p is not None:
            before = odds.cumsum(-1) - odds  # the likeliest always stays
            odds = torch.where(before < self.top_p, odds, 0.0)
        return int(ids[torch.multinomial(odds, 1, generator=source)])


class TokenStream(Iterator[T], Generic[T]):
    """Tokens, step by step: ints for one prompt; for a batch a list with an int for each prompt, None once it ended.

    A sequence ends before a stop token, which is not part of the stream, or after `max_new_tokens`. `tokens` holds all
    tokens so far, also after an interrupt: a list for one prompt, and a list for each prompt of a batch.
    """

    def __init__(
        self,
        model: WaferForCausalLM,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        sampling: Sampling,
        stop: Collection[int],
        progress: Progress,
        single: bool,
    ) -> None:
        self.model, self.prompts, self.limit, self.sampling = model, prompts, max_new_tokens, sampling
        self.stop = {*model.config.eos_token_ids, *stop}
        self.progress, self.single = progress, single
        self._rows: list[list[int]] = [[] for _ in prompts]
        if sampling.seed is None and sampling.temperature:  # which all ranks must draw alike
            self.sampling = sampling = replace(
                sampling, seed=model.pipeline.from_first(torch.Generator().seed() % 2**62)
            )
        # a stage computes with its own tokens, and each rank chooses the next ones by itself
        model.pipeline.agree(prompts=prompts, max_new_tokens=max_new_tokens, stop=self.stop, **vars(sampling))
        self._sources = [sampling.generator(number) for number in range(len(prompts))]
        self._open = set(range(len(prompts))) if max_new_tokens else set()
        self._version: int | None = None  # the model's, after this stream's last token

    @property
    def tokens(self) -> Any:
        """All tokens so far: of one prompt [tokens], of a batch [prompts][tokens]."""
        return self._rows[0] if self.single else self._rows

    def __next__(self) -> Any:
        if self._open:
            logits = self._prefill() if self._version is None else self._advance()
            self._version = self.model.version
            for number in sorted(self._open):
                token = self.sampling.choose(logits[number], self._sources[number])
                if token in self.stop:
                    self._open.discard(number)
                else:
                    self._rows[number].append(token)
        newest = self._newest()
        self._open = {number for number in self._open if len(self._rows[number]) < self.limit}
        if all(token is None for token in newest):
            raise StopIteration
        return newest[0] if self.single else newest

    def _newest(self) -> list[int | None]:
        """Return the last token of each sequence, None of one that ended."""
        return [tokens[-1] if number in self._open else None for number, tokens in enumerate(self._rows)]

    def _prefill(self) -> list[torch.Tensor]:
        self.model.reset()
        if self.limit > 1:
            self.model.layers.compile(self.progress)
        return list(prefills(self.model, self.prompts, self.progress))

    def _advance(self) -> torch.Tensor:
        if self.model.version != self._version:
            raise CacheError(
                "the model did something else since this stream's last token, so the cache is no longer of its text; "
                "finish a stream before the next begins"
            )
        newest = self._newest()
        return self.model.advance(newest + [None] * (self.model.batch - len(newest)))


def prefills(model: WaferForCausalLM, prompts: Iterable[Prompt], progress: Progress = silent) -> Iterator[torch.Tensor]:
    """Return logits [vocab] of the last token of each prompt, placed in sequences 0, 1, ...

    On several ranks prompts follow one another through the stages.
    """

    def run(each: tuple[int, torch.Tensor]) -> Callable[[], torch.Tensor]:
        return model.logits(model.prompt(each[1], progress, each[0])[-1:])

    checked = [model.checked(prompt, number) for number, prompt in enumerate(prompts)]
    every = model.pipeline.flow(enumerate(checked), lambda each: model.begin(each[1]), run)
    return (logits[0] for logits in every)


def each_forward(
    model: WaferForCausalLM, rows: Iterable[Prompt], progress: Progress = silent
) -> Iterator[torch.Tensor]:
    """Return logits [length, vocab] of each row, without keeping a cache.

    On several ranks rows follow one another through the stages.
    """
    model.reset()

    def run(row: torch.Tensor) -> Callable[[], torch.Tensor]:
        x = model.prompt(row, progress, 0)
        model.counts[0], model.caches[0] = 0, model.block.cache()
        parts = [model.logits(part) for part in x.split(model.head.most_tokens)]
        return lambda: torch.cat([part() for part in parts])

    return model.pipeline.flow([model.checked(row) for row in rows], model.begin, run)


def token_ids(tokens: Any, name: str = "tokens") -> list[int]:
    """Return the token ids of a list, an array or a tensor as plain numbers; else ShapeError with `name`."""
    if not _is_list(tokens):
        kind = type(tokens).__name__
        raise ShapeError(f"{name} of type {kind}: give a list of token ids; text goes through the tokenizer first")
    given = _plain(tokens, name)
    return [token_id(token, f"{name}[{number}]") for number, token in enumerate(given)]


def token_id(token: Any, name: str) -> int:
    """Return a token id as a plain number; ShapeError, with `name`, for anything else."""
    with suppress(TypeError, RuntimeError, ValueError):  # of arrays and tensors with other than one whole number
        if not isinstance(token, bool):
            return index(token)
    more = "; text goes through the tokenizer first" * isinstance(token, str)
    kind = type(token).__name__
    raise ShapeError(f"{name} = {shown(token)} is of type {kind}; give a token id, a whole number{more}")


def _plain(given: Any, name: str) -> Any:
    """Return the numbers of a tensor or an array as lists, anything else as it is."""
    if getattr(given, "is_meta", False) or getattr(given, "is_sparse", False):
        raise ShapeError(f"{name}: a sparse tensor, or one without values on the device meta; give token ids")
    return given.tolist() if hasattr(given, "tolist") else given


def _is_list(value: Any) -> bool:
    return (
        isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) and getattr(value, "ndim", 1) > 0
    )


def token_rows(input_ids: Any) -> list[list[int]]:
    """Return the token ids of a tensor [batch, length] as plain numbers; ShapeError for anything else."""
    if not isinstance(input_ids, torch.Tensor) or input_ids.is_floating_point():
        kind = input_ids.dtype if isinstance(input_ids, torch.Tensor) else type(input_ids).__name__
        raise ShapeError(f"input_ids of {kind} must be a tensor of token ids, whole numbers [batch, length]")
    if input_ids.dim() != 2 or 0 in input_ids.shape:
        raise ShapeError(f"input_ids {list(input_ids.shape)} must be [batch, length], neither of them 0")
    rows: list[list[int]] = input_ids.tolist()
    return rows


class SamplingOptions(TypedDict, total=False):
    """The keywords of generation: the fields of `Sampling`, and `stop`, token ids that end a text.

    The stop ids of the model's configuration always end a text.
    """

    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int | None
    stop: Collection[int]


def stream(
    model: WaferForCausalLM, prompts: Any, max_new_tokens: int, progress: Progress = silent,
    **options: Unpack[SamplingOptions],
) -> TokenStream[Any]:  # fmt: skip
    """Return a checked `TokenStream`; ShapeError for an empty prompt, none, or more than the model is placed for."""
    max_new_tokens = plain(max_new_tokens)
    if type(max_new_tokens) is not int or max_new_tokens < 0:
        raise ShapeError(f"max_new_tokens = {shown(max_new_tokens)} must be a whole number, 0 or more")
    given = _plain(prompts, "prompts")
    given = list(given) if _is_list(given) else given  # a generator gives its items once
    single = not _is_list(given) or (len(given) > 0 and not any(map(_is_list, given)))
    named = [("prompts", given)] if single else [(f"prompts[{n}]", prompt) for n, prompt in enumerate(given)]
    batch: list[Prompt] = [token_ids(prompt, name) for name, prompt in named]
    if not batch:
        raise ShapeError("the prompt is empty; give at least one token, or one prompt")
    if len(batch) > model.batch:
        raise ShapeError(
            f"{len(batch)} prompts, but the model is placed for {model.batch} at once; give batch={len(batch)} "
            f"when it is placed"
        )
    for number, prompt in enumerate(batch):
        if len(prompt) == 0:
            raise ShapeError("the prompt is empty; give at least one token" + ("" if single else f" (prompt {number})"))
        model.config.check_tokens(prompt)
        model.room(len(prompt) + max(0, max_new_tokens - 1), len(prompt))
    stop = token_ids(options.pop("stop", ()), "stop")
    sampling = Sampling(**options)  # type: ignore[misc] # `stop` is taken out
    if beyond := [token for token in stop if not 0 <= token < model.config.vocab_size]:
        raise ShapeError(f"stop: token {beyond[0]} is none of the {model.config.vocab_size:,} of the vocabulary")
    return TokenStream(model, batch, max_new_tokens, sampling, stop, progress, single)
