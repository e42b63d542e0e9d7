"""A valid call of every other public callable, whose arguments then take any value: an answer, or a WaferError."""

from dataclasses import fields
from functools import partial

import pytest
import torch

from public import PUBLIC
from serving import Given
from valid_calls import CALLS, PRODUCT, SCHEDULE, endure
from wafer_triton import Builder, Cores, Intent, Mesh, WaferForCausalLM, check, draw, estimate, executor
from wafer_triton.compare import algorithms, best, explain, library, sweep
from wafer_triton.cost import search
from wafer_triton.count.account import link_distribution
from wafer_triton.device import Device, device
from wafer_triton.kernels.elementwise import elementwise
from wafer_triton.local import local_op
from wafer_triton.models import convert, precision
from wafer_triton.models.checkpoint.fetch import resolve
from wafer_triton.ops import mesh_gemm_t
from wafer_triton.schedule import block, decode, prefill
from wafer_triton.schedule.collectives import broadcast
from wafer_triton.schedule.expert_places import ExpertRegions
from wafer_triton.schedule.kv_cache import KvCache
from wafer_triton.serve import policies, report, simulate, workload
from wafer_triton.shape import routing
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.read import shape_of
from wafer_triton.train import dies, machine, model, planner, product, shards, step
from wafer_triton.train.workload import workload as training
from wafer_triton.verify.decoder import sub_layer_intent

MESH, A = Mesh(4, 4), torch.ones(4, 4)
SMALL, MIXTURE = shape_of("smollm2-135m"), shape_of("olmoe-1b-7b")
BLOCK = block.Block(SMALL, Mesh(16, 16, device("wse2,sram_mib=4")), "fp16", entries=2)
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 19, "max_position_embeddings": 32,
}  # fmt: skip
PLACED = {"mesh": 2, "max_length": 16, "max_prompt": 8}
WAFER = dies.wafer("wafer-32")
TEAM = product.Team(WAFER.mesh(2, 2), "cycle", 2, 2)
SIZES = model.Sizes()
LENGTHS = workload.both(workload.fixed(3), workload.fixed(3))
REQUESTS = [workload.Request(0, 0.0, 5, 5), workload.Request(1, 1.0, 5, 5)]
ROWS = [{"mesh": 1, "cycles": 3.0, "k": 2}, {"mesh": 2, "cycles": 2.0, "k": 1}]
CONVERTED = convert.convert(torch.nn.Sequential(torch.nn.Linear(4, 4)), mesh=2)
LM = WaferForCausalLM.from_config(CONFIG, **PLACED)
TOKENS = torch.arange(9)[None]


def valid(of, **given):
    """Return the fields of a dataclass object as arguments of its constructor."""
    return {each.name: getattr(of, each.name) for each in fields(of) if each.init} | given


def own():
    b = Builder(MESH, "own")
    for name, role, slots in (("x", "input", 1), ("o", "output", 1), ("cache", "scratch", 3)):
        b.buffer(name, (3,), "fp32", role, slots)
    return b


def repeated(**given):
    b = own()
    b.repeat(**given)
    b.build()


def rounded(**given):
    b = own()
    b.round(b.local("add", "o", ("x", "x"), size=3), **given)
    b.build(draft=True)


def cores(**given):
    b = own()
    b.round(b.local("add", "o", ("x", "x"), Cores(**given), size=3))
    b.build()


def spread(**given):
    b = own()
    broadcast(b, **given)
    b.build()


def appended(**given):
    KvCache(4, 2).append(**{"b": own()} | given)


def defined(**given):
    @local_op(**given)
    def own_triple_torch(out, x, *, size):
        """out [size] = 3 x."""


def bound():
    return executor("torch").bind(PRODUCT.schedule, {name: torch.ones(2, 2, 2, 2) for name in "ab"})


def streamed(**given):
    return list(LM.generate(**given))


def trained(**given):
    machine_ = machine.Machine(WAFER, TEAM.mesh)
    return step.Trainer(machine_, SIZES, shards.DieGroups(TEAM), model.parameters(SIZES)).step(**given)


def served(**given):
    return simulate.simulate(REQUESTS, Given(), policies.Policy(**given))


def drawn_shape(**given):
    return estimate.decode(model=DecoderShape(**given), mesh=100, context=10)


def sub_layer(**given):
    return block.schedule(decode.ffn, block.Block(**given))


def prompt(tokens, past):
    return block.schedule(prefill.ffn, block.Block(SMALL, BLOCK.mesh, "fp16"), tokens, past)


