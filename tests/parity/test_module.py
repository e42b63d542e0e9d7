"""The decoder as a module: forward, its state_dict; made from a shape alone."""

import copy
import pickle
from collections import Counter
from dataclasses import replace

import pytest
import torch

from tiny import BIASED
from wafer_triton.errors import BackendError, CacheError, CheckpointError, ConfigError, DtypeError, ShapeError
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.random import RandomWeights, config_of
from wafer_triton.place.need import param_shapes
from wafer_triton.shape.published import MODELS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def single():
    return WaferForCausalLM.from_config(BIASED, mesh="2x3", max_length=24)


def test_a_compiled_decoder_has_the_logits_of_an_eager_one_and_an_export_is_refused(single):
    torch._dynamo.reset()
    ids = torch.arange(6).view(2, 3)
    assert torch.equal(torch.compile(single, backend="eager")(ids), single(ids))
    with pytest.raises(BackendError, match="of a placed model: FakeTensorMode does not follow a run; call it outside"):
        torch.export.export(single, (ids,))


def test_every_weight_is_read_once():
    """Count reads of weights, which take most of the time to load a large checkpoint."""
    read = Counter()

    class Counted(RandomWeights):
        def __getitem__(self, name):
            read[name] += 1
            return super().__getitem__(name)

    for tied in (True, False):
        read.clear()
        config = replace(BIASED, tie_word_embeddings=tied)
        WaferForCausalLM.from_weights(config, Counted(config), mesh=2, max_length=24)
        assert set(read) == set(param_shapes(config)) and set(read.values()) == {1}


def test_forward_gives_the_logits_of_every_position(single):
    ids = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 1]])
    logits = single(ids)
    assert logits.shape == (2, 4, 31)
    for row, got in zip(ids.tolist(), logits, strict=True):
        single.reset()
        stepped = [single.prefill(row[:1]), *(single.step(token) for token in row[1:])]
        torch.testing.assert_close(torch.stack(stepped), got, rtol=1e-4, atol=1e-4)
    assert single(ids).equal(logits) and single.eval() is single


@pytest.mark.parametrize("shape", [(3,), (0, 4), (2, 0)])
def test_forward_refuses_inputs_that_are_no_batch(single, shape):
    with pytest.raises(ShapeError, match=r"must be \[batch, length\]"):
        single(torch.zeros(shape, dtype=torch.long))


def test_a_placed_model_is_not_moved(single):
    with pytest.raises(DtypeError, match="stays where it is"):
        single.half()


def test_state_dicts_that_do_not_fit(single):
    state = single.state_dict()
    name = "model.layers.0.self_attn.q_norm.weight"
    with pytest.raises(CheckpointError, match=f"state_dict: 1 names missing or not this model's: {name}"):
        single.load_state_dict({key: value for key, value in state.items() if key != name})
    with pytest.raises(CheckpointError, match=rf"{name} has shape \(5,\), not \(6,\)"):
        single.load_state_dict(state | {name: torch.ones(5)})
    with pytest.raises(CheckpointError, match="lm_head.weight differs from model.embed_tokens.weight, but this model"):
        single.load_state_dict(state | {"lm_head.weight": state["lm_head.weight"] + 1})
    with pytest.raises(CheckpointError, match=f"state_dict: {name} holds NaN or infinity"):
        single.load_state_dict(state | {name: torch.full((6,), torch.nan)})
    with pytest.raises(CheckpointError, match="decoder: 30 weights are missing, the first is model.emb"):
        WaferForCausalLM.from_weights(BIASED, {}, mesh=2)


NAME = "model.layers.0.mlp.up_proj.weight"


def test_a_state_dict_that_is_not_strict_leaves_the_other_parameters(single):
    state = single.state_dict()
    found = single.load_state_dict({NAME: 2 * state[NAME], "more": torch.ones(1)}, strict=False)
    assert found.unexpected_keys == ["more"] and set(found.missing_keys) == single.weights.keys() - {NAME}
    after = single.state_dict()
    assert {name for name in state if not after[name].equal(state[name])} == {NAME}
    single.load_state_dict(state)


def test_new_weights_drop_the_cached_tokens(single):
    state = single.state_dict()
    single.reset()
    wanted = single.step(9)
    single.load_state_dict(state)
    for go_on in (lambda: single.step(9), lambda: single.advance([9])):
        with pytest.raises(CacheError, match=r"load_state_dict dropped the cached tokens, .*; prefill them again, or"):
            go_on()
    single.prefill([1, 2])
    single.step(9)
    single.load_state_dict(state)
    single.reset()
    assert torch.equal(single.step(9), wanted)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_placed_model_is_not_copied(single, make):
    with pytest.raises(CheckpointError, match="a placed model is neither copied nor pickled; make another by from_pre"):
        make(single)
    other = WaferForCausalLM.from_weights(single.config, single.state_dict(), mesh="2x3", max_length=24)
    single.reset()
    assert torch.equal(other.prefill([1, 2]), single.prefill([1, 2]))


WRITES = {
    "mul_": lambda weight: weight.mul_(2),
    "imul": lambda weight: weight.__imul__(2),
    "setitem": lambda weight: weight.__setitem__(0, 1.0),
    "out": lambda weight: torch.mul(weight, 2, out=weight),
    "foreach": lambda weight: torch._foreach_mul_([torch.ones(2), weight], 2),
    "init": torch.nn.init.zeros_,
    "set-data": lambda weight: setattr(weight, "data", weight + 1),
    "data": lambda weight: weight.data.mul_(2),
    "detached": lambda weight: weight.detach().mul_(2),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_parameter_is_not_changed_in_place(single, write):
    weight = dict(single.named_parameters())[NAME]
    with pytest.raises(
        CheckpointError, match="writes into a parameter of a placed model, which is a copy of its tiles"
    ):
        write(weight)
    assert weight.equal(single.state_dict()[NAME])


def test_a_parameter_serves_as_any_tensor(single):
    weight = dict(single.requires_grad_(False).named_parameters())[NAME]
    assert type(weight + 1) is type(weight.clone().mul_(2)) is torch.Tensor and isinstance(weight, torch.nn.Parameter)
    for again in (copy.deepcopy(weight), pickle.loads(pickle.dumps(weight)), torch.nn.Parameter(weight)):
        assert torch.equal(again, weight)


def test_torch_modes_around_a_model_change_nothing(single):
    def spoken() -> list[torch.Tensor]:
        single.reset()
        return [single.prefill([1, 2, 3]), single.step(9)]

    wanted = spoken()
    for mode in (torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode()):
        with mode:
            got = spoken()
            single.reset()
            single.prefill([1, 2, 3])
        assert all(map(torch.equal, [*got, single.step(9)], [*wanted, wanted[1]]))


# --- from a shape alone ---


def test_random_weights_depend_on_the_seed_alone():
    state, same, other = (WaferForCausalLM.from_config(BIASED, mesh=3, seed=seed).state_dict() for seed in (0, 0, 1))
    key = "model.layers.1.mlp.up_proj.weight"
    assert state[key].equal(same[key]) and not state[key].equal(other[key])
    zeros = WaferForCausalLM.from_config(BIASED, mesh=3, random_weights=False)
    assert zeros.prefill([1, 2]).eq(0).all()


@pytest.mark.parametrize("name", MODELS)
def test_every_known_shape_is_a_configuration(name):
    config = config_of(name)
    assert config.name == name and config.vocab_size > 30000


def test_an_unknown_shape_is_named():
    with pytest.raises(ConfigError, match="unknown model 'lama3-8b'; did you mean 'llama3-8b'"):
        config_of("lama3-8b")
