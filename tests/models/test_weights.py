import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from tiny import drawn
from wafer_triton.errors import CheckpointError, DtypeError
from wafer_triton.models.checkpoint.weights import StoredWeights
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.random import RandomWeights
from wafer_triton.place.need import param_shapes

CONFIG = DecoderConfig(
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    vocab_size=11,
    max_position_embeddings=16,
    tie_word_embeddings=True,
)
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def weights():
    return drawn(CONFIG)


def single(folder, weights):
    save_file(weights, folder / "model.safetensors")


def sharded(folder, weights, **moved):
    """Write two shards by turns; `moved` overrides the shard that the index names."""
    weight_map = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(weights)}
    for shard in set(weight_map.values()):
        save_file({name: weights[name] for name in weights if weight_map[name] == shard}, folder / shard)
    index = {"weight_map": {name: moved.get("to", shard) if moved else shard for name, shard in weight_map.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("save", [single, sharded])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_loads_every_parameter(tmp_path, weights, save, dtype):
    save(tmp_path, weights)
    loaded = StoredWeights(tmp_path, CONFIG, dtype)
    assert list(loaded) == list(param_shapes(CONFIG))
    for name, weight in weights.items():
        assert loaded[name].dtype == dtype
        assert torch.equal(loaded[name], weight.to(dtype))


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_reads_every_stored_float(tmp_path, weights, stored):
    single(tmp_path, {name: weight.to(stored) for name, weight in weights.items()})
    assert torch.equal(StoredWeights(str(tmp_path), CONFIG)[Q_PROJ], weights[Q_PROJ].to(stored).float())


def test_harmless_extra_tensors_are_left_out(tmp_path, weights):
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    extra["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    single(tmp_path, weights | extra)
    assert list(StoredWeights(tmp_path, CONFIG)) == list(param_shapes(CONFIG))


TABLE, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
LAST = "model-1.safetensors"
MORE = {  # what shards and the index have beyond the parameters: tensors of the last shard, names of the index
    "head-listed": ({}, {HEAD: LAST}),
    "angles-listed": ({}, {"model.layers.0.self_attn.rotary_emb.inv_freq": LAST}),
    "head-in-another-shard": ({HEAD: TABLE}, {HEAD: "model-0.safetensors"}),
    "angles-held": ({"model.layers.0.self_attn.rotary_emb.cos_cached": NORM}, {}),
    "stray-table": ({TABLE: None}, {}),
    "stray-norm": ({NORM: None}, {}),
    "unlisted": ({HEAD: TABLE}, {}),
}


@pytest.mark.parametrize(("tensors", "listed"), MORE.values(), ids=MORE)
def test_the_index_decides_and_spare_tensors_are_left_out(tmp_path, weights, tensors, listed):
    sharded(tmp_path, weights)
    index = tmp_path / "model.safetensors.index.json"
    placed = json.loads(index.read_text())["weight_map"]
    placed[NORM] = placed[TABLE] = "model-0.safetensors"
    for number in (0, 1):
        held = {name: weights[name] for name, shard in placed.items() if shard == f"model-{number}.safetensors"}
        if number:  # a stray copy has other values
            held |= {name: weights[of].clone() if of else weights[name] + 1 for name, of in tensors.items()}
        save_file(held, tmp_path / f"model-{number}.safetensors")
    index.write_text(json.dumps({"weight_map": placed | listed}))
    loaded = StoredWeights(tmp_path, CONFIG)
    assert list(loaded) == list(param_shapes(CONFIG))
    assert all(torch.equal(loaded[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("save", [single, sharded])
@pytest.mark.parametrize("tied", [True, False])
def test_a_backbone_alone_has_names_without_model(tmp_path, weights, save, tied):
    config = replace(CONFIG, tie_word_embeddings=tied)
    weights |= {} if tied else {HEAD: weights[TABLE] + 1}
    save(tmp_path, {name.removeprefix("model."): weight for name, weight in weights.items()})
    loaded = StoredWeights(tmp_path, config)
    assert all(torch.equal(loaded[name], weight) for name, weight in weights.items())
    assert list(loaded) == list(param_shapes(config))
    part = StoredWeights(tmp_path, config).part(Q_PROJ, (slice(2, 5), slice(1, 3)))
    assert torch.equal(part, weights[Q_PROJ][2:5, 1:3])


def test_a_tied_head_alone_is_the_embedding(tmp_path, weights):
    single(tmp_path, {HEAD if name == TABLE else name: weight for name, weight in weights.items()})
    assert torch.equal(StoredWeights(tmp_path, CONFIG)[TABLE], weights[TABLE])


def test_a_tied_head_must_be_the_embedding(tmp_path, weights):
    single(tmp_path, weights | {"lm_head.weight": weights["model.embed_tokens.weight"] + 1})
    message = "lm_head.weight differs from model.embed_tokens.weight, though config.json ties them; set tie_word_emb"
    with pytest.raises(CheckpointError, match=message):
        StoredWeights(tmp_path, CONFIG)


def test_a_tied_head_may_have_another_dtype_and_be_no_number(tmp_path, weights):
    table = weights["model.embed_tokens.weight"].bfloat16().float()
    single(tmp_path, weights | {"model.embed_tokens.weight": table, "lm_head.weight": table.bfloat16()})
    dict(StoredWeights(tmp_path, CONFIG))
    table[1, 2] = float("nan")
    single(tmp_path, weights | {"model.embed_tokens.weight": table, "lm_head.weight": table.bfloat16()})
    with pytest.raises(CheckpointError, match="model.embed_tokens.weight holds NaN or infinity"):
        dict(StoredWeights(tmp_path, CONFIG))
    single(tmp_path, weights | {"lm_head.weight": table[:-1].clone()})
    with pytest.raises(CheckpointError, match="lm_head.weight differs from model.embed_tokens.weight"):
        StoredWeights(tmp_path, CONFIG)


def test_a_missing_folder(tmp_path):
    with pytest.raises(CheckpointError, match="absent: no such folder; give a checkpoint folder"):
        StoredWeights(tmp_path / "absent", CONFIG)


def test_an_empty_folder(tmp_path):
    with pytest.raises(CheckpointError, match="no file model.safetensors and no file .*, but no weights; give"):
        StoredWeights(tmp_path, CONFIG)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth"])
def test_pickle_files_are_never_opened(tmp_path, name):
    (tmp_path / name).write_bytes(b"not even a pickle")
    with pytest.raises(
        CheckpointError, match=f"but {name}; give a whole model in safetensors, .* a pickle file never opened"
    ):
        StoredWeights(tmp_path, CONFIG)


@pytest.mark.parametrize("kept", [0, 5, 200, -1], ids=["empty", "no-header", "half-header", "last-byte-gone"])
def test_a_truncated_file(tmp_path, weights, kept):
    single(tmp_path, weights)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    said = r"model.safetensors \([\d,]+ bytes\): truncated, damaged or not .*remove .* if it was fetched by name"
    with pytest.raises(CheckpointError, match=said):
        StoredWeights(tmp_path, CONFIG)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer .*, not the weights"),
        ("<!DOCTYPE html>\n<html>sign in</html>", "is an HTML page, .* not the weights"),
        ("hello, no tensors at all", "truncated, damaged or not safetensors"),
    ],
)
def test_a_file_of_something_else(tmp_path, text, said):
    (tmp_path / "model.safetensors").write_text(text)
    with pytest.raises(CheckpointError, match=said):
        StoredWeights(tmp_path, CONFIG)


def test_a_missing_shard(tmp_path, weights):
    sharded(tmp_path, weights)
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"model-1.safetensors: missing, though model.safetensors.index.json lists"
    ):
        StoredWeights(tmp_path, CONFIG)


def test_an_index_that_disagrees_with_its_shards(tmp_path, weights):
    sharded(tmp_path, weights, to="model-0.safetensors")
    with pytest.raises(CheckpointError, match=r"model-0.safetensors: has no model\..* though .* places it there"):
        StoredWeights(tmp_path, CONFIG)


@pytest.mark.parametrize("shard", ["../model-0.safetensors", "/etc/model.safetensors", "..", "", "a\\b.safetensors"])
def test_an_index_cannot_leave_the_folder(tmp_path, weights, shard):
    sharded(tmp_path, weights, to=shard)
    with pytest.raises(CheckpointError, match="points outside the folder, at .*; refused"):
        StoredWeights(tmp_path, CONFIG)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid JSON"),
        ("{}", "has no weight_map"),
        ("[]", "has no weight_map"),
        ('{"weight_map": 3}', "has no weight_map"),
        ('{"weight_map": {"a": 3}}', "'a' is in 3, no file name; put a whole copy there"),
        ('{"weight_map": {"a": "b", "a": "c"}}', "key 'a' is given twice; give it once"),
    ],
)
def test_a_broken_index(tmp_path, text, said):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=f"index.json: {said}"):
        StoredWeights(tmp_path, CONFIG)


