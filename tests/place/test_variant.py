"""A decoder variant of the user's own, with an extra norm and names of its own, is a decoder like any other."""

from dataclasses import replace

import torch

from tiny import BIASED
from wafer_triton import estimate
from wafer_triton.algorithms.align import align
from wafer_triton.algorithms.gemm import meshgemm
from wafer_triton.algorithms.gemv import meshgemv
from wafer_triton.algorithms.norm import rms_norm
from wafer_triton.decoder import decode, prefill
from wafer_triton.decoder.block import Block, Variant, schedule, sub_layer
from wafer_triton.device.mesh import as_mesh
from wafer_triton.draw.scenes import scene
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.place.need import param_shapes
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Parameter

LAYER = "model.layers.{}."


def declared(b: Builder, block: Block, axis: str, m: int) -> tuple[int, int]:
    """Declare x and weights under names of their own, gate and up in buffers apart."""
    c, skew = block.shape, block.mesh.shape[0] if axis == "x" else 0
    d, f, across = block.share(c.hidden_size, axis), block.share(c.intermediate_size, "x"), "yx"[axis == "y"]
    b.buffer("x", (m, d), block.dtype, "state")
    for name in ("post_attention_layernorm", "second_norm"):
        held = Parameter(f"{LAYER}{name}.weight", (c.hidden_size,), f"({axis} d)")
        b.buffer(f"gain.{name}", (d,), block.dtype, "weight", holds=(held,))
    gate_up = [
        Parameter(f"{LAYER}mlp.{name}.weight", (c.intermediate_size, c.hidden_size), "(x f) (y d) -> d f")
        for name in ("gate", "up")
    ]
    b.buffer("both", (d, 2 * f), block.dtype, "weight", holds=gate_up, skew=skew)
    down = Parameter(f"{LAYER}mlp.down.weight", (c.hidden_size, c.intermediate_size), f"({axis} d) ({across} f) -> f d")
    b.buffer("back", (f, d), block.dtype, "weight", holds=(down,), skew=skew)
    for name, tile, dtype in (
        ("h1", (m, d), block.dtype), ("h2", (m, d), block.dtype), ("gu", (m, 2 * f), block.sum_dtype),
        ("act", (m, f), block.dtype), ("out", (m, d), block.sum_dtype),
    ):  # fmt: skip
        b.buffer(name, tile, dtype)
    norm = {"width": c.hidden_size, "eps": c.rms_norm_eps}
    rms_norm(b, "x", "gain.post_attention_layernorm", "h1", axis, **norm)
    rms_norm(b, "h1", "gain.second_norm", "h2", axis, **norm)
    return d, f


@sub_layer("own decode block", "decode")
def own_decode(b: Builder, block: Block) -> None:
    d, f = declared(b, block, "y", block.batch)
    meshgemv(b, "h2", "both", "gu", "y", m=block.batch, k=d, n=2 * f, accumulate=block.accumulate)
    b.round(b.local("silu_mul", "act", "gu", m=block.batch, n=f))
    meshgemv(b, "act", "back", "out", "x", m=block.batch, k=f, n=d, accumulate=block.accumulate)
    b.round(b.local("add", "x", ("x", "out"), size=block.batch * d), label="residual")


@sub_layer("own prefill block")
def own_prefill(b: Builder, block: Block, tokens: int, past: int) -> None:
    d, f = declared(b, block, "x", tokens)
    align(b, "h2", "x")
    meshgemm(b, "h2", "both", "gu", m=tokens, k=d, n=2 * f, accumulate=block.accumulate)
    b.round(b.local("silu_mul", "act", "gu", m=tokens, n=f))
    align(b, "act", "x")
    meshgemm(b, "act", "back", "out", m=tokens, k=f, n=d, accumulate=block.accumulate)
    b.round(b.local("add", "x", ("x", "out"), size=tokens * d), label="residual")


CONFIG = replace(
    BIASED, tie_word_embeddings=False, qkv_bias=False, qk_norm=False, name="own",
    variant=Variant({decode.ffn: own_decode, prefill.ffn: own_prefill}),
)  # fmt: skip


def test_a_variant_is_placed_run_priced_and_drawn():
    shapes = param_shapes(CONFIG)
    assert shapes["model.layers.1.second_norm.weight"] == (24,) and "model.layers.0.mlp.gate_proj.weight" not in shapes
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    tokens = torch.randint(31, (12,), generator=generator).tolist()
    model = WaferForCausalLM.from_weights(CONFIG, weights, mesh="2x3", prefill_mesh=4, max_length=16)
    assert torch.equal(model.weights["model.layers.1.second_norm.weight"], weights["model.layers.1.second_norm.weight"])
    whole = model.prefill(tokens)
    model.reset()
    model.prefill(tokens[:5])
    for token in tokens[5:]:
        stepped = model.step(token)
    # decode, by other schedules and buffers, gives the logits of prefill
    torch.testing.assert_close(stepped, whole, rtol=1e-4, atol=1e-5)
    assert model.predicted()["replacement"].cycles > 0
    changed = weights | {"model.layers.0.second_norm.weight": torch.ones(24)}
    assert not torch.allclose(
        WaferForCausalLM.from_weights(CONFIG, changed, mesh=3, max_length=16).prefill(tokens), whole
    )
    assert estimate.decode(model=CONFIG, mesh=3, context=8).tokens_per_second > 0
    request = estimate.request(model=CONFIG, prefill_mesh=4, decode_mesh=3, input=8, output=4)
    assert request.replacement_seconds > 0
    drawn = scene(schedule(decode.ffn, Block(CONFIG, as_mesh(3))))
    assert {"both", "back", "gain.second_norm"} <= {buffer["name"] for buffer in drawn["buffers"]}
