"""Source lines for the slices of a trace: the lines of code that made the rounds of a schedule or of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from wafer_triton.cost.layers import KindsAndSubLayers
from wafer_triton.place.need import ENDS
from wafer_triton.schedule import decode
from wafer_triton.schedule.block import Block, drafted
from wafer_triton.schedule.repeat import Repeat, Section
from wafer_triton.schedule.rounds import Round
from wafer_triton.schedule.schedule import Schedule

if TYPE_CHECKING:
    from wafer_triton.schedule.repeat import Step

Sources = dict[str, dict[str, str]]  # lines by the kind of block and by the name of its step


def of_rounds(rounds: Iterable[Round]) -> str:
    """Return the source lines of rounds, each once, with commas between them."""
    return ", ".join(dict.fromkeys(round_.source for round_ in rounds))


def of_schedule(schedule: Schedule) -> str:
    """Return the source lines of a schedule; most of its rounds need not be made for that."""
    return of_rounds(_representatives(schedule.rounds.steps))


def joined(texts: Iterable[str]) -> str:
    """Return the source lines of several texts, each once."""
    return ", ".join(dict.fromkeys(line for text in texts for line in text.split(", ") if line))


def of_steps(block: Block, sub_layers: KindsAndSubLayers) -> Sources:
    """Return the source lines of every step of a block's sub-layers."""
    found: dict[str, dict[str, list[Round]]] = {}
    for kind, sub_layer, args in sub_layers:
        for round_ in _representatives(drafted(sub_layer, block, *args).rounds.steps):
            found.setdefault(kind, {}).setdefault(round_.label, []).append(round_)
    return {kind: {name: of_rounds(rounds) for name, rounds in steps.items()} for kind, steps in found.items()}


def of_ends(block: Block, tokens: int) -> Sources:
    """Return the source lines of the embedding of `tokens` tokens and of the head, as `inference.ends` prices them."""
    if not block.shape.vocab_size:
        return {}
    home, (embedding, head) = decode.head_block(block), ENDS
    embeds = [(embedding, decode.embed, (size,)) for size in decode.batches(decode.embed, home, tokens)]
    return of_steps(home, [*embeds, (head, decode.head, (1,))])


def _representatives(steps: Iterable[Step]) -> Iterator[Round]:
    """Yield rounds, one of each section, as one line makes them all, and the rounds of one repetition."""
    for step in steps:
        if isinstance(step, Section):
            yield step[0]
        elif isinstance(step, Repeat):
            yield from _representatives(step.steps)
        else:
            yield step