def test_a_wrong_shape(tmp_path, weights):
    single(tmp_path, weights | {Q_PROJ: torch.ones(8, 7)})
    with pytest.raises(CheckpointError, match=rf"{Q_PROJ} has shape \(8, 7\), config.json asks for \(8, 8\)"):
        StoredWeights(tmp_path, CONFIG)


def test_missing_parameters(tmp_path, weights):
    single(tmp_path, {name: weight for name, weight in weights.items() if "layers.1." not in name})
    with pytest.raises(
        CheckpointError,
        match=r"9 of 20 parameters missing: model.layers.1.input.* and 5 more; stored are model.embed_tokens",
    ):
        StoredWeights(tmp_path, CONFIG)


def test_unexpected_tensors(tmp_path, weights):
    single(tmp_path, weights | {"model.layers.0.self_attn.q_proj.bias": torch.ones(8)})
    with pytest.raises(CheckpointError, match=r"1 tensor that a llama decoder of 2 layers does not have: .*bias; does"):
        StoredWeights(tmp_path, CONFIG)


def test_an_integer_tensor(tmp_path, weights):
    single(tmp_path, weights | {Q_PROJ: torch.ones(8, 8, dtype=torch.int8)})
    with pytest.raises(CheckpointError, match=rf"{Q_PROJ} is stored as I8; supported: F64, F32, F16, BF16"):
        StoredWeights(tmp_path, CONFIG)


