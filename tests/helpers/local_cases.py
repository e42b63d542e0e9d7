"""Local operations on many shapes, on which fast forms and Triton kernels are compared with the definitions."""

from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from wafer_triton import local

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Case:
    """One local operation: its parameters, and the elements of each output and input."""

    op: str
    outs: tuple[int, ...]
    ins: tuple[int, ...]
    params: dict = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.op, *(f"{key}{value}" for key, value in self.params.items())])


def sized(op: str, **params) -> Case:
    """Return a case with operands of the sizes that the operation declares."""
    operation = local.find(op)
    sizes = [prod(dims) for dims in operation.tiles(**params)]
    return Case(op, tuple(sizes[: operation.outs]), tuple(sizes[operation.outs :]), params)


def matmul(op: str, m: int, k: int, n: int, heads: int = 1, kv_heads: int = 1, **more) -> Case:
    return sized(op, m=m, k=k, n=n, **({"heads": heads, "kv_heads": kv_heads} if heads > 1 else {}), **more)


def experts(op: str, m: int, per_token: int, number: int, k: int, n: int, **more) -> Case:
    return sized(op, m=m, per_token=per_token, experts=number, k=k, n=n, **more)


MIXED = [
    (1, 1, 1, 1, 1, {}),
    (3, 2, 5, 36, 7, {}),
    (1, 4, 6, 9, 300, {"add": True}),
    (2, 2, 3, 5, 4, {"accumulate": "fp16", "add": True}),
]
REGIONS = {"regions": 4, "held": 3}


def sent(capacity: int) -> dict:
    """Return the rows that a second pass sends to regions."""
    return {"regions": 4, "held": 3, "capacity": capacity, "first": capacity}


GEMMS = [
    matmul(op, *shape, **more)
    for op in ("gemm", "gemm_t", "gemm_tn")
    for *shape, more in (
        (1, 1, 1, {}),
        (1, 36, 33, {}),
        (1, 130, 7, {"add": True}),
        (3, 5, 65, {"add": True}),
        (5, 3, 2, {}),
        (7, 70, 9, {"add": True}),
        (36, 48, 36, {}),
        (70, 17, 66, {"add": True}),
        (1, 4, 6, 6, 2, {}),
        (5, 4, 3, 4, 1, {"add": True}),
        (3, 4, 5, {"accumulate": "fp16"}),
        (2, 3, 4, 4, 2, {"accumulate": "fp16", "add": True}),
        (33, 2, 65, {"accumulate": "fp16", "add": True}),
        (1, 17, 130, 4, 2, {"add": True}),
    )
    if op != "gemm_tn" or len(shape) == 3
]
EXACT = [
    *(sized(op, size=n) for op in ("add", "maximum") for n in (1, 35, 4100)),
    *(sized("copy", size=n) for n in (1, 35, 4100)),
    *(
        sized("lookup", m=m, d=d, v=v, add=add)
        for m, d, v, add in ((1, 1, 1, False), (3, 5, 4, False), (3, 5, 4, True), (2, 1030, 3, True))
    ),
    *(sized("swap", rows=rows, cols=cols, size=size) for rows, cols, size in ((1, 1, 1), (3, 5, 7), (2, 33, 20))),
    *(
        sized("enqueue", m=m, k=k, per_token=per_token, **REGIONS)
        for m, k, per_token in ((1, 1, 1), (3, 2, 3), (9, 4, 4))
    ),
    *(
        sized("dispatch", m=m, k=k, n=n, **sent(capacity))
        for m, k, n, capacity in ((1, 1, 1, 1), (5, 2, 7, 2), (9, 4, 1030, 3))
    ),
    *(
        sized(op, sources=a, capacity=c, n=n)
        for op in ("permute", "unpermute")
        for a, c, n in ((1, 1, 1), (3, 2, 7), (2, 5, 300))
    ),
    *(sized(op, m=m, n=n) for m, n in ((1, 1), (1, 1030), (33, 36), (5, 7)) for op in ("sum_squares", "sum_products")),
]
ROUNDED = [
    *(
        sized(op, m=m, n=n, width=3 * n, eps=1e-5)
        for m, n in ((1, 1), (1, 36), (5, 7), (33, 35))
        for op in ("rms_scale", "rms_dx", "rms_dw")
    ),
    *(sized("softmax_dx", m=m, n=n, scale=0.375) for m, n in ((1, 1), (5, 7), (3, 1030))),
    *(
        sized("rms_scale", m=m, n=n, width=3 * n, eps=1e-5, groups=groups, kept=kept)
        for m, n, groups, kept in ((1, 4, 8, 2), (5, 6, 3, 1), (3, 2, 4, 0))
    ),
    *(
        sized("rope", m=m, heads=heads, kv_heads=kv_heads, n=n)
        for m, heads, kv_heads, n in ((1, 1, 1, 2), (3, 9, 3, 4), (5, 4, 1, 18))
    ),
    *(
        sized(op, heads=heads, m=m, n=n, scale=0.375)
        for heads, m, n in ((1, 1, 1), (3, 5, 7), (2, 3, 35), (1, 1, 1030))
        for op in ("row_max", "exp_sum")
    ),
    *(sized("normalize", m=m, heads=heads, n=n) for m, heads, n in ((1, 1, 1), (5, 3, 7), (1, 9, 130))),
    *(sized("clip", size=n, limit=0.5) for n in (1, 35, 4100)),
    *(
        sized("rms_scale", m=m, n=n, width=1, eps=1e-5, groups=groups, kept=kept, first=first)
        for m, n, groups, kept, first in ((1, 4, 8, 2, 4), (5, 6, 4, 1, 2))
    ),
    *(
        sized("mean_squares", m=m, n=n, heads=heads, kv_heads=kv_heads, width=5 * n, kv_width=3 * n)
        for m, n, heads, kv_heads in ((1, 4, 3, 3), (5, 130, 9, 3))
    ),
    *(
        sized("top_k", m=m, experts=experts, k=k, shared=shared, normalized=normalized)
        for m, experts, k, shared, normalized in ((1, 1, 1, 0, True), (3, 5, 2, 0, True), (2, 33, 8, 2, False))
    ),
    *(
        sized("combine", m=m, k=k, n=n, per_token=per_token, **sent(capacity))
        for m, k, n, per_token, capacity in ((1, 1, 1, 1, 1), (5, 2, 7, 3, 2), (9, 4, 1030, 4, 3))
    ),
    *(
        sized("scale_rows", m=m, n=n, per_token=width, column=width - 1)
        for m, n, width in ((1, 1, 1), (5, 7, 3), (3, 1030, 2))
    ),
    *(experts("expert_gemm", *shape, **more) for *shape, more in MIXED),
    *(experts("expert_sum", *shape, **more) for *shape, more in MIXED),
    *(sized("silu_mul", m=m, n=n) for m, n in ((1, 1), (1, 96), (5, 7), (33, 35))),
]


