"""`convert`: a transformers model's own logits, its linear layers and RMSNorms computed on a mesh."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from pairs import pairs
from wafer_triton import convert, recording
from wafer_triton.device import PRESETS
from wafer_triton.errors import BackendError, CheckpointError, DtypeError, ShapeError, SramError
from wafer_triton.models.convert import MeshConv1D, MeshLinear, MeshRMSNorm, account, off_mesh, predicted
from wafer_triton.ops.testing import assert_close

pytestmark = pytest.mark.slow

SIZES = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6, "vocab_size": 97}
GPT2 = {"n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 97, "n_positions": 64}
MODELS = {
    "gpt2": GPT2,
    "qwen2": SIZES | {"num_key_value_heads": 2},
    "qwen3": SIZES | {"num_key_value_heads": 2, "head_dim": 16},
    "gemma2": SIZES | {"num_key_value_heads": 2, "head_dim": 8},
}
LAYERS = {"gpt2": (9, 0), "qwen2": (15, 5), "qwen3": (15, 9), "gemma2": (15, 0)}  # Linear or Conv1D, RMSNorm
IDS = torch.arange(14).view(2, 7)


def model_of(kind: str) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    ends = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **MODELS[kind], **ends)).eval()
    for name, weight in model.named_parameters():
        if "norm" in name or "bias" in name:
            nn.init.normal_(weight, 1.0 if "norm" in name else 0.0, 0.3)
    return model


@pytest.mark.parametrize(("kind", "mesh", "exchange"), pairs(MODELS, ["3", "2x4"], ["explicit", "elided"]))
@torch.no_grad()
def test_a_converted_model_equals_the_original(kind, mesh, exchange, roomy):
    model = model_of(kind)
    wanted, names = model(IDS).logits, list(model.state_dict())
    tokens = model.generate(IDS[:1], max_new_tokens=6, do_sample=False)
    assert convert(model, mesh=mesh, device=roomy, exchange=exchange) is model
    assert sum(isinstance(layer, MeshLinear | MeshConv1D) for layer in model.modules()) == LAYERS[kind][0]
    assert sum(isinstance(layer, MeshRMSNorm) for layer in model.modules()) == LAYERS[kind][1]
    got = model(IDS).logits
    assert (got - wanted).norm() <= 1e-5 * wanted.norm()
    assert account(model).rounds > 0 and account(model).link_bytes > 0
    assert model.generate(IDS[:1], max_new_tokens=6, do_sample=False).equal(tokens)
    assert list(model.state_dict()) == names


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
@torch.no_grad()
def test_autocast_casts_as_it_does_for_torch(kind, roomy):
    model = model_of(kind)
    exact = model(IDS).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = model(IDS).logits
        convert(model, mesh=3, device=roomy)
        got = model(IDS).logits
    assert got.dtype == wanted.dtype == torch.bfloat16
    assert (got - exact).norm() <= 2 * (wanted - exact).norm(), "as near as torch's"
    assert (model(IDS).logits - exact).norm() <= 1e-5 * exact.norm(), "as before without autocast"


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_autocast_takes_bf16_beside_weights_of_fp32(bias, roomy):
    plain = nn.Linear(10, 7, bias=bias)
    model = convert(nn.Sequential(copy.deepcopy(plain)), mesh=2, device=roomy)
    stored = convert(nn.Sequential(copy.deepcopy(plain)), mesh=2, device=roomy, dtype="int8")
    for x in (torch.randn(3, 10), torch.randn(10).bfloat16(), torch.randn(0, 10)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            wanted, got, coarse = plain(x), model(x), stored(x)
        assert got.dtype == coarse.dtype == wanted.dtype == torch.bfloat16
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(coarse, wanted, rtol=5e-2, atol=5e-2)


@torch.no_grad()
def test_a_linear_layer_stays_a_linear_layer(roomy):
    model, plain = convert(model_of("qwen2"), mesh=3, device=roomy), model_of("qwen2")
    kinds = [[name for name, layer in each.named_modules() if isinstance(layer, nn.Linear)] for each in (model, plain)]
    assert kinds[0] == kinds[1]
    assert not any(isinstance(layer, nn.Linear) for layer in convert(model_of("gpt2"), mesh=3).transformer.modules())
    for each in (model, plain):
        each.resize_token_embeddings(100, mean_resizing=False)
        each.lm_head.weight[97:] = 1
        each.get_input_embeddings().weight[97:] = 1
    torch.testing.assert_close(model(IDS).logits, plain(IDS).logits, rtol=1e-4, atol=1e-4)
    with pytest.warns(UserWarning, match="1 of 20 layers never ran on the mesh, lm_head: no account or prediction has"):
        account(model)
    convert(model, mesh=3, device=roomy)  # transformers made a new head
    assert isinstance(model.lm_head, MeshLinear) and off_mesh(model) == {"Embedding": 100 * 48}
    torch.testing.assert_close(model(IDS).logits, plain(IDS).logits, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_layers_whose_parent_reads_their_weight_are_named_as_never_run(roomy):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.pool = nn.MultiheadAttention(16, 2, batch_first=True)
            self.head = nn.Linear(16, 8)

        def forward(self, x):
            x = self.layer(x)
            return self.head(self.pool(x, x, x)[0])

    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(2, 5, 16)
    wanted = model(x)
    with pytest.warns(UserWarning, match=r"^convert: 49\.\d+ % of the parameters of Model stay off the mesh"):
        convert(model, mesh=3, device=roomy)
    torch.testing.assert_close(model(x), wanted)
    head = convert(nn.Sequential(nn.Linear(16, 8)), mesh=3, device=roomy)
    head(x)
    with pytest.warns(UserWarning, match="4 of 5 layers never ran .* layer.self_attn.out_proj, layer.linear"):
        assert account(model) == account(head) and account(model).rounds > 0
    with pytest.warns(UserWarning, match="4 of 5 layers never ran"):
        assert predicted(model, "wse2") == predicted(head, "wse2")
    model.train()(x)
    with pytest.warns(UserWarning, match="2 of 5 layers never ran on the mesh, layer.self_attn.out_proj, poo"):
        assert account(model).rounds > 2 * account(head).rounds, "in training the encoder calls its layers"


class Residual(nn.Module):
    def __init__(self, layer: nn.Module):
        super().__init__()
        self.f = layer

    def forward(self, x):
        return x + self.f(x)


def conv1d() -> nn.Module:
    from transformers.pytorch_utils import Conv1D

    return Conv1D(16, 16)


LAYER_KINDS = [lambda: nn.Linear(16, 16), conv1d, lambda: nn.RMSNorm(16, eps=1e-6)]


def gradients_of(called, model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Results, and the gradients of x and of all parameters, for a loss that weighs all results differently."""
    y = called(x)
    loss = (y * torch.arange(y.numel()).view(y.shape).sin()).sum()
    return [y.detach(), *torch.autograd.grad(loss, [x, *model.parameters()])]


