"""What users of numpy, torch and transformers pass: each is taken as the plain value that it stands for."""

import warnings
from dataclasses import replace
from os import PathLike

import numpy as np
import pytest
import torch
from torch import nn

from tiny import CONFIG, checkpoint
from wafer_triton import (
    Builder,
    Mesh,
    WaferForCausalLM,
    all_reduce,
    as_mesh,
    convert,
    distributed,
    draw,
    estimate,
    executor,
    link_loads,
    mesh_gemm,
    mesh_gemv,
    scatter,
    smallest_mesh,
    what_fits,
)
from wafer_triton.algorithms.product import recipe
from wafer_triton.compare.algorithms import compare_gemm
from wafer_triton.cost.search import plan
from wafer_triton.device import PRESETS, device
from wafer_triton.models.random import config_of
from wafer_triton.serve.workload import Request, both, fixed, poisson
from wafer_triton.shape.read import shape_of

A, MODEL = torch.arange(36.0).view(6, 6), "smollm2-135m,layers=2"
SIZES = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4}
LENGTHS = both(fixed(6), fixed(4))
SCHEDULE = recipe("gemm", as_mesh(2), "fp32", ((6, 6), (6, 6)), ()).schedule


class Named(PathLike):
    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return str(self.path)


def built(mesh, whole, dtype):
    b = Builder(mesh, "t")
    b.buffer("x", (whole(4),), dtype, "input", whole(2))
    b.like("y", "x")
    with b.loop(whole(2)):
        b.round(b.local("copy", "y", "x", size=whole(4)))
    made = b.build()
    return made.mesh, made.buffers["x"], made.buffers["y"], made.rounds.steps


def run_until(number):
    program = executor("torch").bind(SCHEDULE, {name: torch.ones(2, 2, 3, 3) for name in "ab"})
    program.run(until=number)
    return program.read("c").tolist()


