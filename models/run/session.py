"""Runs of a placed model: prompts and tokens, the KV caches, and the account of all rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial, wraps
from threading import RLock
from typing import Any, ParamSpec, TypeVar

import torch

from wafer_triton.algorithms.kv_cache import KvCache
from wafer_triton.cost.price import Prediction
from wafer_triton.count.account import Account
from wafer_triton.decoder.block import Block
from wafer_triton.errors import CacheError, ShapeError
from wafer_triton.models.generate import Prompt, token_id, token_ids
from wafer_triton.models.module import PlacedModule
from wafer_triton.models.place.moves import Phases
from wafer_triton.models.run.chunks import chunks
from wafer_triton.models.run.decode import Decode
from wafer_triton.models.run.head import Embedding, Head
from wafer_triton.models.run.passes import Forward, Passes
from wafer_triton.models.run.pipeline import PipelineStage
from wafer_triton.models.run.prefill import PrefillRun
from wafer_triton.ops.recording import Due, Ledger, open_recordings
from wafer_triton.place.moves import hand_overs, weights_between_phases
from wafer_triton.place.regions import Placement
from wafer_triton.place.transfers import ScheduleRuns
from wafer_triton.text.progress import Progress, silent

PHASES = ("prefill", "replacement", "decode")
P = ParamSpec("P")
T = TypeVar("T")


def _alone(method: Callable[P, T]) -> Callable[P, T]:
    """Return a method of a session that raises CacheError while another thread runs the same model."""

    @wraps(method)
    def call(*args: P.args, **how: P.kwargs) -> T:
        session: Any = args[0]
        if not session.running.acquire(blocking=False):
            raise CacheError("another thread runs this model, which has one text's cache; give each thread its own")
        try:
            return method(*args, **how)
        finally:
            session.running.release()

    return call


class Session(PlacedModule):
    """A placed model that runs prefill of a prompt, then token after token; a subclass makes its parts."""

    placement: Placement
    block: Block
    max_length: int
    batch: int
    head: Head
    embedding: Embedding
    layers: Decode
    phases: Phases
    pipeline: PipelineStage
    _prefill: PrefillRun
    running: RLock  # held by the thread that runs the model
    version = 0  # rises with every change of the caches; a stream refuses to continue after a foreign change

    @property
    def count(self) -> int:
        """Tokens in the cache of the first sequence."""
        return self.counts[0]

    @_alone
    def reset(self) -> None:
        """Forget the cached tokens and the account of the run."""
        self.counts = [0] * self.batch  # tokens in each cache
        self.caches: list[KvCache] = [self.block.cache()] * self.batch
        self.ledgers = {phase: Ledger() for phase in PHASES}
        self.ran = dict.fromkeys(PHASES, 0)  # tokens
        self.passes = Passes(self.config, self.block.dtype, self.block.mesh.device, self.pipeline.gather)
        self.version += 1
        self._broken = self._dropped = False

    def account(self) -> Account:
        """Return rounds, hops and bytes of all runs since `reset`."""
        return sum((ledger.account for ledger in self.ledgers.values()), Account())

    def predicted(self) -> dict[str, Prediction]:
        """Return the prediction on the wafer of all runs since `reset`, for each phase that ran.

        The phases "prefill" and "decode" are layers and head. The phase "replacement" moves weights and cache from one
        phase's cores to the other's. A prediction is the price of all schedules that ran.
        """
        device = self.block.mesh.device
        return {
            phase: Prediction.of(cost, device, self.ran[phase])
            for phase, ledger in self.ledgers.items()
            if (cost := ledger.record.cost).rounds
        }

    def _token_runs(self, held: Mapping[int, tuple[int, int]]) -> list[ScheduleRuns]:
        head = self.head.runs(self.batch)
        return [*self.layers.runs(held), *self.hand_off, *self.embedding.runs(self.batch), *head]

    def _count(self, phase: str, *due: Due, tokens: int = 0) -> None:
        for entry in due:
            for ledger in (self.ledgers[phase], *open_recordings()):
                ledger.enter(entry)
        self.ran[phase] += tokens

    def _enter(self, phase: str) -> None:
        if self.phases.enter(phase):
            self._count("replacement", partial(weights_between_phases, self.placement))

    def prefill(self, tokens: Prompt, progress: Progress = silent, *, sequence: int = 0) -> torch.Tensor:
        """Run a prompt with the empty cache of a sequence; return logits [vocab] of its last token.

        Raises ShapeError for an empty prompt, CacheError for one longer than the cache.
        """
        ids = self.checked(tokens, sequence)
        self.begin(ids)
        return self.logits(self.prompt(ids, progress, sequence)[-1:])()[0]

    def step(self, token: int) -> torch.Tensor:
        """Run one token after the cached ones; return logits [vocab]. Raises CacheError as `advance` does."""
        return self.advance([token_id(token, "token"), *[None] * (self.batch - 1)])[0]

    @_alone
    def advance(self, tokens: Sequence[int | None]) -> torch.Tensor:
        """Run one token of each sequence (None: leave it out); return logits [batch, vocab].

        Raises ShapeError for the wrong number of tokens, CacheError when a cache is full, or was dropped
        with the weights before.
        """
        if self._dropped:
            raise CacheError(
                "load_state_dict dropped the cached tokens, whose keys and values are of other weights; prefill them "
                "again, or call reset() to step from an empty cache"
            )
        tokens = [None if token is None else token_id(token, f"tokens[{n}]") for n, token in enumerate(tokens)]
        if len(tokens) != self.batch or tokens == [None] * self.batch:
            raise ShapeError(
                f"{len(tokens)} tokens for {self.batch} sequences; give one for each, or None, not all None"
            )
        active = [number for number, token in enumerate(tokens) if token is not None]
        for number in active:
            self.room(self.counts[number] + 1, self.caches[number].prefilled)
        ids = self._known([0 if token is None else token for token in tokens])
        cos, sin = zip(*(self.config.angles(torch.tensor([count]), count + 1) for count in self.counts), strict=True)
        self.version += 1
        self._enter("decode")
        state = (torch.cat(cos), torch.cat(sin)), self.counts, self.caches, active
        look_up = None if self.layers.embedding else self.embedding.run
        with self._attempt():
            logits = self.pipeline.step(ids, look_up, lambda x: self.layers.run(x, *state), self.head.dtype)
        held = {number: (self.counts[number], self.caches[number].prefilled) for number in active}
        due = lru_cache(partial(self._token_runs, held))
        self._count("decode", due, tokens=len(active))
        for number in active:
            self.counts[number] += 1
        contexts = [self.counts[number] for number in active]
        self.passes.ran.append(Forward("decode", contexts, self.layers.expert_ids(active), [due]))
        return logits

    def embed(self, tokens: Prompt) -> torch.Tensor:
        """Return rows of the embedding table [tokens, width]; ShapeError for an unknown token."""
        return self.embedding.run(self._known(tokens))

    def _known(self, tokens: Prompt) -> torch.Tensor:
        self.embedding.executor.outside_capture(self.config.name)
        ids = token_ids(tokens)
        if not ids:
            raise ShapeError("no tokens to look up; give at least one")
        self.config.check_tokens(ids)
        return torch.as_tensor(ids, dtype=torch.long)

    @cached_property
    def hand_off(self) -> list[ScheduleRuns]:
        """The schedules that move the activation from the embedding through all regions, in one decode step."""
        meshes = [region.mesh for region in self.placement.regions]
        return [(schedule, 1) for schedule in hand_overs(meshes, self.block)]

    def room(self, count: int, prefilled: int) -> None:
        """Raise CacheError unless a sequence of `count` tokens fits; `prefilled` of them are its prompt."""
        self.config.room(count)
        if count > self.max_length:
            raise CacheError(
                f"{count} tokens do not fit the KV cache of max_length = {self.max_length}; give a larger max_length"
            )
        self.block.cache(prefilled).room(count)

    @_alone
    def checked(self, tokens: Prompt, sequence: int = 0) -> torch.Tensor:
        """Return the ids of a prompt for a sequence; errors are raised before anything runs.

        Raises ShapeError for an empty prompt, an unknown token or sequence, CacheError for a prompt over its cache.
        """
        tokens = token_ids(tokens)
        count = len(tokens)
        if count == 0:
            raise ShapeError("the prompt is empty; give at least one token")
        if sequence not in range(self.batch):
            raise ShapeError(f"sequence {sequence!r}: the model is placed for {self.batch}, numbered from 0")
        self.room(count, count)
        if self._broken or self.counts[sequence]:
            state = "was cut off in the middle of a step" if self._broken else f"holds {self.counts[sequence]} tokens"
            raise CacheError(f"prefill needs an empty cache, but this one {state}; call reset() first")
        return self._known(tokens)

    def begin(self, ids: torch.Tensor) -> None:
        """Send the embedding of a prompt ahead of its run, between several ranks; one rank sends nothing."""
        self.pipeline.begin(lambda: self.embedding.run(ids))

    @_alone
    def prompt(self, ids: torch.Tensor, progress: Progress, sequence: int) -> torch.Tensor:
        """Return a prompt's activation [count, width] after the last layer; writes its keys and values to the cache."""
        count = len(ids)
        parts = chunks(self.placement.prefill.mesh.shape[0], count, self.placement.chunk(count))
        x = self.pipeline.enter(lambda: self.embedding.run(ids), count)
        cache = self.block.cache(count)
        self.version += 1
        self._dropped = False
        self._enter("prefill")
        with self._attempt():
            x = self._prefill.run(
                x,
                self.config.angles(torch.arange(count), count),
                parts,
                self.layers.filler(sequence, cache, count),
                progress,
            )
            self.pipeline.leave(x)
        self.counts[sequence], self.caches[sequence] = count, cache
        passes = self._prefill.passes

        @lru_cache
        def layers() -> list[ScheduleRuns]:
            every = self.pipeline.gather(passes) if passes else []
            return list(self._prefill.runs(parts, [sum(chunk) for chunk in zip(*every, strict=True)]))

        ran: list[Due] = [lru_cache(partial(self.embedding.prompt_runs, count)), layers]
        sent = (sum(passes), self._prefill.overflow) if passes else None
        self.passes.ran.append(Forward("prefill", [count], self._prefill.expert_ids, ran, sent))
        self._count("prefill", *ran, tokens=count)
        self._count("replacement", partial(self.phases.move_cache, parts, cache))
        return x

    def logits(self, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Return a function that returns the logits of x on every rank, once the last stage has computed them."""
        due = partial(self.head.runs, len(x))
        self.passes.ran[-1].due.append(due)
        self._count("prefill", due)
        own = self.head.run(x) if self.pipeline.has_head else None
        return partial(self.pipeline.everywhere, own, len(x), self.head.dtype)

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        """Run a step; after one that is cut off (by Ctrl-C, say) the caches are invalid until `reset`."""
        if self._broken:
            raise CacheError("the last step broke off half-way, so the cache is not whole; call reset() first")
        self._broken = True
        yield
        self._broken = False
