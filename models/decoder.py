"""A decoder on a virtual wafer: prefill by MeshGEMM and GEMM-T, decode by MeshGEMV, an even KV cache.

Every matrix product runs on a mesh, and so does the look-up of embeddings. In decode the activation moves from region
to region as it lies, tile by tile. Between the phases weights and cache are re-placed. `account` counts
both moves, `predicted` prices both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from itertools import chain
from operator import index
from pathlib import Path
from typing import Any, overload

import torch
from typing_extensions import Unpack

from wafer_triton.cost.price import Prediction
from wafer_triton.count.account import Account
from wafer_triton.dtype import BYTES, dtype_name, torch_dtype
from wafer_triton.emulate.executor import Executor
from wafer_triton.errors import BackendError, CacheError, ShapeError
from wafer_triton.models.checkpoint.fetch import resolve
from wafer_triton.models.checkpoint.text import chat_ids, tokenizer_of
from wafer_triton.models.checkpoint.weights import Checkpoint, complete
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.generate import (
    Prompt,
    SamplingOptions,
    TokenStream,
    each_forward,
    stream,
    token_ids,
    token_rows,
)
from wafer_triton.models.module import PlacedModule
from wafer_triton.models.place.choice import Experts, Groups, place
from wafer_triton.models.place.cuts import PlacedWeights, Weights
from wafer_triton.models.place.moves import Phases
from wafer_triton.models.random import RandomWeights, config_of
from wafer_triton.models.run.decode import Decode
from wafer_triton.models.run.head import Embedding, Head
from wafer_triton.models.run.ledger import Due, Ledger
from wafer_triton.models.run.passes import Passes
from wafer_triton.models.run.pipeline import ModelPipeline
from wafer_triton.models.run.prefill import PrefillRun, chunks
from wafer_triton.ops import described
from wafer_triton.ops import executor as executor_of
from wafer_triton.place.moves import hand_overs
from wafer_triton.place.need import decode_need
from wafer_triton.place.regions import Placement, Region
from wafer_triton.place.transfers import Scheduled
from wafer_triton.schedule.kv_cache import KvCache
from wafer_triton.text.progress import Progress, silent

PHASES = ("prefill", "replacement", "decode")


class WaferForCausalLM(PlacedModule):
    """A decoder whose matrix products run on a mesh of virtual cores; parameters have their Hugging Face names.

    `mesh` is a Mesh, or what `as_mesh` makes one of on `device` (default: a WSE-2). `prefill_mesh` is the mesh of
    prefill where it is another. `groups` and `prefill_groups` are those of the K-trees (default: about the root of a
    line's cores). Without a mesh, the fastest plan that holds the model gives whatever of these is not given. The
    columns hold the heads in `head_groups` groups, in prefill in `prefill_head_groups` if that is given (default: in
    each phase the fastest by the cost model that fit). With `trim` each phase takes the part of its mesh that holds
    more than padding, see `wafer_triton.cost.padding`. In prefill the `experts` of a mixture are "spread", each over
    the whole mesh, or live in "regions", given ones or the best (default: the faster by the cost model that fits).

    The KV cache of each of `batch` sequences holds `max_length` tokens, prompt and new. A prompt of up to `max_prompt`
    tokens goes through prefill at once if a block can take it, else in chunks. `kv_policy` "concat" fills the last row
    alone and overflows sooner. `emulate_on` is the torch device that emulates the cores with explicit exchange ("auto":
    a GPU where there is one); an `executor` in its place chooses backend and exchange too, see `ops.executor`.
    `placed` is called with the placement, before weights are read.

    Raises BackendError for a device that is not there, SramError or MeshError when the model does not fit the mesh or
    the device, or the head groups the model, ShapeError for a size below 1.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        *,
        mesh: Any = None,
        device: Any = None,
        dtype: str = "fp32",
        accumulate: str = "fp32",
        max_length: int = 512,
        max_prompt: int = 64,
        kv_policy: str = "shift",
        batch: int = 1,
        prefill_mesh: Any = None,
        groups: Groups = None,
        prefill_groups: Groups = None,
        head_groups: int | None = None,
        prefill_head_groups: int | None = None,
        trim: bool = False,
        experts: Experts = None,
        emulate_on: str = "auto",
        executor: Executor | None = None,
        progress: Progress = silent,
        placed: Callable[[Placement], None] | None = None,
    ) -> None:
        super().__init__()
        weights = complete(weights, config)
        if not isinstance(executor, Executor | None):
            raise BackendError(f"executor {executor!r}: give a result of wafer_triton.ops.executor, or leave it out")
        if executor is not None and emulate_on != "auto":
            raise BackendError(
                f"emulate_on {emulate_on!r} beside an executor {described(executor)}: give one of the two"
            )
        for name, told in (("progress", progress), ("placed", placed or silent)):
            if not callable(told):
                raise ShapeError(f"{name} = {told!r} is no function; give one, or leave it out")
        chosen = executor_of(emulate_on=emulate_on) if executor is None else executor
        dtype = dtype_name(dtype)
        self.placement = place(
            config, mesh=mesh, device=device, dtype=dtype, accumulate=accumulate, max_length=max_length,
            max_prompt=max_prompt, kv_policy=kv_policy, batch=batch, prefill_mesh=prefill_mesh, groups=groups,
            prefill_groups=prefill_groups, head_groups=head_groups, prefill_head_groups=prefill_head_groups,
            trim=trim, experts=experts,
        )  # fmt: skip
        if placed is not None:
            placed(self.placement)
        self.config, self.max_length, self.batch = config, max_length, batch
        own = decode_need(self.placement.head, "head").workspace
        self.pipeline = here = ModelPipeline.of(
            config, chosen, dtype, batch * max_length,
            sum(own.values()) * self.placement.head.mesh.cores // BYTES[dtype],
        )  # fmt: skip
        self.executor = here.executor
        self.block = block = self.placement.decode
        self.head = Head(self.placement.head, self.executor, weights if here.has_head else None)
        self.embedding = Embedding(self.head, weights if here.has_embedding else None)
        self.layers = Decode(
            block, self.executor, weights, progress, self.head if here.has_head else None,
            self.embedding if here.has_embedding and here.number == 0 else None, here.layers,
        )  # fmt: skip
        layers = zip(here.layers, self.layers.layers, strict=True)
        self.weights = PlacedWeights(
            block, {number: layer.tiles for number, layer in layers},
            self.placement.head, self.head.tiles, self.embedding.tiles, self.executor.together,
        )  # fmt: skip
        self.phases = Phases(self.placement, self.weights, self.executor)
        self._prefill = PrefillRun(self.placement.prefill, self.executor, self.phases.fill, here.layers)
        self.reset()

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, dtype: str = "fp32", **options: Any) -> WaferForCausalLM:
        """A model from a folder in Hugging Face layout, or known by name, see `resolve`; `options` as of the class."""
        folder = resolve(folder)
        name = dtype_name(dtype)
        weights = Checkpoint.of(folder, torch_dtype(name))
        model = cls(weights.config, weights, dtype=name, **options)
        model.folder = folder
        return model

    @classmethod
    def from_config(
        cls, config: Any, *, dtype: str = "fp32", random_weights: bool = True, seed: int = 0, **options: Any
    ) -> WaferForCausalLM:
        """A model of a shape alone, by name, folder, table of a config.json or DecoderConfig; zeros unless random."""
        shape, name = config_of(config), dtype_name(dtype)
        weights = RandomWeights(shape, torch_dtype(name), seed if random_weights else None)
        return cls(shape, weights, dtype=name, **options)

    def extra_repr(self) -> str:
        """Return the model's name, its mesh, and on what it is emulated."""
        return f"{self.config.name} on {self.block.mesh} cores, emulated {described(self.executor)}"

    folder: Path | None = None
    version = 0  # rises with every change of the caches; a stream compares it, and refuses caches that changed

    @property
    def count(self) -> int:
        """Tokens in the cache of the first sequence."""
        return self.counts[0]

    @property
    def regions(self) -> list[Region]:
        """The regions that hold the blocks for decode."""
        return list(self.placement.regions)

    def reset(self) -> None:
        """Forget the cached tokens and the account of the run."""
        self.counts = [0] * self.batch  # tokens in each cache
        self.caches: list[KvCache] = [self.block.cache()] * self.batch
        self.ledgers = {phase: Ledger() for phase in PHASES}
        self.ran = dict.fromkeys(PHASES, 0)  # tokens
        self.passes = Passes(self.config, self.block.dtype, self.block.mesh.device, self.pipeline.of_all)
        self.version += 1
        self._broken = False

    def account(self) -> Account:
        """Return rounds, hops and bytes of everything since `reset`."""
        return sum((ledger.account for ledger in self.ledgers.values()), Account())

    def predicted(self) -> dict[str, Prediction]:
        """What everything since `reset` is predicted to take on the wafer, for each phase that ran.

        The phases "prefill" and "decode" are layers and head. The phase "replacement" brings weights and cache from one
        phase's place to the other's. A prediction is the price of the schedules that ran, each as often as it ran.
        """
        device = self.block.mesh.device
        return {
            phase: Prediction.of(cost, device, self.ran[phase])
            for phase, cost in ((phase, ledger.cost) for phase, ledger in self.ledgers.items())
            if cost.rounds
        }

    def _token_runs(self, held: Mapping[int, tuple[int, int]]) -> list[Scheduled]:
        ends = self.embedding.runs(self.batch), self.head.runs(self.batch)
        return [*self.layers.runs(held), *self.hand_off, *chain(*ends)]

    def _count(self, phase: str, *due: Due, tokens: int = 0) -> None:
        for entry in due:
            self.ledgers[phase].enter(entry)
        self.ran[phase] += tokens

    def _enter(self, phase: str) -> None:
        if self.phases.enter(phase):
            self._count("replacement", self.phases.move_weights)

    def prefill(self, tokens: Prompt, progress: Progress = silent, *, sequence: int = 0) -> torch.Tensor:
        """Run a prompt through the empty cache of a sequence; logits [vocab] of its last token.

        Raises ShapeError for an empty prompt, CacheError for one longer than the cache.
        """
        ids = self.checked(tokens, sequence)
        self.begin(ids)
        return self.logits(self.prompt(ids, progress, sequence)[-1:])()[0]

    def step(self, token: int) -> torch.Tensor:
        """Run one token after the cached ones; logits [vocab]. Raises CacheError when the cache is full."""
        return self.advance([token, *[None] * (self.batch - 1)])[0]

    def advance(self, tokens: Sequence[int | None]) -> torch.Tensor:
        """Run one token of each sequence (None: it rests); logits [batch, vocab].

        Raises ShapeError for the wrong number of tokens, CacheError when a cache is full.
        """
        given = token_ids([token for token in tokens if token is not None])
        if len(tokens) != self.batch or not given:
            raise ShapeError(
                f"{len(tokens)} tokens for {self.batch} sequences; give one for each, or None, not all None"
            )
        active = [number for number, token in enumerate(tokens) if token is not None]
        for number in active:
            self.room(self.counts[number] + 1, self.caches[number].prefilled)
        ids = self._known([0 if token is None else token for token in tokens])
        angles = [self.config.angles(torch.tensor([count]), count + 1) for count in self.counts]
        rotary = torch.cat([cos for cos, _ in angles]), torch.cat([sin for _, sin in angles])
        self.version += 1
        self._enter("decode")
        state = rotary, self.counts, self.caches, active
        look_up = None if self.layers.embedding else self.embedding.run
        with self._attempt():
            logits = self.pipeline.step(ids, look_up, lambda x: self.layers.run(x, *state), self.head.dtype)
        held = {number: (self.counts[number], self.caches[number].prefilled) for number in active}
        due = lru_cache(partial(self._token_runs, held))
        self._count("decode", due, tokens=len(active))
        for number in active:
            self.counts[number] += 1
        self.passes.add("decode", [self.counts[number] for number in active], self.layers.expert_ids(active), due)
        return logits

    def forward(self, input_ids: torch.Tensor, progress: Progress = silent) -> torch.Tensor:
        """Logits [batch, length, vocab] of every position of input_ids [batch, length], by prefill; keeps no cache."""
        return torch.stack(list(each_forward(self, token_rows(input_ids), progress)))

    @overload
    def generate(
        self, tokens: Prompt, max_new_tokens: int, progress: Progress = ..., **options: Unpack[SamplingOptions]
    ) -> TokenStream[int]: ...

    @overload
    def generate(
        self, tokens: Sequence[Prompt], max_new_tokens: int, progress: Progress = ...,
        **options: Unpack[SamplingOptions],
    ) -> TokenStream[list[int | None]]: ...  # fmt: skip

    def generate(
        self, tokens: Any, max_new_tokens: int, progress: Progress = silent, **options: Unpack[SamplingOptions]
    ) -> Any:
        """Return tokens after a prompt, or after each of a batch, as they come: see `Sampling`, `TokenStream`.

        Raises CacheError at once if a prompt and its new tokens do not fit the cache.
        """
        return stream(self, tokens, max_new_tokens, progress, **options)

    def chat(
        self, messages: Sequence[Mapping[str, str]], max_new_tokens: int, **options: Unpack[SamplingOptions]
    ) -> TokenStream[int]:
        """Return the answer to messages such as {"role": "user", "content": "Hi"}, by the tokenizer's chat template."""
        return self.generate(chat_ids(tokenizer_of(self.folder), messages), max_new_tokens, **options)

    def embed(self, tokens: Prompt) -> torch.Tensor:
        """Return rows of the embedding table [tokens, width]; ShapeError for an unknown token."""
        return self.embedding.run(self._known(tokens))

    def _known(self, tokens: Prompt) -> torch.Tensor:
        try:
            ids = [index(token) for token in tokens]
        except TypeError:
            raise ShapeError("a token is no whole number; give token ids, text goes through the tokenizer") from None
        if not ids:
            raise ShapeError("no tokens to look up; give at least one")
        self.config.check_tokens(ids)
        return torch.as_tensor(ids, dtype=torch.long)

    @cached_property
    def hand_off(self) -> list[Scheduled]:
        """The schedules that bring the activation from the embedding through all regions, in one decode step."""
        return [(schedule, 1) for schedule in hand_overs(self.regions, self.block)]

    def room(self, count: int, prefilled: int) -> None:
        """Raise CacheError unless a sequence of `count` tokens fits, of which `prefilled` were the prompt."""
        self.config.room(count)
        if count > self.max_length:
            raise CacheError(
                f"{count} tokens do not fit the KV cache of max_length = {self.max_length}; give a larger max_length"
            )
        self.block.cache(prefilled).room(count)

    def checked(self, tokens: Prompt, sequence: int = 0) -> torch.Tensor:
        """Return the ids of a prompt for a sequence; what is wrong with it is raised before a part of it is on its way.

        Raises ShapeError for an empty prompt, an unknown token or sequence, CacheError for what does not fit its cache.
        """
        tokens = token_ids(tokens)
        count = len(tokens)
        if count == 0:
            raise ShapeError("the prompt is empty; give at least one token")
        if sequence not in range(self.batch):
            raise ShapeError(f"sequence {sequence!r}: the model is placed for {self.batch}, numbered from 0")
        self.room(count, count)
        if self._broken or self.counts[sequence]:
            held = "broke off in the middle of a step" if self._broken else f"holds {self.counts[sequence]} tokens"
            raise CacheError(f"prefill needs an empty cache, which {held}; call reset() first")
        return self._known(tokens)

    def begin(self, ids: torch.Tensor) -> None:
        """Start a prompt on its way, before it is run; only several ranks have something to do."""
        self.pipeline.begin(lambda: self.embedding.run(ids))

    def prompt(self, ids: torch.Tensor, progress: Progress, sequence: int) -> torch.Tensor:
        """All positions [count, width] of a prompt after the last layer; its keys and values are in the cache."""
        count = len(ids)
        parts = chunks(self.placement.prefill.mesh.shape[0], count, self.placement.chunk(count))
        x = self.pipeline.enter(lambda: self.embedding.run(ids), count)
        cache = self.block.cache(count)
        self.version += 1
        self._enter("prefill")
        with self._attempt():
            x = self._prefill.run(
                x,
                self.config.angles(torch.arange(count), count),
                parts,
                lambda layer, k, v: self.layers.fill(layer, sequence, cache, k, v),
                progress,
            )
            self.pipeline.leave(x)
        self.counts[sequence], self.caches[sequence] = count, cache
        passes = self._prefill.passes

        @lru_cache
        def layers() -> list[Scheduled]:
            every = self.pipeline.of_all(passes) if passes else []
            return list(self._prefill.runs(parts, [sum(chunk) for chunk in zip(*every, strict=True)]))

        ran = lru_cache(partial(self.embedding.prompt_runs, count)), layers
        self.passes.add("prefill", [count], self._prefill.expert_ids, *ran)
        if self._prefill.passes:
            self.passes.sent(sum(self._prefill.passes), self._prefill.overflow)
        self._count("prefill", *ran, tokens=count)
        self._count("replacement", partial(self.phases.move_cache, parts, cache))
        return x

    def logits(self, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        """What gives the logits of x on every rank, which the last stage has computed by then."""
        due = partial(self.head.runs, len(x))
        self.passes.also(due)
        self._count("prefill", due)
        own = self.head.run(x) if self.pipeline.has_head else None
        return partial(self.pipeline.everywhere, own, len(x), self.head.dtype)

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        """A step: one that is left half-way (by Ctrl-C, say) leaves caches that only `reset` makes good."""
        if self._broken:
            raise CacheError("the last step broke off half-way, so the cache is not whole; call reset() first")
        self._broken = True
        yield
        self._broken = False

    def _place(self, weights: Weights) -> None:
        self.layers.place(weights)
        if self.pipeline.has_head:
            self.head.place(weights)
        if self.pipeline.has_embedding:
            self.embedding.place(weights)
        self.phases.forget()
        self._prefill.forget()
        self.reset()
