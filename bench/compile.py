"""CPU seconds that Triton takes to compile the kernels of a model, without a GPU: python bench/compile.py

One case is a decode layer of Llama-3-8B on 64 x 64 cores. The other is a first `generate` of SmolLM2-135M's sizes on
24 x 24. Their kernels are compiled for sm_90 one after another. "frontend" is Triton's own CPU time until PTX,
"assembler" the time of ptxas. With `--json` one object a kernel is printed.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "harness"))  # Python leaves it out under PYTHONSAFEPATH

import triton
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from ahead import NoDevice
from planned import decode_layer, without_gpu
from wafer_triton.emulate.executor import EXCHANGES
from wafer_triton.emulate.triton import TritonExecutor
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.random import config_of


@dataclass(frozen=True)
class Compiled:
    """A kernel that was compiled for a case, by its name, with the CPU seconds of Triton and of the assembler."""

    case: str
    kernel: str
    frontend: float
    assembler: float


def ahead() -> list[Compiled]:
    """Make every launch of this process compile its kernel for sm_90 without running it; return the growing list."""
    compiled, names = list[Compiled](), list[str]()

    def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
        names.append(src.name)

    driver.set_active(NoDevice("cuda", "90", "32"))
    without_gpu()
    triton.knobs.compilation.listener = listen
    triton.knobs.compilation.always_compile = True
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        names.clear()
        before = seconds()
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        frontend, assembler = (then - now for then, now in zip(seconds(), before, strict=True))
        compiled.extend(Compiled("", name, frontend, assembler) for name in names)
        return kernel

    JITFunction.run = compile_only  # type: ignore[method-assign]
    return compiled


def seconds() -> tuple[float, float]:
    """Return the CPU seconds of this process and of the processes that it started."""
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime, others.ru_utime + others.ru_stime


def first_generate(exchange: str) -> None:
    """Run one chunk of a prompt and one step of SmolLM2's sizes in one layer, as all layers have the same kernels."""
    config = replace(config_of("smollm2-135m"), num_hidden_layers=1)
    model = WaferForCausalLM.from_config(
        config, mesh=24, dtype="fp32", seed=0, max_length=64, executor=TritonExecutor(exchange=exchange)
    )
    model.prefill(list(range(40)))
    model.step(1)


def rows(only: str = "") -> Iterator[Compiled]:
    """Compile all kernels of the cases whose names contain `only`."""
    compiled = ahead()
    cases: dict[str, Callable[[], object]] = {}
    for exchange in EXCHANGES:
        cases[f"decode layer, Llama-3-8B on 64 x 64, {exchange}"] = lambda exchange=exchange: [
            step() for program in decode_layer(exchange).values() for step in program.steps
        ]
        cases[f"first generate, SmolLM2-135M on 24 x 24, {exchange}"] = lambda exchange=exchange: first_generate(
            exchange
        )
    for case, run in cases.items():
        if only not in case:
            continue
        compiled.clear()
        for function in {value for value in vars_of_kernels() if isinstance(value, JITFunction)}:
            function.device_caches.clear()
        run()
        yield from (replace(one, case=case) for one in compiled)


def vars_of_kernels() -> list[Any]:
    """Return the values of all names in the modules of kernels."""
    return [
        value
        for name, module in list(sys.modules.items())
        if name.startswith("wafer_triton.kernels")
        for value in vars(module).values()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="seconds to compile the kernels of a model, without a GPU")
    parser.add_argument("--json", action="store_true", help="an object a kernel")
    parser.add_argument("--only", default="", help="words in the name of a case")
    args = parser.parse_args()
    found = list(rows(args.only))
    if args.json:
        for one in found:
            print(json.dumps(asdict(one)))
        return
    for case in dict.fromkeys(one.case for one in found):
        mine = [one for one in found if one.case == case]
        slowest = max(mine, key=lambda one: one.frontend)
        frontend, assembler = sum(one.frontend for one in mine), sum(one.assembler for one in mine)
        print(
            f"{case}: {len(mine)} kernels, frontend {frontend:.1f} s, assembler {assembler:.1f} s, "
            f"together {frontend + assembler:.1f} s; the slowest frontend is {slowest.kernel}, {slowest.frontend:.2f} s"
        )


if __name__ == "__main__":
    main()