SAMPLED = {"temperature": 0.5, "top_k": 2, "top_p": 0.5, "seed": 1, "stop": [3]}
FURTHER = {
    rounded: {"label": "l", "pattern": None},
    repeated: {"times": 2, "iteration": lambda number: None, "period": 1, "rows": None, "slots": None},
    own().build: {"draft": True},
    cores: {"axis": "x", "at": [0], "lines": [1]},
    Device: valid(device("wse2")),
    device: {"spec": "wse2"},
    ExpertRegions: {"side": 2, "capacity": 4, "copies": (1,)},
    Intent.of: {"recipe": PRODUCT},
    link_distribution: {"schedule": SCHEDULE, "percentiles": (0, 50), "bins": 10},
    mesh_gemm_t: {"a": A, "b": A, "mesh": 2, "accumulate": "fp32"},
    executor("torch").bind: {"schedule": SCHEDULE, "tensors": {name: torch.ones(2, 2, 2, 2) for name in "ab"}},
    bound().read: {"name": "a"},
    bound().held: {"name": "a"},
    bound().write: {"name": "a", "tiles": torch.ones(2, 2, 2, 2)},
    bound().gather: {"name": "c", "pattern": "(y m) (x n)", "shape": (4, 4)},
    bound().held("a").core: {"row": 0, "col": 1},
    convert.convert: {
        "model": torch.nn.Sequential(torch.nn.Linear(4, 4)), "mesh": 2, "device": "wse2", "dtype": "fp32",
        "accumulate": "fp32", "exchange": "explicit", "backend": "torch", "emulate_on": "cpu",
    },
    convert.account: {"model": CONVERTED},
    convert.predicted: {"model": CONVERTED, "device": "wse2"},
    convert.off_mesh: {"model": CONVERTED},
    CONVERTED[0].forward: {"x": A},
    precision.perplexity: {"model": LM, "ids": [1, 2, 3], "window": 4},
    WaferForCausalLM.from_config: {
        "config": CONFIG, **PLACED, "dtype": "fp32", "random_weights": True, "seed": 0, "batch": 1, "device": "wse2",
        "kv_policy": "shift", "groups": None, "prefill_groups": None, "head_groups": 1, "prefill_head_groups": 1,
        "trim": False, "emulate_on": "cpu", "accumulate": "fp32", "prefill_mesh": 2, "experts": None,
    },
    WaferForCausalLM.from_pretrained: {"checkpoint": "/none", "dtype": "fp32", "mesh": 2},
    LM.generate: {"tokens": [1, 2], "max_new_tokens": 2},
    streamed: {"tokens": [[1, 2]], "max_new_tokens": 2, **SAMPLED},
    LM.forward: {"input_ids": torch.tensor([[1, 2]])},
    LM.prefill: {"tokens": [1], "sequence": 0},
    best.best: {"rows": ROWS, "by": "cycles"},
    best.front: {"rows": ROWS, "columns": ["mesh", "cycles"]},
    explain.bounds: {"kind": "gemm", "mesh": 20, "m": 64, "k": 64, "n": 64},
    library.bench_gemm: {"mesh": 2, "m": 4, "k": 4, "n": 4},
    sweep.own: {"function": lambda rows: SCHEDULE},
    algorithms.compare_gemm: {"mesh": 4, "m": 8, "k": 8, "n": 8, "device": "wse2", "dtype": "fp16", "values": False},
    algorithms.compare_gemv: {"mesh": 4, "k": 8, "n": 8, "device": "wse2", "dtype": "fp16", "values": False},
    algorithms.compare_own: {"name": "n", "schedule": SCHEDULE, "intent": Intent.of(PRODUCT), "values": False},
    elementwise: {"fn": None},
    defined: {
        "tiles": lambda *, size: ((size,),) * 2, "work": lambda *, size: (0, size), "outs": 1, "elementwise": False,
        "partial": False, "reads": None, "product": None, "dtypes": None,
    },
    resolve: {"name_or_path": "none"},
    spread: {"name": "x", "axis": "x", "root": 0, "label": "l", "segment": 1},
    broadcast: {"b": own(), "name": "x", "axis": "x", "root": 0},
    KvCache: {"rows": 4, "entries": 2, "policy": "shift", "prefilled": 0},
    appended: {"b": own(), "caches": {"cache": "x"}, "count": 1},
    KvCache(4, 2).positions: {"count": 1},
    KvCache(4, 2).room: {"count": 1},
    KvCache(4, 2).row_of: {"count": 1},
    shape_of: {"model": "smollm2-135m", "dtype": "fp16"},
    routing.drawn: {"shape": MIXTURE, "tokens": 5, "skew": 0.5, "seed": 1},
    dies.wafer: {"name": "wafer-32"},
    dies.Wafer: valid(WAFER),
    WAFER.mesh: {"rows": 2, "cols": 2},
    WAFER.transfer_seconds: {"hops": 1, "size": 5.0, "share": 1.0},
    machine.Machine: {"on": WAFER, "mesh": TEAM.mesh, "executor": None, "exact": False},
    model.Sizes: valid(SIZES),
    model.parameters: {"sizes": SIZES, "seed": 0, "dtype": torch.float32},
    planner.plan: {
        "work": training("gpt3-6.7b", batch=16), "wafer": WAFER, "wafers": 1, "rules": None, "recompute": ("none",),
        "objective": "time",
    },
    product.Team: valid(TEAM),
    shards.DieGroups: valid(shards.DieGroups(TEAM)),
    step.Trainer: {
        "machine": machine.Machine(WAFER, TEAM.mesh), "sizes": SIZES, "die_groups": shards.DieGroups(TEAM),
        "parameters": model.parameters(SIZES), "optimizer": None,
    },
    trained: {"tokens": TOKENS[:, :-1], "targets": TOKENS[:, 1:]},
    step.AdamW: valid(step.AdamW()),
    training: {"name": "gpt3-6.7b", "sequence": 128, "batch": 16},
    sub_layer_intent: {"sub_layer": decode.ffn, "block": BLOCK},
    block.schedule: {"adds": decode.ffn, "block": BLOCK},
    prompt: {"tokens": 4, "past": 0},
    sub_layer: valid(BLOCK),
    drawn_shape: {**valid(SMALL), "variant": None},
    draw.compare: {
        "rows": algorithms.compare_gemm(4, 8, 8, 8), "path": "compare.png", "title": "t", "device": device("wse2"),
    },
    draw.explanation: {"of": explain.explain("gemm", mesh=20, m=64, k=64, n=64), "path": "explain.svg", "title": ""},
    draw.links: {"schedule": SCHEDULE, "path": "links.svg"},
    draw.rounds: {"schedule": SCHEDULE},
    draw.sram: {"schedule": SCHEDULE, "path": "sram.svg"},
    draw.timeline: {"schedule": SCHEDULE, "path": "timeline.svg"},
    draw.schedule: {"schedule": SCHEDULE, "path": "schedule.svg"},
    draw.token: {"line": None, "path": "token.png", "title": ""},
    draw.request: {
        "input": 8, "output": 4, "program": "full", "most": 100, "model": "smollm2-135m", "prefill_mesh": 60,
        "decode_mesh": 60,
    },
    draw.values: {"program": bound(), "buffer": "c", "core": (1, 1)},
    search.plan: {
        "model": "smollm2-135m", "device": "wse2", "input": 8, "output": 4, "step": 60, "best": 2, "sides": [60, 120],
        "program": "full", "head_groups": None, "experts": None, "dtype": None,
    },
    report.report: {
        "run": simulate.simulate(REQUESTS, Given(), policies.Policy()), "pool": 100, "device": device("wse2"),
        "dtype": "fp16", "slo": report.Slo(),
    },
    report.Slo: {"ttft": 1.0, "tpot": 1.0},
    report.Slo.of: {"text": "ttft=1ms"},
    simulate.simulate: {"workload": REQUESTS, "times": Given(), "policy": policies.Policy(), "record": False},
    policies.Shared: {"quantum": 4096, "turns": 64},
    served: {"organisation": policies.Replacing(), "order": "first", "cache": "reserve", "chunk": None},
    workload.Request: valid(REQUESTS[0]),
    workload.Closed: {"users": 2, "count": 4, "lengths": LENGTHS, "seed": 0, "pause": 0.0},
    workload.both: {"input": workload.fixed(3), "output": workload.fixed(3)},
    workload.fixed: {"tokens": 3},
    workload.uniform: {"least": 1, "most": 3},
    workload.lognormal: {"median": 3.0, "sigma": 1.0},
    workload.drawn: {"requests": REQUESTS},
    partial(workload.poisson, lengths=LENGTHS): {"rate": 1.0, "count": 3, "seed": 0},
    partial(workload.bursty, lengths=LENGTHS): {"rate": 1.0, "count": 3, "seed": 0, "cv": 2.0},
    workload.rate_of: {"requests": REQUESTS},
    workload.rescaled: {"requests": REQUESTS, "rate": 2.0},
}  # fmt: skip

