"""Blocks of experts: rounds, hops and bytes do not depend on expert ids, and the checker judges values."""

from dataclasses import replace

import pytest
import torch

from schedules import MIXTURE, ROOMY, SHAPE
from wafer_triton.algorithms.reduce import all_reduce
from wafer_triton.count.account import account
from wafer_triton.decoder import block, decode, experts, prefill
from wafer_triton.device.mesh import as_mesh
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.random import RandomWeights
from wafer_triton.schedule.builder import Builder
from wafer_triton.shape.moe import Experts
from wafer_triton.verify.decoder import sub_layer_intent
from wafer_triton.verify.faults import check

PLAIN = replace(SHAPE, experts=Experts(5, 2, 20))
WIDE = replace(SHAPE, intermediate_size=40)  # a dense block as wide as two experts


def counted(sub_layer: block.SubLayer, shape, mesh: str, *args: int):
    on = as_mesh(mesh, ROOMY)
    grid = on if sub_layer.family == "decode" else on.square()
    return account(block.schedule(sub_layer, block.Block(shape, grid), *args))


@pytest.mark.parametrize("mesh", ["4", "3x5", "2x1"])
def test_a_decode_block_has_one_all_reduce_more_than_a_dense_one(mesh):
    """Compare with a dense block as wide as a token's k experts, plus the all-reduce of the router's logits."""
    mixed, dense = counted(experts.decode_experts, PLAIN, mesh), counted(decode.ffn, WIDE, mesh)
    b = Builder(as_mesh(mesh, ROOMY), "router")
    b.buffer("logits", (1, 5), "fp32", "output")
    all_reduce(b, "logits", "y")
    router = account(b.build())
    assert mixed.rounds - dense.rounds == router.rounds + 2, "beside it the product and the choice"
    for name in ("stages", "hops", "messages", "link_bytes"):
        assert getattr(mixed, name) - getattr(dense, name) == getattr(router, name)


def test_a_prefill_block_moves_the_tiles_of_every_expert_once():
    mixed, dense = counted(experts.prefill_experts, PLAIN, "4", 2, 0), counted(prefill.ffn, WIDE, "4", 2, 0)
    b = Builder(as_mesh("4", ROOMY), "router")
    b.buffer("logits", (2, 5), "fp32", "output")
    all_reduce(b, "logits", "x")
    assert mixed.hops - dense.hops == account(b.build()).hops and mixed.macs < 2 * dense.macs


@pytest.mark.slow
def test_counts_and_price_do_not_depend_on_routing():
    """Run the same tokens by routers that choose otherwise, in every layer."""
    config = DecoderConfig(
        12, 16, 2, 2, 2, 6, 13, max_position_embeddings=64, model_type="qwen3_moe", experts=Experts(6, 2, 8)
    )
    seen = []
    for sign in (1, -1):
        weights = dict(RandomWeights(config))
        for layer in range(2):
            weights[f"model.layers.{layer}.mlp.gate.weight"] *= 50 * sign
        model = WaferForCausalLM.from_weights(config, weights, mesh=as_mesh("3x2", ROOMY), max_length=9)
        model.prefill([1, 2, 3, 4, 5])
        model.step(6)
        seen.append(([torch.stack(each.expert_ids) for each in model.passes.ran], model.account(), model.predicted()))
    (first, *counts), (second, *others) = seen
    assert all(not torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert counts == others


def test_a_wrong_share_is_found_by_values():
    """Check that with shares that wrongly add up to 1 only the values are wrong."""
    on = block.Block(MIXTURE, as_mesh("2x3", replace(ROOMY, routes=None)))
    other = replace(on, shape=replace(MIXTURE, experts=replace(MIXTURE.experts, normalized=True)))
    wrong = block.schedule(experts.decode_experts, other)
    assert check(wrong, sub_layer_intent(experts.decode_experts, other)).ok
    (finding,) = check(wrong, sub_layer_intent(experts.decode_experts, on)).findings
    assert finding.verdict == "wrong-values" and "element 0 of x" in finding.message


def test_of_equal_logits_the_lower_expert_is_chosen():
    from wafer_triton.local import find

    expert_ids, shares = torch.empty(2, 3), torch.empty(2, 3)
    logits = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0, 2.0, 2.0]])
    find("top_k").run(expert_ids, shares, logits, m=1, experts=6, k=3, shared=0, normalized=True)
    assert expert_ids.tolist() == [[1, 2, 4], [0, 1, 2]]
    torch.testing.assert_close(shares, torch.full((2, 3), 1 / 3))