@pytest.mark.parametrize("kind", LAYER_KINDS)
@pytest.mark.parametrize(
    ("compiled", "shape"),
    [(False, (2, 3, 16)), (False, (16,)), (True, (4, 16)), (False, (0, 16)), (False, (1, 1, 16))],
)
def test_results_and_gradients_of_a_converted_layer_are_those_of_the_layer(kind, compiled, shape, roomy):
    torch._dynamo.reset()
    plain = Residual(kind())
    model = convert(copy.deepcopy(plain), mesh="2x3", device=roomy)
    x = torch.randn(shape, requires_grad=True)
    called = torch.compile(model, backend="eager") if compiled else model
    for got, wanted in zip(gradients_of(called, model, x), gradients_of(plain, plain, x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_tiles_of_another_dtype_give_gradients_in_the_dtypes_of_the_layer(kind, roomy):
    plain = Residual(kind())
    model = convert(copy.deepcopy(plain), mesh=3, device=roomy, dtype="bf16")
    x = torch.randn(4, 16, requires_grad=True)
    for got, wanted in zip(gradients_of(model, model, x), gradients_of(plain, plain, x), strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, wanted, rtol=0.03, atol=0.03 * float(wanted.abs().max()))


def test_a_frozen_weight_costs_no_product_and_one_that_changed_is_torchs_error(roomy):
    model = convert(nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4)), mesh=2, device=roomy)
    x = torch.randn(3, 16)
    model[0].requires_grad_(False)
    y = model(x)
    forward = account(model[:1])
    with recording() as backward:
        y.sum().backward()
    assert model[0].weight.grad is None and account(model[:1]) == forward
    assert backward.rounds == account(model[1:]).rounds - forward.rounds > 0  # both products have as many
    y = model(x)
    with torch.no_grad():
        model[1].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("how", [{"fused": True}, {"foreach": True}, {}])
@pytest.mark.parametrize("kept", [False, True])
def test_every_step_of_an_optimizer_is_seen(how, kept, roomy):
    plain, x = nn.Sequential(nn.Linear(6, 4)), torch.randn(3, 6)
    model, results = convert(copy.deepcopy(plain), mesh=2, device=roomy), []
    for one in (plain, model):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.5, **how)
        for _ in range(2):
            one(x).square().sum().backward()
            if kept:  # a second pass cuts tiles between the gradients and the step
                one(x)
            optimizer.step()
            optimizer.zero_grad()
        results.append(one(x))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_no_gradient_passes_a_stored_weight(dtype, roomy):
    model = convert(nn.Sequential(nn.Linear(16, 8).half()), mesh=2, device=roomy, dtype=dtype)
    with pytest.raises(DtypeError, match=f"MeshLinear 0: no gradient passes a weight that is stored as {dtype}; conv"):
        model(torch.randn(3, 16).half()).sum().backward()


