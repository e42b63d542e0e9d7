"""Prefill in chunks and on a mesh of its own; re-placement of weights and cache between the phases, and its cost."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pairs import in_turn
from tiny import BIASED, drawn
from wafer_triton.algorithms.kv_cache import KvCache
from wafer_triton.cost.price import Cost, priced
from wafer_triton.count.account import account
from wafer_triton.decoder.block import Block
from wafer_triton.device import PRESETS
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.place.cuts import prefill_tiles
from wafer_triton.models.run.chunks import chunks
from wafer_triton.place import moves
from wafer_triton.place.transfers import Relayout, owners, redistribute
from wafer_triton.schedule.rounds import Parameter

pytestmark = pytest.mark.slow

CONFIG = replace(BIASED, head_dim=10)
SMALL = replace(PRESETS["wse2"], name="small", sram_bytes=13 * 1024)
TOKENS = torch.randint(31, (40,), generator=torch.Generator().manual_seed(1)).tolist()


def decoder(mesh, device="wse2", **options) -> WaferForCausalLM:
    return WaferForCausalLM.from_weights(
        CONFIG, drawn(CONFIG, 0.3), mesh=as_mesh(mesh, device), **({"max_length": 64} | options)
    )


def logits_of(model: WaferForCausalLM, prompt: int, steps: int = 8) -> torch.Tensor:
    model.reset()
    return torch.stack([model.prefill(TOKENS[:prompt]), *(model.step(t) for t in TOKENS[prompt : prompt + steps])])


# --- chunks ---


@pytest.mark.parametrize(("side", "count", "tokens"), [(3, 29, 2), (4, 40, 3), (5, 1, 1), (2, 7, 1), (3, 30, 10)])
def test_chunks_take_every_token_once_and_in_order(side, count, tokens):
    parts = chunks(side, count, tokens)
    assert torch.cat([part.position[part.position >= 0] for part in parts]).sort().values.equal(torch.arange(count))
    past = 0
    for part in parts:
        assert part.position.shape == (side, part.tokens) and part.tokens <= tokens and part.past == past
        here = part.position.flatten()[part.index]
        assert here.tolist() == list(range(part.start, part.start + part.count)), "in order, row by row"
        past += part.tokens
    assert all(part.count == side * tokens for part in parts[:-1]), "only the last is smaller"


@pytest.mark.parametrize(("size", "exchange"), in_turn([("2", 3), ("2x3", 2)], ("explicit", "elided")))
def test_prefill_in_chunks_equals_one_prefill(size, exchange, monkeypatch):
    mesh, tokens = size
    model = decoder(mesh, executor=TorchExecutor(exchange=exchange))
    whole = logits_of(model, 29)
    once = model.account()
    monkeypatch.setattr(type(model.placement), "chunk", lambda self, count: tokens)
    torch.testing.assert_close(logits_of(model, 29), whole, rtol=1e-5, atol=1e-5)
    assert model.account().rounds > once.rounds


def test_a_prompt_that_overflows_goes_in_chunks():
    roomy, model = decoder(2), decoder(2, SMALL, max_prompt=40, head_groups=1)
    assert (model.placement.chunk(3), model.placement.chunk(40)) == (2, 2), "20 rows in 10 chunks"
    torch.testing.assert_close(logits_of(model, 40, 0), logits_of(roomy, 40, 0), rtol=1e-5, atol=1e-5)
    for region in model.regions:
        assert region.sram_peak_bytes <= SMALL.sram_bytes
    assert model.account().sram_peak_bytes <= SMALL.sram_bytes


def test_a_longer_prompt_never_runs_faster():
    """Eleven tokens on a row went in chunks of 5, 5 and 1, and twelve in 6 and 6."""
    config = DecoderConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
        head_dim=16, vocab_size=100, max_position_embeddings=512,
    )  # fmt: skip
    on = {"mesh": 4, "dtype": "fp16", "device": "wse2,sram_kib=8", "max_length": 64}
    seconds = []
    for rows in (1, 5, 6, 10, 11, 12, 13):
        model = WaferForCausalLM.from_config(config, **on, max_prompt=4 * rows)
        model.prefill(list(range(1, 4 * rows + 1)))
        seconds.append(sum(each.seconds for each in model.predicted().values()))
        shorter = [-(-count // model.placement.chunk(4 * count)) for count in range(1, rows + 1)]
        assert shorter == sorted(shorter), "chunks of shorter prompts of the same placement"
    assert seconds == sorted(seconds)


# --- two meshes ---


@pytest.mark.parametrize(
    ("meshes", "exchange"),
    in_turn([("3", "5"), ("2x3", "4"), ("4x2", "3x1"), ("3", "3")], ("explicit", "elided")),
)
def test_a_prefill_mesh_of_its_own_says_the_same(meshes, exchange):
    mesh, other = meshes
    model = decoder(
        mesh, prefill_mesh=other, groups=(2,), prefill_groups=(1,), executor=TorchExecutor(exchange=exchange)
    )
    wanted = logits_of(decoder(mesh), 29)
    torch.testing.assert_close(logits_of(model, 29), wanted, rtol=1e-5, atol=1e-5)
    assert model.placement.prefill.groups == (1,) and model.placement.decode.groups == (2,)
    assert (model.placement.prefill_regions == model.placement.regions) == (mesh == other)


def test_prefill_on_a_larger_mesh_takes_larger_chunks():
    alone = decoder(2, SMALL, max_prompt=40)
    model = decoder(2, SMALL, max_prompt=40, prefill_mesh=4)
    assert model.placement.chunk(40) * 4 > alone.placement.chunk(40) * 2
    torch.testing.assert_close(logits_of(model, 40, 0), logits_of(alone, 40, 0), rtol=1e-5, atol=1e-5)


def test_each_change_of_phase_is_counted_once(monkeypatch):
    model = decoder(3)
    moving = priced(moves.weights_between_phases(model.placement))
    assert moving.hops > 0

    def totals() -> list[int]:
        """Return bytes over links up to a first prompt, its first and second step, and a second prompt."""
        moved = []
        for prompt in ([1, 2, 3], [4, 5]):
            model.reset()
            model.prefill(prompt)
            moved.append(model.account().link_bytes)
            for token in (6, 7):
                model.step(token)
                moved.append(model.account().link_bytes)
        return moved

    counted = totals()
    monkeypatch.setattr(type(model.phases), "enter", lambda self, phase: False)
    free = totals()
    extra = [(one - two) // moving.link_bytes for one, two in zip(counted, free, strict=True)]
    assert extra == [0, 1, 1, 1, 2, 2], "into place for decode, and back before the next prompt"


def test_a_prompt_whose_rows_stay_moves_no_cache():
    model = decoder(3, head_groups=1)
    parts = chunks(3, 8, 3)
    assert list(model.phases.move_cache(parts, KvCache(3, 22))) == []
    assert priced(model.phases.move_cache(chunks(3, 8, 1), KvCache(3, 22))).link_bytes > 0


# --- schedules of re-placement ---


def run_redistribution(mesh, axis, source, target):
    """Return tiles of numbered units before and after."""
    redistribution = redistribute(mesh, axis, source, target, 3, "fp32")
    lines = mesh.length("y" if axis == "x" else "x")
    values = torch.randn(lines, len(source), 3)
    start = torch.full((*mesh.shape, *(redistribution.buffers["from"].slots, 3)), float("nan"))
    wanted = torch.full((*mesh.shape, *(redistribution.buffers["to"].slots, 3)), float("nan"))
    for tiles, cores in ((start, source), (wanted, target)):
        taken = np.zeros(mesh.length(axis), int)
        for unit, core in enumerate(cores):
            place = (slice(None), core) if axis == "x" else (core, slice(None))
            tiles[(*place, taken[core])] = values[:, unit]
            taken[core] += 1
    program = TorchExecutor(poison=True).bind(redistribution, {"from": start})
    program.run()
    return redistribution, program.read("to").view(wanted.shape), wanted


@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize(
    ("size", "before", "after"), [(24, 2, 3), (24, 3, 2), (13, 5, 3), (7, 1, 6), (7, 6, 1), (10, 4, 4)]
)
def test_redistribution_moves_every_unit(axis, size, before, after):
    side = max(before, after)
    mesh = Mesh(side, 2) if axis == "y" else Mesh(2, side)
    redistribution, got, wanted = run_redistribution(mesh, axis, owners(size, before), owners(size, after))
    assert torch.equal(got.nan_to_num(), wanted.nan_to_num())
    largest = max(-(-size // before), -(-size // after))
    assert len(redistribution.rounds) <= 2 * largest


def test_redistribution_costs_the_way_of_each_unit():
    source, target = np.array([0, 0, 1]), np.array([0, 2, 2])
    redistribution, _, _ = run_redistribution(Mesh(2, 3), "x", source, target)
    # on each of two lines one unit goes two hops and one goes one, of 12 B
    assert account(redistribution).link_bytes == 2 * 12 * (2 + 1)


def blocks(mesh, other, device="wse2"):
    decode = Block(CONFIG, as_mesh(mesh, device), "fp32", entries=9)
    return decode, replace(decode, mesh=as_mesh(other, device).square())


def moving(name: str, decode: Block, prefill: Block) -> list[Cost]:
    """Return the cost of every step that takes a buffer to its place in prefill."""
    found = {
        name: steps for kind in CONFIG.layers_of for name, steps in moves.weight_moves(decode, prefill, kind).items()
    }
    return [priced([step.schedule_runs]) for step in found[name]]


def test_on_one_square_mesh_only_turning_and_skewing_cost():
    decode, prefill = blocks(3, 3)
    assert moving("bqkv", decode, prefill) == []
    (turned,) = moving("norm", decode, prefill)
    assert turned.hops > 0 and not turned.relayed, "neighbours on rings exchange"
    skewed, both = moving("wqkv", decode, prefill), moving("wo", decode, prefill)
    assert len(skewed) == 1 and len(both) == 2
    assert skewed[0].link_bytes > 0 and both[0].link_bytes > 0


@pytest.mark.parametrize(("mesh", "other"), [("2x3", "2x3"), ("3", "5"), ("5", "3"), ("4x2", "3")])
def test_on_another_grid_every_matrix_moves(mesh, other):
    decode, prefill = blocks(mesh, other)
    for name in ("wqkv", "wo", "wgu", "wdown"):
        plain = len(moving(name, *blocks(prefill.mesh.shape[0], prefill.mesh.shape[0])))
        steps = moving(name, decode, prefill)
        assert plain < len(steps) <= plain + 2
        assert all(step.link_bytes > 0 for step in steps[-1:])
    moved = sum((step for name in ("wqkv", "wgu") for step in moving(name, decode, prefill)[:-1]), Cost())
    # on a rectangle folded to its lcm grid some tiles change their logical core alone
    assert (moved.link_bytes > 0) == (mesh != other)


def test_a_matrix_too_large_for_a_core_goes_in_slices():
    tight = replace(SMALL, name="tight", sram_bytes=1200)
    costs = (moving("wgu", *blocks(3, 3, device)) for device in ("wse2", tight))
    wide, sliced = (cost for (cost,) in costs)
    assert sliced.sram_peak_bytes <= 1200 < wide.sram_peak_bytes
    assert sliced.rounds > wide.rounds and wide.link_bytes <= sliced.link_bytes < 1.1 * wide.link_bytes


def filled(model: WaferForCausalLM, layer: int, kind: str, like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tiles for prefill, its bias among them."""
    memory = {name: torch.full_like(tile.flatten(2), float("nan")) for name, tile in like.items() if name != "bqkv"}
    repeated = model.phases.fill(layer, kind, memory)
    assert set(repeated) == ({"bqkv"} if kind == "attention" else set())
    return {name: tile.view_as(like[name]) for name, tile in memory.items()} | repeated