def test_an_unsupported_target(tmp_path):
    with pytest.raises(DtypeError, match="cannot be loaded as torch.int8; choose one of torch.float64"):
        StoredWeights(tmp_path, CONFIG, torch.int8)


@pytest.mark.parametrize(
    ("value", "dtype"), [(float("nan"), torch.float32), (1e6, torch.float16)], ids=["nan", "overflow"]
)
def test_values_that_are_not_finite(tmp_path, weights, value, dtype):
    weights[Q_PROJ][3, 1] = value
    single(tmp_path, weights)
    remedy = "take another checkpoint" if value != value else "take dtype='bf16' or 'fp32'"
    with pytest.raises(CheckpointError, match=rf"{Q_PROJ} holds NaN or infinity as {dtype}; {remedy}"):
        dict(StoredWeights(tmp_path, CONFIG, dtype))
    weights[Q_PROJ][3, 1] = 1.0
    single(tmp_path, weights)
    dict(StoredWeights(tmp_path, CONFIG, dtype))


def test_weights_have_the_names_and_the_number_of_the_parameters(tmp_path, weights):
    single(tmp_path, weights)
    for loaded in (StoredWeights(tmp_path, CONFIG), RandomWeights(CONFIG)):
        assert len(loaded) == len(param_shapes(CONFIG)) and Q_PROJ in loaded
        assert "model.layers.9.self_attn.q_proj.weight" not in loaded
    with pytest.raises(KeyError, match="^'no_such_weight'$"):
        StoredWeights(tmp_path, CONFIG)["no_such_weight"]
