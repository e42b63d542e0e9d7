"""Forward passes of a model: the predicted time and the expert ids of each, evaluated on access."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import torch

from wafer_triton.cost import cap
from wafer_triton.device import Device
from wafer_triton.ops.recording import Due, counted
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.routing import hits

Own = list[tuple[list[torch.Tensor], tuple[int, int]]]  # for each pass `expert_ids` and `sent` of a stage's layers


@dataclass(eq=False)
class Forward:
    """One pass: its `expert_ids` [tokens, k] in each layer with experts; `due` gives the schedules that took its time.

    `contexts` are the tokens in the caches after a pass of decode; for prefill, its own tokens. With experts in regions
    `sent` has the number of passes to them, and of rows that did not fit in the first one.
    """

    mode: str
    contexts: Sequence[int]
    expert_ids: list[torch.Tensor]
    due: list[Due] = field(default_factory=list)
    sent: tuple[int, int] | None = None

    def measured(self, device: Device) -> cap.Pass:
        """Return the pass in the form of MoE-CAP."""
        runs = [run for entry in self.due for run in entry()]
        seconds = sum(counted(schedule).cost.cycles * times for schedule, times in runs) / device.clock_hz
        taken = [hits(layer.tolist()) for layer in self.expert_ids]
        if self.mode == "prefill":
            passes, overflow = self.sent or (None, None)
            ran = cap.Pass.prefill(self.contexts[0], seconds, taken)
            return replace(ran, region_passes=passes, overflow_rows=overflow)
        return cap.Pass.decode(self.contexts, seconds, taken)


class Passes:
    """The passes since a model's `reset`, in order.

    `gather` gathers a value of this stage of layers from all stages. The stages exchange the expert ids of tokens when
    all ranks ask for them.
    """

    def __init__(self, shape: DecoderShape, dtype: str, device: Device, gather: Callable[[Own], list[Own]]) -> None:
        self.shape, self.dtype, self.device, self.gather = shape, dtype, device, gather
        self.ran: list[Forward] = []

    def __iter__(self) -> Iterator[cap.Pass]:
        return (each.measured(self.device) for each in self._whole())

    def cap(self) -> dict[str, cap.Cap]:
        """MoE-CAP's measures of each phase that ran."""
        passes = list(self)
        own = {mode: [each for each in passes if each.mode == mode] for mode in ("prefill", "decode")}
        return {mode: cap.measured(self.shape, self.dtype, self.device, each) for mode, each in own.items() if each}

    def trace(self) -> list[list[list[int]]]:
        """Return the expert ids of all tokens, for each layer with experts, token by token."""
        layers = zip(*(each.expert_ids for each in self._whole()), strict=True)
        return [torch.cat(layer).tolist() for layer in layers]

    def _whole(self) -> list[Forward]:
        """Return the passes with the layers of all stages; one that Ctrl-C cut off on some ranks is left out."""
        if self.shape.experts is None:
            return self.ran
        stages, whole = self.gather([(each.expert_ids, each.sent or (0, 0)) for each in self.ran]), list[Forward]()
        for each, parts in zip(self.ran, zip(*stages, strict=False), strict=False):
            expert_ids, sent = zip(*parts, strict=True)
            passes, overflow = map(sum, zip(*sent, strict=True))
            whole.append(replace(each, expert_ids=[*chain(*expert_ids)], sent=each.sent and (passes, overflow)))
        return whole