def draw(
    case: Case, dtype: torch.dtype, *, integers: bool, cores: int = 5, seed: int = 0
) -> tuple[list[Tensor], list[Tensor]]:
    """Return inputs and outputs [cores, numel] of a case; an output that is not added to is NaN."""
    torch.manual_seed(seed)

    def values(numel: int, positive: bool = False) -> Tensor:
        x = torch.randint(-4, 5, (cores, numel)).float() if integers else torch.randn(cores, numel)
        return (x.abs() + 1 if positive else x).to(dtype)

    sums = {"rms_scale": 1, "normalize": 1, "rms_dx": 3, "rms_dw": 2}.get(
        case.op
    )  # this input is a sum of positive numbers
    ins = [values(numel, place == sums) for place, numel in enumerate(case.ins)]
    operation = local.find(case.op)
    updates = operation.accumulates(case.params)
    outs = [values(n) if updates else torch.full((cores, n), float("nan"), dtype=dtype) for n in case.outs]
    for place, name in enumerate(operation.operands):
        tiles = outs if place < operation.outs else ins
        place -= 0 if place < operation.outs else operation.outs
        if name == "expert_ids" and tiles is ins:
            tiles[place] = torch.randint(case.params.get("experts", 10), tiles[place].shape)
        if name in operation.dtypes and name != "table":
            tiles[place] = tiles[place].float()
    if "slots" in operation.operands[operation.outs :]:
        m, k = case.params["m"], case.params["k"]
        first = operation.operands.index("slots") - operation.outs
        expert_ids, real, demand = torch.randint(10, (cores, m * k)), torch.rand(cores, m) - 0.2, torch.empty(cores, 1)
        local.enqueue_torch(*ins[first : first + 2], demand, expert_ids.float(), real, m=m, k=k, per_token=k, **REGIONS)
    return ins, outs