def test_a_converted_layer_may_be_followed_by_a_write_in_place(roomy):
    model, x = nn.Sequential(nn.Linear(16, 8, bias=False), nn.ReLU(inplace=True)), torch.randn(4, 16)
    wanted = model(x)
    torch.testing.assert_close(convert(model, mesh=3, device=roomy)(x), wanted)


def test_a_parametrized_layer_stays_as_it_is_and_trains(roomy):
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(16, 8)), nn.Linear(8, 4))
    state, x = copy.deepcopy(model.state_dict()), torch.randn(3, 16)
    wanted = model(x)
    with pytest.warns(UserWarning, match="parameters of Sequential stay off the mesh"):
        convert(model, mesh=3, device=roomy)
    assert list(model.state_dict()) == list(state) and isinstance(model[1], MeshLinear)
    model.load_state_dict(state)
    torch.testing.assert_close(model(x), wanted)
    model[0](x).sum().backward()
    assert all(weight.grad is not None for weight in model[0].parameters())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_has_the_values_and_the_account_of_an_eager_one(backend, roomy):
    torch._dynamo.reset()
    model, x = (
        convert(nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.RMSNorm(8, eps=1e-6)), mesh=4, device=roomy),
        torch.randn(4, 16),
    )
    wanted = model(x)
    once = account(model)
    assert torch.equal(torch.compile(model, backend=backend)(x), wanted)
    assert account(model) == once + once
    with pytest.raises(BackendError, match="MeshLinear 0: FakeTensorMode does not follow a run; call it outside"):
        torch.export.export(model, (x,))


@torch.no_grad()
def test_tiles_may_have_another_dtype_than_the_model(roomy):
    plain, x = nn.Linear(30, 20, bias=False), torch.randn(5, 30)
    model = convert(nn.Sequential(plain), mesh=3, device=roomy, dtype="bf16")
    half = x.bfloat16() @ plain.weight.bfloat16().mT
    reference = x.bfloat16().double() @ plain.weight.bfloat16().double().mT
    got = model(x)
    assert got.dtype == torch.float32 and not torch.equal(got, plain(x))
    assert_close(got, reference, "bf16", plain=half)


def test_a_model_that_cannot_be_converted_is_refused(roomy):
    with pytest.raises(ShapeError, match="Sequential has no Linear, Conv1D or RMSNorm to convert"):
        convert(nn.Sequential(nn.ReLU()), mesh=3)
    with pytest.raises(DtypeError, match="convert: 1.0: dtype float64 is not supported"):
        convert(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4).double())), mesh=3)
    tiny = replace(PRESETS["wse2"], name="tiny", sram_bytes=4096)
    with pytest.raises(SramError, match="over the 4,096 B of SRAM on tiny"):
        convert(nn.Sequential(nn.Linear(200, 200)), mesh=2, device=tiny)(torch.randn(1, 200))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = self.last = nn.Linear(6, 6)
        self.inner = nn.Sequential(self.first, nn.LayerNorm(6))

    def forward(self, x):
        return self.last(self.inner(torch.tanh(self.first(x))))


def test_a_layer_that_stands_in_several_places_is_converted_in_all(roomy):
    model, x = Twice().eval(), torch.randn(2, 6)
    wanted = model(x).detach()
    with pytest.warns(
        UserWarning, match=r"convert: 22.22 % of the parameters of Twice stay off .*: LayerNorm \(12 param"
    ):
        convert(model, mesh=2, device=roomy)
    assert isinstance(model.first, MeshLinear) and model.first is model.last is model.inner[0]
    torch.testing.assert_close(model(x), wanted, rtol=1e-5, atol=1e-5)


def test_parameters_of_two_layers_are_counted_once(roomy):
    model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.LayerNorm(6))
    model[2].weight, model[2].bias = model[1].weight, model[1].bias
    with pytest.warns(UserWarning, match=r"convert: 22.22 % of the parameters of Sequential stay off the mesh"):
        convert(model, mesh=2, device=roomy)


class Triple(nn.Linear):
    def forward(self, x):
        return 3 * super().forward(x)


def hooked() -> nn.Module:
    layer = nn.Linear(6, 6)
    layer.register_forward_hook(lambda module, given, result: 2 * result)
    return layer