@pytest.mark.parametrize(("mesh", "head_groups"), [("1", 1), ("3", 1), ("3", 2), ("4", 1), ("4", 3)])
def test_moved_decode_tiles_equal_the_tiles_for_prefill(mesh, head_groups):
    model = decoder(mesh, head_groups=head_groups)
    for kind in CONFIG.kinds(1):
        cut = prefill_tiles(drawn(CONFIG, 0.3), 1, model.placement.prefill, kind)
        moved = filled(model, 1, kind, cut)
        assert all(torch.equal(moved[name], tiles) for name, tiles in cut.items())


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("head_groups", [2, 4])
@pytest.mark.parametrize(("mesh", "other"), [("4", "4"), ("5x6", "3"), ("3x13", "2x3")])
def test_heads_go_along_x_to_the_columns_of_prefill(mesh, other, head_groups, number):
    """Check that every pair of every head reaches its column of prefill, and every copy of a key head."""
    decode, prefill = blocks(mesh, other)
    layouts = replace(decode, head_groups=head_groups).layout, replace(prefill, head_groups=number).layout
    for kind, heads in (("q", CONFIG.num_attention_heads), ("k", CONFIG.num_key_value_heads)):
        size, mesh_of = heads * CONFIG.head_dim, [Mesh(1, layout.columns) for layout in layouts]
        cuts = [Parameter("", (size,), "(x n)", layout.rows(kind)) for layout in layouts]
        source, target = moves._dimension_ends(*cuts, 0, *mesh_of)
        wanted = []
        for row in range(size):
            here, there = (np.flatnonzero((layout.rows(kind) == row).any(1)).tolist() for layout in layouts)
            most = max(len(here), len(there))
            wanted += [(here[n * len(here) // most], there[n * len(there) // most]) for n in range(most)]
        assert sorted(zip(source.tolist(), target.tolist(), strict=True)) == sorted(wanted)
        _, got, moved = run_redistribution(Mesh(1, max(layout.columns for layout in layouts)), "x", source, target)
        assert torch.equal(got.nan_to_num(), moved.nan_to_num())


def test_head_groups_on_one_mesh_are_counted_along_x():
    decode, prefill = blocks(4, 4)
    grouped = replace(decode, head_groups=2)
    for name in ("wqkv", "wo", "bqkv", "qk_norm"):
        plain, steps = moving(name, decode, prefill), moving(name, grouped, prefill)
        assert len(steps) == len(plain) + 1 and steps[1:] == plain
        assert len(moving(name, grouped, replace(prefill, head_groups=2))) == len(plain), "no head goes along x"
    # every number of a bias goes, 4 B each, on each of 4 rows
    (moved,) = moving("bqkv", grouped, prefill)
    held = moves.weights_of(grouped, "attention", "decode"), moves.weights_of(prefill, "attention", "prefill")
    ways = [
        moves._dimension_ends(*cuts, 0, grouped.mesh, prefill.mesh)
        for cuts in zip(*(h["bqkv"].holds for h in held), strict=True)
    ]
    assert moved.link_bytes == 4 * 4 * sum(int(np.abs(source - target).sum()) for source, target in ways)
    assert moving("wgu", grouped, prefill) == moving("wgu", decode, prefill)
    rows = np.arange(4)
    assert moves._cache_shifts(decode, prefill, rows, rows, 1, 0) == ()
    assert moves._cache_shifts(grouped, replace(prefill, head_groups=2), rows, rows, 1, 0) == ()
    assert priced(moves.schedules_of(moves._cache_shifts(grouped, prefill, rows, rows, 1, 0))).link_bytes > 0


@pytest.mark.parametrize(
    ("mesh", "name"),
    [("3", "wqkv"), ("1", "wo"), ("2", "wo"), ("4", "wo"), ("5", "wo"), ("6", "wdown"), ("3", "wdown")],
)
def test_the_schedules_put_tiles_where_prefill_finds_them(mesh, name):
    """Check that the transposition and the skew, run as schedules, give the tiles for prefill."""
    model = decoder(mesh, head_groups=1)
    kind = "ffn" if name == "wdown" else "attention"
    tiles = model.weights.layers[0][kind][name]
    numel, square = tiles[0, 0].numel(), model.placement.prefill.mesh
    skews = (None, square.shape[0]) if name in ("wo", "wdown") else (square.shape[0],)
    for skew in skews:
        step, _ = Relayout(square, numel, "fp32", skew).schedule_runs
        program = TorchExecutor(poison=True).bind(step, {"w": tiles})
        program.run()
        tiles = program.read("t" if "t" in step.buffers else "w").view(tiles.shape)
    assert torch.equal(tiles, filled(model, 0, kind, {name: tiles})[name])
