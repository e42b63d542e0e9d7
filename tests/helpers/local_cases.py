"""Local operations on many shapes: what fast forms and Triton kernels are judged on, by the definitions."""

from dataclasses import dataclass, field

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


def matmul(op: str, m: int, k: int, n: int, heads: int = 1, kv_heads: int = 1, **more) -> Case:
    sizes = {"m": m, "k": k, "n": n} | ({"heads": heads, "kv_heads": kv_heads} if heads > 1 else {})
    return Case(op, (heads * m * n,), (heads * m * k, kv_heads * k * n), sizes | more)


GEMMS = [
    matmul(op, *shape, **more)
    for op in ("gemm", "gemm_t")
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
]
EXACT = [
    *(Case(op, (n,), (n, n), {"size": n}) for op in ("add", "maximum") for n in (1, 35, 4100)),
    *(Case("copy", (n,), (n,), {"size": n}) for n in (1, 35, 4100)),
    *(
        Case("lookup", (m * d,), (d * v, m), {"m": m, "d": d, "v": v})
        for m, d, v in ((1, 1, 1), (3, 5, 4), (2, 1030, 3))
    ),
    *(Case("sum_squares", (m,), (m * n,), {"m": m, "n": n}) for m, n in ((1, 1), (1, 1030), (33, 36), (5, 7))),
]
ROUNDED = [
    *(
        Case("rms_scale", (m * n,), (m * n, m, n), {"m": m, "n": n, "width": 3 * n, "eps": 1e-5})
        for m, n in ((1, 1), (1, 36), (5, 7), (33, 35))
    ),
    *(
        Case(
            "rms_scale",
            (m * groups * n,),
            (m * groups * n, m * groups, (groups - kept) * n),
            {"m": m, "n": n, "width": 3 * n, "eps": 1e-5, "groups": groups, "kept": kept},
        )
        for m, n, groups, kept in ((1, 4, 8, 2), (5, 6, 3, 1), (3, 2, 4, 0))
    ),
    *(
        Case(
            "rope",
            (m * heads * n, m * kv_heads * n, m * kv_heads * n),
            (m * (heads + 2 * kv_heads) * n, m * n // 2, m * n // 2),
            {"m": m, "heads": heads, "kv_heads": kv_heads, "n": n},
        )
        for m, heads, kv_heads, n in ((1, 1, 1, 2), (3, 9, 3, 4), (5, 4, 1, 18))
    ),
    *(
        Case(op, outs, ins, {"heads": heads, "m": m, "n": n, "scale": 0.375})
        for heads, m, n in ((1, 1, 1), (3, 5, 7), (2, 3, 35), (1, 1, 1030))
        for op, outs, ins in (
            ("row_max", (heads * m,), (heads * m * n, m * n)),
            ("exp_sum", (heads * m * n, heads * m), (heads * m * n, m * n, heads * m)),
        )
    ),
    *(
        Case("normalize", (m * heads * n,), (m * heads * n, heads * m), {"m": m, "heads": heads, "n": n})
        for m, heads, n in ((1, 1, 1), (5, 3, 7), (1, 9, 130))
    ),
    *(Case("silu_mul", (m * n,), (2 * m * n,), {"m": m, "n": n}) for m, n in ((1, 1), (1, 96), (5, 7), (33, 35))),
]


def draw(
    case: Case, dtype: torch.dtype, *, integers: bool, cores: int = 5, seed: int = 0
) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and outputs [cores, numel] of a case; an output that is not added to is NaN."""
    torch.manual_seed(seed)

    def values(numel: int, positive: bool = False) -> Tensor:
        x = torch.randint(-4, 5, (cores, numel)).float() if integers else torch.randn(cores, numel)
        return (x.abs() + 1 if positive else x).to(dtype)

    sums = {"rms_scale": 1, "normalize": 1}.get(case.op)  # this input is a sum of positive numbers
    ins = [values(numel, place == sums) for place, numel in enumerate(case.ins)]
    updates = local.find(case.op).updates(case.params)
    outs = [values(n) if updates else torch.full((cores, n), float("nan"), dtype=dtype) for n in case.outs]
    return ins, outs