def replaced() -> nn.Module:
    layer = nn.Linear(6, 6)
    layer.forward = lambda x: x
    return layer


@pytest.mark.parametrize("make", [lambda: Triple(6, 6), hooked, replaced], ids=["class", "hook", "forward"])
def test_a_layer_that_computes_more_than_its_product_stays_off_the_mesh(make, roomy):
    model, x = nn.Sequential(nn.Linear(6, 6), make()).eval(), torch.randn(2, 6)
    wanted = model(x).detach()
    with pytest.warns(UserWarning, match=r"convert: 50 % of the parameters of Sequential stay off the mesh"):
        convert(model, mesh=2, device=roomy)
    torch.testing.assert_close(model(x), wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(ShapeError, match="to convert within it; .* layers with hooks, param"):
        convert(nn.Sequential(make()), mesh=2, device=roomy)


def changed_in_place(model: nn.Sequential) -> None:
    with torch.no_grad():
        model[0].weight.mul_(2)


CHANGES = {
    "load_state_dict": lambda model: model.load_state_dict({"0.weight": torch.randn(4, 6), "0.bias": torch.randn(4)}),
    "in-place": changed_in_place,
    "parameter": lambda model: setattr(model[0], "weight", nn.Parameter(torch.randn(4, 6))),
    "data": lambda model: setattr(model[0].weight, "data", torch.randn(4, 6)),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_new_weights_count_from_the_next_run_on(change, inference, roomy):
    with torch.inference_mode(inference):
        model, x = convert(nn.Sequential(nn.Linear(6, 4)), mesh=2, device=roomy), torch.randn(3, 6)
        for rows in (x, x[:1]):
            before = model(rows)
            change(model)
            wanted = rows @ model[0].weight.mT + model[0].bias
            assert not torch.allclose(before, wanted)
            torch.testing.assert_close(model(rows), wanted.detach(), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_functional_call_computes_with_its_own_weights(roomy):
    model, x = convert(nn.Sequential(nn.Linear(6, 4)), mesh=2, device=roomy), torch.randn(3, 6)
    wanted, zeros = model(x), {"0.weight": torch.zeros(4, 6), "0.bias": torch.zeros(4)}
    assert torch.func.functional_call(model, zeros, (x,)).eq(0).all() and torch.equal(model(x), wanted)


@pytest.mark.filterwarnings("error:The .grad attribute")
def test_gradients_pass_the_weights_of_a_functional_call(roomy):
    model, x = convert(nn.Sequential(nn.Linear(6, 4)), mesh=2, device=roomy), torch.randn(3, 6)
    weight = torch.randn(4, 6, requires_grad=True)
    torch.func.functional_call(model, {"0.weight": 2 * weight}, (x,)).sum().backward()
    torch.testing.assert_close(weight.grad, 2 * x.sum(0).expand(4, 6))


@torch.no_grad()
def test_a_copy_and_a_norm_follow_their_own_weights(roomy):
    model, x = convert(nn.Sequential(nn.RMSNorm(6, eps=1e-6)), mesh=2, device=roomy), torch.randn(3, 6)
    wanted = model(x)
    other = copy.deepcopy(model)
    other[0].weight.mul_(3)
    torch.testing.assert_close(other(x), 3 * wanted)
    assert torch.equal(model(x), wanted)


def test_a_weight_without_values_is_refused_until_it_has_some(roomy):
    model = convert(nn.Sequential(nn.Linear(6, 4, device="meta")), mesh=2, device=roomy)
    with pytest.raises(CheckpointError, match="a weight is on the meta device, without values; give the model its w"):
        model(torch.randn(3, 6))
    plain = nn.Sequential(nn.Linear(6, 4)).requires_grad_(False)
    model.load_state_dict(plain.state_dict(), assign=True)
    x = torch.randn(3, 6)
    torch.testing.assert_close(model(x), plain(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm", [nn.RMSNorm(6, elementwise_affine=False), nn.RMSNorm((2, 6))], ids=["bare", "wide"])
def test_a_norm_of_another_kind_alone_is_refused_with_the_kind_that_is_taken(norm):
    with pytest.raises(ShapeError, match=r"to convert within it; .* x / rms\(x\) \* weight over the last"):
        convert(nn.Sequential(norm), mesh=2)


def test_an_input_of_another_dtype_is_refused_as_torch_does():
    converted = convert(torch.nn.Sequential(torch.nn.Linear(8, 4)), mesh=2)
    with pytest.raises(
        DtypeError, match=r"x is torch.float16 and the weight torch.float32; give x.to\(torch.float32\)"
    ):
        converted(torch.full((2, 8), 300.0).half())
