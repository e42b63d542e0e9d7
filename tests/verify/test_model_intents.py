"""Every schedule of a model has an intent and satisfies it; the routings of an intent reach every expert."""

from dataclasses import replace

import pytest

from healthy import DEVICE, regions_of
from schedules import MIXTURE
from tiny import CONFIG
from tiny import MIXTURE as MIXED
from wafer_triton import ExpertRegions
from wafer_triton.decoder import block, expert_regions
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.schedule.builder import Builder
from wafer_triton.shape.moe import Experts
from wafer_triton.verify import values
from wafer_triton.verify.decoder import sub_layer_intent
from wafer_triton.verify.faults import check
from wafer_triton.verify.values import draw_tiles

OF_EXPERTS = {key: value for key, value in MIXED.items() if key not in CONFIG} | {"num_local_experts": 6}
TITLES = {
    "decode projections",
    "kv append",
    "decode attention",
    "decode output projection",
    "prefill attention",
    "embedding",
    "head",
}
CUT = {"head_groups": 2, "experts": ExpertRegions(2, 1)}


@pytest.mark.parametrize(  # the other families have layers of these
    ("family", "cut"),
    [("qwen2", False), ("qwen3", False), ("qwen2_moe", False), ("olmoe", False)]
    + [(kind, True) for kind in ("llama", "qwen3_moe", "olmoe")],
)
def test_every_schedule_of_a_model_has_an_intent_and_satisfies_it(family, cut, monkeypatch):
    config = CONFIG | {"model_type": family, "sliding_window": None}
    mixture = "moe" in family or family == "mixtral"
    if mixture:
        config |= OF_EXPERTS | {"shared_expert_intermediate_size": 10}
    options = {name: value for name, value in CUT.items() if cut and (mixture or name != "experts")}
    ran, add = set(), block.SubLayer.__call__

    def recorded(sub_layer, b, on, *args):
        if type(b) is Builder:
            ran.add((sub_layer, on, args))
        add(sub_layer, b, on, *args)

    monkeypatch.setattr(block.SubLayer, "__call__", recorded)
    block._schedule.cache_clear()
    block._draft.cache_clear()
    model = WaferForCausalLM.from_config(config, mesh=4, max_length=16, max_prompt=9, batch=2, **options)
    assert len([*model.generate([list(range(9)), list(range(5))], max_new_tokens=3)]) == 3
    assert {sub_layer.title for sub_layer, *_ in ran} >= TITLES, "the sub-layers of every model"
    monkeypatch.setattr(values, "SMALL_WORK", 0)  # no more runs than an intent asks for, as of a large model
    for sub_layer, on, args in ran:
        verdict = check(block.schedule(sub_layer, on, *args), sub_layer_intent(sub_layer, on, *args))
        assert verdict.ok, f"{sub_layer.title} {args}: {verdict}"


def in_regions(side: int, capacity: int, tokens: int, *args: int):
    on = block.Block(MIXTURE, as_mesh(f"{side}x{side}", DEVICE))
    on = replace(on, expert_regions=replace(regions_of(on.mesh), capacity=capacity))
    sub_layer = (expert_regions.prefill_routing, expert_regions.prefill_pass)[len(args)]
    return on, block.schedule(sub_layer, on, tokens, 0, *args), sub_layer_intent(sub_layer, on, tokens, 0, *args)


@pytest.mark.parametrize(("side", "capacity", "tokens", "number"), [(4, 2, 2, 0), (4, 2, 2, 1), (3, 1, 3, 2)])
def test_the_expert_ids_of_a_pass_fill_every_row_of_every_region(side, capacity, tokens, number):
    on, schedule, intent = in_regions(side, capacity, tokens, number)
    held = on.expert_regions.held(MIXTURE.experts)
    given = draw_tiles(schedule, intent, intent.runs, seed=3)
    slots, ranks = (given[name][:, :, 0].flatten(2) for name in ("slots", "ranks"))
    for row in range(side):
        own = {(int(s) // held, int(r)) for s, r in zip(slots[:, row].flatten(), ranks[:, row].flatten(), strict=True)}
        living = [region for region, own_ in enumerate(on.expert_regions.living(MIXTURE.experts)) if own_]
        rows = range(number * capacity, (number + 1) * capacity)
        assert {(region, rank) for region in living for rank in rows} <= own
        assert any(rank not in rows for _, rank in own) and -1 in slots  # and some that are not for it
    for run in range(intent.runs):  # no row of a pass is taken twice
        for row in range(side):
            pairs = [(s // held, r) for s, r in zip(slots[run, row].tolist(), ranks[run, row].tolist(), strict=True)]
            taken = [pair for pair in pairs if pair[0] >= 0]
            assert len(set(taken)) == len(taken)


def test_the_routings_fill_every_pass_and_every_expert():
    on, schedule, intent = in_regions(4, 2, 2)
    given = draw_tiles(schedule, intent, intent.runs, seed=3)
    assert intent.reference is not None
    demands, homes = [], set()
    for run in range(intent.runs):
        out = intent.reference({name: tiles[run] for name, tiles in given.items()})
        demands.append(int(out["demand"][0, 0, 0]))
        homes |= {int(slot) for slot in out["slots"].flatten()}
    held = on.expert_regions.held(MIXTURE.experts)
    every = {r * held + p for r, own in enumerate(on.expert_regions.living(MIXTURE.experts)) for p in range(len(own))}
    assert max(demands) == 4 and every <= homes  # all four picks of a row are for one region; no expert is left out
    assert -1 in homes  # and some tokens are padding


@pytest.mark.parametrize(("experts", "tokens"), [((5, 2), 2), ((4, 2), 2), ((8, 1), 1)])
def test_a_queue_whose_maximum_misses_a_row_is_found(experts, tokens, monkeypatch):
    shape = replace(MIXTURE, experts=Experts(*experts, 4, shared_width=9))
    on = block.Block(shape, Mesh(4, 4, DEVICE), expert_regions=ExpertRegions(2, 3))
    args = (expert_regions.prefill_routing, on, tokens, 0)
    schedule, intent = block.schedule(*args), sub_layer_intent(*args)
    monkeypatch.setattr(values, "SMALL_WORK", 0)  # no more runs than the intent asks for, as of a large model
    assert check(schedule, intent).ok
    rounds = list(schedule.rounds)
    assert [round_.label for round_ in rounds[10:14]] == ["queue"] * 4
    rounds[11:13] = rounds[12:10:-1]  # the second step of the maximum before the first
    (finding,) = check(replace(schedule, rounds=tuple(rounds)), intent).findings
    assert finding.verdict == "wrong-values" and "demand[0]" in finding.message
