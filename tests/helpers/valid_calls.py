"""Valid calls of public functions, and values of any kind that each of their arguments may take in their place."""

from pathlib import Path

import numpy as np
import torch

from wafer_triton import (
    Builder,
    Device,
    Intent,
    Mesh,
    MeshTensor,
    Schedule,
    Slot,
    WaferError,
    account,
    all_reduce,
    as_mesh,
    check,
    distributed,
    draw,
    estimate,
    executor,
    link_loads,
    mesh_gemm,
    mesh_gemv,
    price,
    rms_norm,
    routes,
    run,
    scatter,
    softmax,
)
from wafer_triton.compare.explain import explain
from wafer_triton.compare.sweep import sweep
from wafer_triton.device import device
from wafer_triton.schedule.product import recipe

MODEL = {"model": "dim=16,ffn=24,heads=2,layers=2", "mesh": 2}
A = torch.ones(4, 4)
PRODUCT = recipe("gemm", as_mesh(2), "fp32", ((4, 4), (4, 4)), ())
SCHEDULE = PRODUCT.schedule
ROWS = [{"m": 1, "n": 2, "cycles": 3}]
CPU = {"backend": "torch", "exchange": "explicit", "emulate_on": "cpu"}


def built(**given):
    """Build a schedule of one exchange and one copy, with some arguments exchanged."""
    taken = {"axis": "x", "src": "x", "dst": "y", "send": [0], "recv": [1], "op": "copy", "label": ""} | given
    b = Builder(as_mesh(2), "t")
    for name, role in (("x", "input"), ("y", "output")):
        b.buffer(name, (4,), "fp32", role)
    move = b.exchange(*(taken[key] for key in ("axis", "src", "dst", "send", "recv")), taken.get("lines"))
    b.round(move, b.local(taken["op"], taken["dst"], "x", taken.get("where"), size=4), label=taken["label"])
    return b.build(draft=True) and account(b.build())


def declared(**given):
    b = Builder(as_mesh(2), "t")
    b.buffer(**given)
    return b.like("z", given["name"])


