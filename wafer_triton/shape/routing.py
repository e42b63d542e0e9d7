"""Routings: the expert ids of tokens, drawn or read from a trace of a model's tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wafer_triton.errors import ConfigError, ShapeError, check_counts, shown
from wafer_triton.shape.config import read_json
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.moe import Experts

Trace = Sequence[Sequence[Sequence[int]]]  # of each sparse layer, of each token, the experts that it took
DRAWN = 64  # tokens of a trace that is drawn, at least
MOST_SKEW = 10.0


def drawn(shape: DecoderShape, tokens: int, skew: float = 0.0) -> Trace:
    """Return a trace of `tokens` tokens, each of which takes k experts without replacement.

    With skew s the n-th most popular expert of a layer has weight n**-s (Zipf), with 0 all are alike. The same
    arguments give the same trace. Raises ConfigError for a model without experts, ShapeError for another number.
    """
    e, layers = of_experts(shape), shape.layers_of["experts"]
    (tokens,) = check_counts(tokens=tokens)
    if not 0 <= skew <= MOST_SKEW:
        raise ShapeError(f"skew {shown(skew)}: give a number from 0, where all experts are alike, to {MOST_SKEW:g}")
    random = np.random.default_rng(0)
    weights = -skew * np.log(np.arange(1, e.count + 1))
    trace = []
    for _ in range(layers):
        popular = random.permutation(e.count)
        keys = random.gumbel(size=(tokens, e.count)) + weights  # the k largest are such a draw
        trace.append(np.sort(popular[np.argsort(-keys, 1)[:, : e.top_k]], 1).tolist())
    return trace


def read_trace(path: Path, shape: DecoderShape) -> Trace:
    """Return the trace in a JSON file, {"experts": [layer][token][k]}, as `generate --routing-out` writes it.

    Raises ConfigError for one that is not of the model: other layers, another k, an unknown expert.
    """
    e, layers = of_experts(shape), shape.layers_of["experts"]
    trace: Any = read_json(path, 'a trace {"experts": [...]}').get("experts")
    if not isinstance(trace, list) or not all(isinstance(layer, list) for layer in trace) or not trace:
        raise ConfigError(f'{path}: holds no trace; give {{"experts": [[[expert, ...] of each token] of each layer]}}')
    if len(trace) != layers:
        raise ConfigError(f"{path}: a trace of {len(trace)} layers, but {shape.name} has experts in {layers}")
    for number, layer in enumerate(trace):
        if len(layer) != len(trace[0]) or not layer:
            raise ConfigError(f"{path}: layer {number} has {len(layer)} tokens, layer 0 {len(trace[0])}; give as many")
        for token, taken in enumerate(layer):
            where = f"{path}: layer {number}, token {token}"
            if not isinstance(taken, list) or len(taken) != e.top_k or len(set(map(repr, taken))) != e.top_k:
                raise ConfigError(f"{where} takes {taken!r}, not {e.top_k} different experts")
            for expert in taken:
                if type(expert) is not int or not 0 <= expert < e.count:
                    raise ConfigError(f"{where} names expert {expert!r}, but there are those from 0 to {e.count - 1}")
    return trace


def of_experts(shape: DecoderShape) -> Experts:
    """Return a model's experts; ShapeError if it has none."""
    if shape.experts is None:
        raise ShapeError(f"{shape.name} has no experts, so that nothing is routed; leave the routing out")
    return shape.experts


def hits(taken: Iterable[Sequence[int]]) -> dict[int, int]:
    """Return, by expert, the number of tokens that took it."""
    return dict(Counter(expert for each in taken for expert in each))


def steps(trace: Trace, batch: int) -> list[list[dict[int, int]]]:
    """Return the `hits` of each layer in each decode pass of `batch` tokens; ShapeError if the trace is shorter."""
    tokens = len(trace[0])
    if tokens < batch:
        raise ShapeError(f"a trace of {tokens} tokens has no pass of {batch}; give a longer trace or a smaller batch")
    starts = range(0, tokens - batch + 1, batch)
    return [[hits(layer[start : start + batch]) for layer in trace] for start in starts]