THROUGH = {  # public callables, by the function above that calls them
    "MeshTensor": bound, "Cores": cores, "Intent": check, "local_op": defined, "Program": bound, "Held": bound,
    "Executor.bind": bound, "Policy": served, "Replacing": served, "Split": served, "DecoderShape": drawn_shape,
    "Block": sub_layer, "WaferForCausalLM": LM, "TokenStream": streamed, "MeshLinear": CONVERTED, "convert": CONVERTED,
}  # fmt: skip
APART = {
    "Account": "a result",
    "MeshRMSNorm": "made as MeshLinear is",
    "assert_close": "raises AssertionError",
    "clear_cache": "has no parameter",
    "plan": "of serving takes seconds, see tests/serve/test_plan.py",
    "read_trace": "reads files, see tests/inputs/test_files.py",
    "validation": "has a path alone",
}


@pytest.mark.parametrize("call", FURTHER, ids=lambda call: getattr(call, "__qualname__", ""))
def test_any_value_ends_in_an_answer_or_one_line(call, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    endure(call, FURTHER[call])


def test_every_public_callable_has_a_valid_call():
    called = {getattr(call, "func", call).__qualname__ for call in (*CALLS, *FURTHER)} | {*THROUGH, *APART}
    assert {each.__qualname__ for each in PUBLIC.values()} <= called
