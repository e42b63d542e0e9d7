"""The announced time of an emulation follows from the rounds that run."""

import pytest

from tiny import CONFIG, MIXTURE
from wafer_triton.cost.layers import feed_forward
from wafer_triton.decoder import decode, prefill
from wafer_triton.decoder.block import Block, schedule
from wafer_triton.models import effort
from wafer_triton.models.decoder import WaferForCausalLM


def rounds_of(block: Block, layer) -> int:
    """Return the rounds of all layers; `layer` gives the sub-layers by the kind of block."""
    kinds = feed_forward(block)
    each = {kind: sum(len(schedule(part, block, *args).rounds) for part, args in layer(kind)) for kind in kinds}
    return sum(block.shape.layers_of[kind] * each[kind] for kind in kinds)


@pytest.mark.parametrize("config", [CONFIG, MIXTURE], ids=["dense", "mixture"])
def test_the_announced_seconds_follow_the_rounds_that_run(config, monkeypatch):
    announced = []
    monkeypatch.setattr(effort, "emulation_seconds", lambda rounds, *_, **__: announced.append(rounds) or 1.0)
    model = WaferForCausalLM.from_config(config, mesh=9, dtype="fp16", max_length=27, max_prompt=18)
    placed = model.placement
    assert effort.seconds(placed, model.executor, tokens=18, steps=2) == 3
    assert announced == [
        rounds_of(placed.prefill, lambda kind: prefill.layer(placed.prefill, 2, 0, kind)),
        rounds_of(placed.decode, lambda kind: decode.layer(placed.decode, 27, kind)),
    ]
