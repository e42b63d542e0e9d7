"""A model over ranks: stages of consecutive layers, each on ranks of its own, that hand the activation on.

Ranks first get layers of their own, as only the activation then moves between them. Several ranks share the meshes of a
stage if there are more ranks than layers, or if the executor has `shards`. All stages hold about the same number of
bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import prod
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from wafer_triton.device.dtype import torch_dtype
from wafer_triton.emulate.executor import Executor
from wafer_triton.emulate.ranks.executor import DistributedExecutor
from wafer_triton.emulate.ranks.group import OPERAND, agree, digest, naming_lost_rank
from wafer_triton.errors import BackendError
from wafer_triton.place.need import param_shapes
from wafer_triton.shape.decoder import DecoderShape

T = TypeVar("T")
KEYS = "model.layers.0.self_attn.k_proj.weight"  # a small matrix in which other checkpoints and seeds differ


@dataclass
class PipelineStage:
    """Stage `number` of `count`, which has the layers of `layers`.

    `group` has one rank of each stage: the ranks with the same number within their stage. `everyone` has all ranks. The
    head lies in the last stage. The embedding lies in the first stage, or in the last if the model is tied.
    """

    shape: DecoderShape
    executor: Executor
    layers: range
    dtype: str
    number: int = 0
    count: int = 1
    group: dist.ProcessGroup | None = None
    everyone: dist.ProcessGroup | None = None
    _under_way: deque[tuple[dist.Work, torch.Tensor]] = field(default_factory=deque)

    @classmethod
    def of_this_rank(cls, shape: DecoderShape, executor: Executor, dtype: str, cached: int, head: int) -> PipelineStage:
        """Return the stage of this rank; `cached` and `head` are as in `stage_layers`.

        Raises BackendError as `stage_count` for the ranks of `executor`.
        """
        if not isinstance(executor, DistributedExecutor):
            return cls(shape, executor, range(shape.num_hidden_layers), dtype)
        stages = stage_count(shape.num_hidden_layers, executor.ranks, executor.shards)
        ranks = torch.tensor(dist.get_process_group_ranks(executor.group)).view(stages, -1)
        devices = DeviceMesh(torch.device(executor.device).type, ranks, mesh_dim_names=("stage", "core"))
        inside = executor.inside
        if ranks.shape[1] > 1:
            inside = DistributedExecutor(inside, devices.get_group("core"), executor.shards)
        group, bounds = devices.get_group("stage"), stage_layers(shape, stages, cached, head)
        number = group.rank()
        return cls(
            shape, inside, range(bounds[number], bounds[number + 1]), dtype, number, stages, group, executor.group
        )

    @property
    def has_head(self) -> bool:
        """Whether the head lies in this stage."""
        return self.number == self.count - 1

    @property
    def has_embedding(self) -> bool:
        """Whether the embedding lies in this stage."""
        return self.has_head if self.shape.tie_word_embeddings else self.number == 0

    def agree(self, **options: object) -> None:
        """Raise BackendError on all ranks if their options differ."""
        if self.everyone is not None:
            agree(options, self.everyone)

    def agree_on_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Raise BackendError on all ranks if `KEYS` differs between them; no other weight is compared.

        A rank reads the weights of its own stage alone, and this matrix, so a difference elsewhere is not seen.
        """
        if self.everyone is not None:
            agree({f"{OPERAND}{KEYS}": digest(weights[KEYS])}, self.everyone)

    def from_first(self, value: T) -> T:
        """Return the value of the first rank, on all ranks."""
        if self.everyone is None:
            return value
        values = [value]
        with naming_lost_rank(self.everyone, [0]):
            dist.broadcast_object_list(values, group=self.everyone, group_src=0)
        return values[0]

    def gather(self, value: T) -> list[T]:
        """Return the values of all stages in order, on all ranks."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.count
        with naming_lost_rank(self.group):
            dist.all_gather_object(values, value, group=self.group)
        return values

    def begin(self, look_up: Callable[[], torch.Tensor]) -> None:
        """Send the embedding's rows from `look_up` to the first stage, if the embedding lies in the last."""
        if self.has_embedding and self.number:
            self._send(look_up(), 0)

    def enter(self, look_up: Callable[[], torch.Tensor], tokens: int) -> torch.Tensor:
        """Return the activation [tokens, width] that enters this stage, after `begin`."""
        if self.has_embedding and not self.number:
            return look_up()
        return self._receive(tokens, (self.number or self.count) - 1)

    def leave(self, x: torch.Tensor) -> None:
        """Hand the activation on, unless this stage is the last."""
        if not self.has_head:
            self._send(x, self.number + 1)

    def everywhere(self, logits: torch.Tensor | None, tokens: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the logits [tokens, vocab] of the last stage on all ranks."""
        if self.group is None:
            assert logits is not None
            return logits
        if logits is None:
            logits = torch.empty(tokens, self.shape.vocab_size, dtype=dtype, device=self.executor.device)
        with naming_lost_rank(self.group, [self.count - 1]):
            dist.broadcast(logits := logits.contiguous(), group=self.group, group_src=self.count - 1)
        return logits

    def step(
        self,
        ids: torch.Tensor,
        look_up: Callable[[torch.Tensor], torch.Tensor] | None,
        layers: Callable[[torch.Tensor], torch.Tensor],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Return the logits, on all ranks, of a token of each sequence.

        The `layers` take the ids themselves, or with `look_up` their rows of the embedding.
        """
        if look_up is None:
            out = layers(ids)
        else:
            rows = partial(look_up, ids)
            self.begin(rows)
            out = layers(self.enter(rows, len(ids)))
        self.leave(out)
        return self.everywhere(out if self.has_head else None, len(ids), dtype)

    def flow(
        self, items: Iterable[T], begin: Callable[[T], None], run: Callable[[T], Callable[[], torch.Tensor]]
    ) -> Iterator[torch.Tensor]:
        """Yield the results of `run` for each item, with as many items begun ahead as there are stages.

        A result is read after the last stage has it; earlier stages have run further items by then.
        """
        begun, results = deque[T](), deque[Callable[[], torch.Tensor]]()
        for item in chain(items, [None] * (self.count - 1)):
            if item is not None:
                begin(item)
                begun.append(item)
            if begun and (item is None or len(begun) == self.count):
                results.append(run(begun.popleft()))
            if len(results) == self.count - self.number:
                yield results.popleft()()
        for result in results:
            yield result()

    def _send(self, x: torch.Tensor, stage: int) -> None:
        """Send without waiting; at most as many earlier messages are pending as there are stages."""
        assert self.group is not None
        while len(self._under_way) > self.count:
            with naming_lost_rank(self.group, [stage]):
                self._under_way.popleft()[0].wait()
        with naming_lost_rank(self.group, [stage]):
            work = dist.isend(x := x.contiguous(), group=self.group, group_dst=stage)
        assert work is not None
        self._under_way.append((work, x))

    def _receive(self, tokens: int, stage: int) -> torch.Tensor:
        assert self.group is not None
        x = torch.empty(tokens, self.shape.hidden_size, dtype=torch_dtype(self.dtype), device=self.executor.device)
        with naming_lost_rank(self.group, [stage]):
            dist.recv(x, group=self.group, group_src=stage)
        return x


def stage_count(layers: int, ranks: int, shards: tuple[int, int] | None) -> int:
    """Return the number of stages of `ranks` ranks, if each stage has `shards`; by default at most one a layer.

    Raises BackendError if the ranks do not divide into stages of one rank for each rectangle of `shards`. Raises it,
    too, if there are more stages than layers.
    """
    if shards is None:
        return max(stages for stages in range(1, min(ranks, layers) + 1) if ranks % stages == 0)
    size = shards[0] * shards[1]
    if ranks % size or ranks // size > layers:
        raise BackendError(
            f"shards {shards[0]}x{shards[1]}: {ranks} ranks cannot form stages of {size} ranks each for {layers} "
            f"layers; give other shards, or none"
        )
    return ranks // size


def stage_layers(shape: DecoderShape, stages: int, cached: int = 0, head: int = 0) -> list[int]:
    """Return the first layer of each stage, and the end of the last.

    The largest stage has the fewest possible elements: parameters, keys and values of `cached` tokens, and the `head`
    elements of the head's workspace. These are many on a large mesh, as each row of cores has sums of all logits.
    """
    sizes = {name: prod(size) for name, size in param_shapes(shape).items()}
    # layers are alike, but for the few that are dense in a mixture of experts
    layer = sum(size for name, size in sizes.items() if name.startswith("model.layers.")) // shape.num_hidden_layers
    layer += 2 * cached * shape.num_key_value_heads * shape.head_dim
    embedding = sizes["model.embed_tokens.weight"]
    held = [layer] * stages
    held[-1] += embedding + head
    if not shape.tie_word_embeddings:
        held[0] += embedding
    counts = [1] * stages
    for _ in range(shape.num_hidden_layers - stages):
        least = held.index(min(held))
        held[least] += layer
        counts[least] += 1
    return [sum(counts[:number]) for number in range(stages + 1)]
