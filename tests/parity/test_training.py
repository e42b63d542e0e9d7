"""Converted models train as transformers' do: losses, gradients, and the counts of forward and backward."""

import copy

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from wafer_triton import convert, estimate, recording
from wafer_triton.models.convert import MeshLinear, account
from wafer_triton.shape.decoder import DecoderShape

SIZES = {
    "llama": {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
              "num_key_value_heads": 2, "vocab_size": 97},
    "gpt2": {"n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 97, "n_positions": 64,
             "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}  # fmt: skip
IDS = torch.arange(28).view(2, 14).mul(31) % 97


def models(kind: str, mesh: str, device) -> tuple[nn.Module, nn.Module]:
    """Return transformers' model, and the same converted."""
    torch.manual_seed(0)
    ends = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    plain = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES[kind], **ends))
    return plain, convert(copy.deepcopy(plain), mesh=mesh, device=device)


def train(model: nn.Module) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return the losses of 20 steps, and the gradients of the first."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, first = [], {}
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(IDS, labels=IDS).loss
        loss.backward()
        losses.append(loss.item())
        first = first or {name: weight.grad.clone() for name, weight in model.named_parameters()}
        optimizer.step()
    return losses, first


@pytest.mark.filterwarnings("ignore:convert")
@pytest.mark.parametrize("mesh", ["3x3", "2x4"])
@pytest.mark.parametrize("kind", SIZES)
def test_twenty_steps_have_transformers_losses_and_the_first_its_gradients(kind, mesh, roomy):
    (wanted, exact), (got, first) = map(train, models(kind, mesh, roomy))
    assert wanted[-1] < wanted[0] - 0.5
    assert got == pytest.approx(wanted, rel=1e-4)
    for name, gradient in exact.items():
        assert first[name].shape == gradient.shape
        assert float((first[name] - gradient).abs().max()) <= 1e-4 * float(gradient.abs().max()), name


def test_a_step_is_counted_forward_and_backward(roomy):
    model = models("llama", "2x4", roomy)[1]
    with recording() as forward:
        loss = model(IDS, labels=IDS).loss
    with recording() as backward:
        loss.backward()
    assert forward.macs > 0 and account(model).hops == forward.hops + backward.hops
    # of a product two more of its size, by other tiles; of a norm's weight and input one each
    assert 1.9 * forward.macs < backward.macs < 2.1 * forward.macs
    assert backward.predicted.cycles > forward.predicted.cycles > 0


def test_an_estimate_of_training_is_the_price_of_the_products_that_ran(roomy):
    model = models("llama", "2x4", roomy)[1]
    model(IDS, labels=IDS).loss.backward()
    ran = [layer.ledger.record for layer in model.modules() if isinstance(layer, MeshLinear)]
    shape = DecoderShape(48, 80, 2, 6, 2, 8, 97)
    said = estimate.training(device=roomy, model=shape, mesh="2x4", tokens=IDS.numel(), dtype="fp32")
    assert said.products == 3 * len(ran)
    assert said.cycles == pytest.approx(sum(one.cost.cycles for one in ran), rel=1e-12)
    assert (said.hops, said.link_bytes) == tuple(
        sum(getattr(one, key) for one in ran) for key in ("hops", "link_bytes")
    )
    parts = said.forward_cycles, said.input_gradient_cycles, said.weight_gradient_cycles
    assert sum(parts) == pytest.approx(said.cycles) and len(set(parts)) == 3
    assert "no backward pass was measured" in said.outside