# Each a call of a conversion: `whole` of a whole number, `number` of another one, `dtype` of a dtype by its name.
CALLS = {
    "mesh": lambda whole, number, dtype: (as_mesh([whole(4), whole(2)]), Mesh(whole(4), whole(4), "wse3")),
    "origin": lambda whole, number, dtype: Mesh(4, 4, origin=[whole(1), whole(2)], fold=(whole(1), whole(1))),
    "gemm": lambda whole, number, dtype: mesh_gemm(A, A, mesh=whole(2), accumulate=dtype("fp32")).tolist(),
    "gemv": lambda whole, number, dtype: mesh_gemv(A, A, mesh=whole(3), groups=(whole(2),)).tolist(),
    "groups": lambda whole, number, dtype: mesh_gemv(A, A, mesh=3, groups=whole(2)).tolist(),
    "all_reduce": lambda whole, number, dtype: all_reduce(
        torch.ones(2, 2, 4), axis="x", mesh=whole(2), groups=[whole(2)]
    ).tolist(),
    "scatter": lambda whole, number, dtype: scatter(A, whole(2), "(y m) (h x n)", h=whole(3)).tiles.tolist(),
    "convert": lambda whole, number, dtype: (
        convert(nn.Sequential(nn.Linear(6, 6)), mesh=whole(2), dtype=dtype("fp16"), accumulate=dtype("fp32"))[0].dtype
    ),
    "schedule": lambda whole, number, dtype: built(whole(2), whole, dtype("fp16")),
    "until": lambda whole, number, dtype: run_until(whole(3)),
    "links": lambda whole, number, dtype: {way: load.tolist() for way, load in link_loads(SCHEDULE, whole(2)).items()},
    "estimate.gemm": lambda whole, number, dtype: estimate.gemm(
        mesh=whole(32), m=whole(100), k=whole(100), n=whole(100), dtype=dtype("fp16")
    ),
    "estimate.gemv": lambda whole, number, dtype: estimate.gemv(
        mesh=whole(32), k=whole(100), n=whole(100), groups=whole(4), dtype=dtype("fp32")
    ),
    "estimate.decode": lambda whole, number, dtype: estimate.decode(
        model=MODEL, mesh=whole(32), context=whole(100), groups=whole(8), head_groups=whole(3), dtype=dtype("bf16")
    ),
    "estimate.prefill": lambda whole, number, dtype: estimate.prefill(
        model=MODEL, mesh=whole(32), tokens=whole(100), head_groups=whole(3), dtype=dtype("int8")
    ),
    "estimate.request": lambda whole, number, dtype: estimate.request(
        model=MODEL, prefill_mesh=whole(32), decode_mesh=whole(32), input=whole(100), output=whole(100),
        groups=whole(8), head_groups=whole(3),
    ),
    "estimate.kv": lambda whole, number, dtype: estimate.kv(
        model=MODEL, mesh=whole(32), head_groups=whole(3), dtype=dtype("fp16")
    ),
    "estimate.cap": lambda whole, number, dtype: estimate.cap(
        model="olmoe-1b-7b", mesh=whole(150), context=whole(8), batch=whole(2), dtype=dtype("int8")
    ),
    "estimate.energy": lambda whole, number, dtype: estimate.energy(
        seconds=number(2.0), against_seconds=number(4.0), gpus=whole(2)
    ),
    "smallest_mesh": lambda whole, number, dtype: smallest_mesh(MODEL, context=whole(9), dtype=dtype("bf16")),
    "what_fits": lambda whole, number, dtype: what_fits(
        MODEL, mesh=whole(32), context=whole(9), dtype=dtype("fp16")
    ),
    "plan": lambda whole, number, dtype: plan(
        model=MODEL, input=whole(8), output=whole(8), sides=[whole(32)], best=whole(1), dtype=dtype("fp16")
    ),
    "compare": lambda whole, number, dtype: compare_gemm(whole(4), whole(8), whole(8), whole(8), dtype=dtype("fp32")),
    "device": lambda whole, number, dtype: replace(PRESETS["wse2"], rows=whole(70), hop_cycles=number(2.0)),
    "request": lambda whole, number, dtype: Request(whole(0), number(1.0), whole(2), whole(3)),
    "poisson": lambda whole, number, dtype: poisson(number(2.0), whole(3), LENGTHS, seed=whole(7)),
    "executor": lambda whole, number, dtype: (
        distributed.executor(shards=(whole(1), whole(1)), timeout=number(5.0)).device
    ),
}  # fmt: skip
NUMPY = {"fp32": np.float32, "fp16": np.dtype("float16"), "int8": np.int8}
TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
KINDS = {
    "numpy": (np.uint8, np.float32, lambda name: NUMPY.get(name, name)),
    "torch": (torch.tensor, float, TORCH.get),
    "words of torch": (int, float, {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}.get),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_number_or_a_dtype_of_another_library_is_the_plain_one(name):
    plain = CALLS[name](int, float, str)
    for kind, conversions in KINDS.items():
        found = CALLS[name](*conversions)
        assert found == plain and repr(found) == repr(plain), kind


def test_a_device_of_torch_is_the_one_of_its_name(tmp_path):
    cpu = torch.device("cpu")
    for one in (executor("torch", emulate_on=cpu), distributed.executor(emulate_on=cpu)):
        assert torch.equal(mesh_gemm(A, A, mesh=2, executor=one), mesh_gemm(A, A, mesh=2))
    assert convert(nn.Sequential(nn.Linear(6, 6)), mesh=2, emulate_on=cpu)(A).shape == (6, 6)
    model = WaferForCausalLM.from_config(CONFIG, mesh=2, emulate_on=cpu, dtype=torch.bfloat16)
    assert model.placement.decode.dtype == "bf16"


def test_a_configuration_of_transformers_is_a_model(tmp_path):
    from transformers import LlamaConfig

    llama = LlamaConfig(**SIZES, num_key_value_heads=2, vocab_size=200)
    llama.save_pretrained(tmp_path)
    want = replace(shape_of(tmp_path), name="config")
    assert shape_of(llama) == shape_of(llama.to_dict()) == want
    assert config_of(llama) == replace(config_of(tmp_path), name="config")
    assert smallest_mesh(llama, context=8) == smallest_mesh(tmp_path, context=8)
    found, same = (estimate.decode(model=model, mesh=8, context=8) for model in (llama, tmp_path))
    assert found.tokens_per_second == same.tokens_per_second
    model = WaferForCausalLM.from_config(llama, mesh=4, max_length=16, max_prompt=8)
    assert model.config.vocab_size == 200


def test_a_file_is_named_by_a_text_a_path_or_the_like(tmp_path):
    folder = checkpoint(tmp_path / "ok")
    (tmp_path / "own.toml").write_text('like = "wse2"\nhop_cycles = 2\n')
    for kind in (str, Named):
        assert shape_of(kind(folder)) == shape_of(kind(folder / "config.json")) == shape_of(folder)
        assert device(kind(tmp_path / "own.toml")).hop_cycles == 2
        for place in (folder, folder / "config.json"):
            model = WaferForCausalLM.from_pretrained(kind(place), mesh=np.int64(2), max_length=np.int32(32))
            assert model.folder == folder
        draw.links(SCHEDULE, kind(tmp_path / "links.png"))
        draw.page(kind(tmp_path / "page.html"), "t", [draw.scene(SCHEDULE)], "wse2")
        draw.perfetto(SCHEDULE, kind(tmp_path / "trace.json"))


def test_tokens_and_numbers_of_generation_are_taken_from_arrays_and_tensors(tmp_path):
    model = WaferForCausalLM.from_pretrained(
        checkpoint(tmp_path / "ok"), mesh=2, max_length=np.int64(32), batch=torch.tensor(1), groups=np.int64(1)
    )
    want = list(model.generate([1, 2], 3))
    assert len(want) == 3
    for tokens, count in ((np.array([1, 2]), np.int64(3)), (torch.tensor([1, 2]), torch.tensor(3))):
        assert list(model.generate(tokens, count, stop=np.array([], int))) == want
    how = {"temperature": np.float32(1), "top_k": np.int64(3), "top_p": np.float64(0.5), "seed": np.int64(3)}
    plain = {"temperature": 1.0, "top_k": 3, "top_p": 0.5, "seed": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(model.generate([1, 2], 3, **how)) == list(model.generate([1, 2], 3, **plain))