CALLS = {
    built: {"axis": "x", "src": "x", "dst": "y", "send": 0, "recv": 1, "lines": None, "op": "copy", "where": None},
    declared: {"name": "x", "tile": (4,), "dtype": "fp32", "role": "scratch", "slots": 1, "pattern": "", "holds": ()},
    Builder: {"mesh": as_mesh(2), "name": "t", "family": "kernel"},
    Slot: {"buffer": "x", "index": 0, "axis": "x"},
    Schedule: {
        "name": "t", "mesh": as_mesh(2), "buffers": SCHEDULE.buffers, "rounds": SCHEDULE.rounds, "family": "kernel",
    },
    Mesh: {"rows": 2, "cols": 2, "device": device("wse2"), "origin": (0, 0), "fold": (1, 1)},
    as_mesh(2).length: {"axis": "x"},
    as_mesh: {"spec": 2, "on": "wse2"},
    device("wse2").changed: {"name": "d", "rows": 4, "routes": 3, "clock_hz": 1e9, "hop_cycles": 1},
    Device.from_file: {"path": "none.toml"},
    Intent: {"given": {}, "result": {}, "on": {}, "reference": None, "draw": None, "runs": 1, "pieces": None},
    check: {"schedule": SCHEDULE, "intent": Intent.of(PRODUCT)},
    account: {"schedule": SCHEDULE},
    price: {"schedule": SCHEDULE, "using": None},
    routes: {"schedule": SCHEDULE, "relayed": False},
    link_loads: {"schedule": SCHEDULE, "block": 1},
    scatter: {"tensor": A, "mesh": as_mesh(2), "pattern": "(y m) (x n)", "m": 2},
    lambda **given: MeshTensor(**given).gather(): {
        "mesh": as_mesh(2), "tiles": torch.ones(2, 2, 2, 2), "pattern": "(y m) (x n)", "shape": (4, 4), "sizes": {},
    },
    executor: CPU,
    distributed.executor: {**CPU, "shards": None, "timeout": 5.0},
    run: {"made": PRODUCT, "operands": (A, A), "on": executor(**CPU)},
    mesh_gemm: {"a": A, "b": A, "algorithm": "mesh", "accumulate": "fp32", "mesh": 2, "record": True},
    mesh_gemv: {"x": A, "w": A, "axis": "y", "groups": None, "mesh": 2, "backend": "torch", "record": True},
    all_reduce: {"x": torch.ones(2, 2, 4), "axis": "x", "op": "add", "mesh": 2, "record": True},
    rms_norm: {"x": A, "weight": A[0], "eps": 1e-6, "mesh": 2, "record": True},
    softmax: {"x": A, "scale": 1.0, "mesh": 2, "record": True},
    recipe: {"name": "gemm", "mesh": as_mesh(2), "dtype": "fp32", "shapes": ((4, 4), (4, 4)), "options": ()},
    estimate.gemm: {"device": "wse2", "mesh": 2, "m": 4, "k": 4, "n": 4, "algorithm": "mesh", "dtype": "fp16"},
    estimate.gemv: {"device": "wse2", "mesh": 2, "k": 4, "n": 4, "algorithm": "ktree", "groups": None},
    estimate.decode: {
        **MODEL, "context": 4, "groups": None, "program": "full", "as_if": False, "head_groups": None, "trim": False,
        "layout": None, "dtype": None,
    },
    estimate.prefill: {**MODEL, "tokens": 4, "experts": None},
    estimate.request: {
        "model": MODEL["model"], "prefill_mesh": 2, "decode_mesh": 2, "input": 4, "output": 4, "head_groups": None,
    },
    estimate.kv: MODEL,
    estimate.cap: {**MODEL, "context": 4, "batch": 1, "routing": "uniform"},
    estimate.energy: {"device": "wse2", "seconds": 1.0, "against": "a100", "against_seconds": 1.0, "gpus": 1},
    draw.curves: {"rows": ROWS, "over": ["m"], "shown": "cycles", "path": "/none/x.png", "title": "t"},
    draw.heat: {"rows": ROWS, "over": ["m", "n"], "shown": "cycles", "path": "/none/x.png"},
    draw.pareto: {"rows": ROWS, "over": ["m"], "shown": "cycles", "against": "cycles", "path": "/none/x.png"},
    draw.mesh: {"schedule": SCHEDULE, "path": "/none/x.png", "round": -1, "buffers": None},
    draw.page: {
        "path": "/none/x.html", "title": "t", "scenes": [], "device": device("wse2"), "about": "", "regions": (),
        "tables": (), "beside": None, "headline": None, "time": None,
    },
    draw.perfetto: {"subject": SCHEDULE, "path": "/none/x.json", "most": 10},
    draw.scene: {"schedule": SCHEDULE, "name": "", "values": None, "fills": ()},
    draw.inspect: {"schedule": SCHEDULE, "round": -1, "buffer": None},
    draw.reproduction: {"cells": [], "path": "/none/x.png"},
    draw.wafer: {"regions": [], "path": "/none/x.png", "title": ""},
    sweep: {"kind": "gemv", "over": {"k": [4]}, "mesh": 2, "n": 4},
    explain: {"kind": "gemv", "mesh": 2, "k": 4, "n": 4},
}  # fmt: skip
VALUES = (
    None, True, "x", "\ud800", "x" * 5000, b"", -1, 0, 1.5, float("nan"), 10**30, 10**400, [], [[1]], {}, {"x": 1},
    {1: 2}, np.int64(1), np.arange(3), np.array([None, "x"], object), torch.tensor(1), torch.ones(4, 4, device="meta"),
    torch.ones(4, 4, requires_grad=True), A.to_sparse(), object(), int, {1}, Path("x"), SCHEDULE,
)  # fmt: skip


def endure(call, valid):
    """Call with each argument exchanged for each value: AssertionError or the error itself for worse than one line."""
    for name in valid:
        for value in VALUES:
            try:
                call(**valid | {name: value})
            except WaferError as error:
                assert len(str(error)) < 1000 and "\n" not in str(error), (name, value)
            except Exception as error:
                error.add_note(f"{name} = {value!r:.80}")
                raise
