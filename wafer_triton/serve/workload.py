"""Requests that arrive at a rate; `serve.traces` reads requests from a file.

Every draw is by Python's `random.Random` with the given seed, so the same seed gives the same requests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from wafer_triton.errors import ConfigError, ShapeError, check_counts, plain, shown

MOST_TOKENS = 10**7  # of a prompt or an answer: more is a slip of the pen
MOST_REQUESTS = 10**6  # of one simulation, which takes minutes
LATEST = 1e10  # seconds of an arrival, 300 years, up to which a float has steps of 2 us
RATES = (1e-6, 1e9)  # requests a second


@dataclass(frozen=True)
class Request:
    """A prompt of `input` tokens that arrives `arrival` seconds after the start; its answer has `output` tokens."""

    number: int
    arrival: float
    input: int
    output: int

    def __post_init__(self) -> None:
        if not 0 <= self.arrival <= LATEST:
            raise ShapeError(
                f"request {self.number}: arrival = {shown(self.arrival)} must be 0 to {LATEST:,.0f} seconds"
            )
        input, output = check_counts(input=self.input, output=self.output)
        vars(self).update(number=plain(self.number), arrival=float(self.arrival), input=input, output=output)


def _check_rate(rate: float) -> None:
    """Raise ShapeError for a rate outside of `RATES`."""
    low, high = RATES
    if not low <= rate <= high:
        raise ShapeError(f"rate = {shown(rate)} must be a number from {low:g} to {high:g}")


def check_requests(what: str, requests: Sequence[Request]) -> None:
    """Raise ShapeError unless there is a list of requests."""
    if not all(isinstance(one, Request) for one in requests):
        raise ShapeError(f"{what}: {type(requests).__name__} is no list of Request; read_trace and poisson make one")


def _lengths(draw: Lengths, source: random.Random) -> tuple[int, int]:
    """Return the lengths of a request; ShapeError where a function of the user's own gives no pair."""
    drawn = draw(source)
    if not isinstance(drawn, tuple | list) or len(drawn) != 2:
        raise ShapeError(f"lengths gave {shown(drawn)}; give a function that returns tokens of a prompt and an answer")
    return drawn[0], drawn[1]


Lengths = Callable[[random.Random], tuple[int, int]]  # draws the tokens of a prompt and of its answer
Length = Callable[[random.Random], int]


def both(input: Length, output: Length) -> Lengths:
    """Return a function that draws lengths of prompts and answers independently."""
    return lambda source: (input(source), output(source))


def fixed(tokens: int) -> Length:
    """Return a length that is always `tokens`."""
    check_counts(tokens=tokens)
    return lambda source: tokens


def uniform(least: int, most: int) -> Length:
    """Return a length of `least` to `most` tokens, each as likely; ShapeError if there is none."""
    for tokens in (least, most):
        check_counts(tokens=tokens)
    if least > most:
        raise ShapeError(f"lengths of {least:,} to {most:,} tokens: the first is the larger; exchange them")
    return lambda source: source.randint(least, most)


def length_of(text: str) -> Length:
    """Return the length that a text stands for: "512" or "64:1024" (uniform).

    Raises ConfigError for another text, ShapeError for a number that makes no sense.
    """
    numbers = text.split(":")
    try:
        least, most = map(int, numbers if len(numbers) == 2 else numbers * 2)
    except ValueError:
        raise ConfigError(f"length {text!r}: write 512 or 64:1024") from None
    try:
        return uniform(least, most)
    except ShapeError as error:
        raise ShapeError(f"length {text!r}: {error}") from None


def poisson(rate: float, count: int, lengths: Lengths, seed: int = 0) -> list[Request]:
    """Return `count` requests that arrive independently of each other, `rate` a second on average.

    Raises ShapeError for a rate that is not positive.
    """
    check_counts(count=count)
    if count > MOST_REQUESTS:
        raise ShapeError(f"count = {count:,} is more than the {MOST_REQUESTS:,} requests of one simulation; give fewer")
    _check_rate(rate)
    source = random.Random(plain(seed))
    arrivals = list(accumulate(source.gammavariate(1.0, 1 / float(rate)) for _ in range(count)))
    return [Request(number, arrival, *_lengths(lengths, source)) for number, arrival in enumerate(arrivals)]


def rate_of(requests: Sequence[Request]) -> float:
    """Return the requests a second of a trace; ShapeError where all arrive at once."""
    check_requests("rate_of", requests)
    span = requests[-1].arrival - requests[0].arrival if requests else 0.0
    if span <= 0:
        raise ShapeError(
            f"{len(requests)} requests in 0 seconds have no rate; leave --rate out, or give a longer trace"
        )
    return (len(requests) - 1) / span


def rescaled(requests: Sequence[Request], rate: float) -> list[Request]:
    """Return the requests with their arrivals stretched, so that `rate` a second come; ShapeError as `rate_of`."""
    _check_rate(rate)
    times, first = rate_of(requests) / rate, requests[0].arrival
    return [replace(request, arrival=(request.arrival - first) * times) for request in requests]
