"""The commands that predict: estimate, validate, fit, plan and sweep. Every time in them is wafer time."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wafer_triton.errors import ConfigError

Settings = dict[str, Any]
_MODEL: tuple[tuple[str, Settings], ...] = (
    ("--model", {"metavar": "NAME|PATH", "help": "a preset or a config.json"}),
    ("--dim", {"type": int, "help": "instead of --model: width"}),
    ("--ffn", {"type": int, "help": "instead of --model: feed-forward width"}),
    ("--heads", {"type": int, "help": "instead of --model: query heads"}),
    ("--kv-heads", {"type": int, "help": "instead of --model: key heads (default: as many)"}),
    ("--layers", {"type": int, "help": "instead of --model: layers (default: 1)"}),
)
_GROUPS = ("--groups", {"type": int, "metavar": "N", "help": "groups of the K-tree's first level (default: the best)"})
_MESH = ("--mesh", {"required": True, "metavar": "P|RxC", "help": "cores of a region"})


def _size(flag: str, what: str) -> tuple[str, Settings]:
    return flag, {"type": int, "required": True, "help": what}


_KINDS: dict[str, tuple[str, tuple[tuple[str, Settings], ...]]] = {
    "gemm": (
        "a matrix product",
        (
            _MESH,
            *(_size(f"--{name}", "size of the whole matrices") for name in "mkn"),
            ("--algorithm", {"default": "mesh", "help": "mesh, cannon, summa, allgather, t10 or ladder"}),
            ("--dtype", {"default": "fp16", "help": "fp16, bf16 or fp32"}),
        ),
    ),
    "gemv": (
        "a vector-matrix product",
        (
            _MESH,
            *(_size(f"--{name}", "size of the whole matrix") for name in "kn"),
            ("--algorithm", {"default": "ktree", "help": "ktree, pipeline, ring, star, two-phase, t10 or ladder"}),
            _GROUPS,
            ("--dtype", {"default": "fp16", "help": "fp16, bf16 or fp32"}),
        ),
    ),
    "decode": ("one token", (*_MODEL, _MESH, _size("--context", "tokens in the cache"), _GROUPS)),
    "prefill": ("a prompt", (*_MODEL, _MESH, _size("--tokens", "tokens of the prompt"))),
    "request": (
        "a prompt and its answer",
        (
            *_MODEL,
            ("--prefill-mesh", _MESH[1]),
            ("--decode-mesh", _MESH[1]),
            _size("--input", "tokens of the prompt"),
            _size("--output", "tokens of the answer"),
            _GROUPS,
        ),
    ),
    "kv": ("how many tokens the cache holds", (*_MODEL, _MESH)),
    "energy": (
        "energy against GPUs",
        (
            ("--seconds", {"type": float, "required": True, "help": "on the whole wafer"}),
            ("--against", {"default": "a100", "help": "the GPU (default: %(default)s)"}),
            ("--against-seconds", {"type": float, "required": True, "help": "on the GPUs"}),
            ("--gpus", {"type": int, "default": 1, "help": "how many (default: %(default)s)"}),
        ),
    ),
}


def register(commands: Any) -> None:
    """Add the commands to argparse's subparsers."""
    estimate = _add(commands, "estimate", "predict cycles, tokens per second, capacity or energy", None)
    kinds = estimate.add_subparsers(metavar="WHAT", required=True)
    for name, (about, options) in _KINDS.items():
        one = _add(kinds, name, about, _estimate)
        one.set_defaults(kind=name)
        _options(one, _device(), *options)
    one = _add(commands, "validate", "compare predictions with measurements on silicon", _validate)
    _options(one, ("--write", {"type": Path, "metavar": "FILE", "help": "also write the page, docs/validation.md"}))
    one = _add(commands, "fit", "fit the constants of the cost model on the calibration files", _fit)
    where = {"type": Path, "metavar": "FOLDER", "help": "where the constants files go (default: into the package)"}
    _options(one, ("--out", where))
    one = _add(commands, "plan", "search the best meshes for a request", _plan)
    sizes = (_size("--input", "tokens of the prompt"), _size("--output", "tokens of the answer"))
    steps = ("--step", {"type": int, "default": 20, "help": "sides are multiples of this (default: %(default)s)"})
    shown = ("--best", {"type": int, "default": 5, "help": "plans to show (default: %(default)s)"})
    _options(one, *_MODEL, _device(), *sizes, steps, shown)
    _register_sweep(commands)


def _register_sweep(commands: Any) -> None:
    one = _add(commands, "sweep", "an estimate over values of one parameter, as CSV and plots", _sweep)
    one.add_argument("kind", metavar="WHAT", help="gemm, gemv, decode, prefill, request or kv")
    _options(
        one,
        ("--over", {"required": True, "metavar": "NAME", "help": "a number of the device, or an option of WHAT"}),
        ("--values", {"required": True, "metavar": "A,B,...", "help": "a list, or FROM:TO:STEP"}),
        ("--set", {"action": "append", "default": [], "metavar": "NAME=VALUE", "help": "the other options of WHAT"}),
        ("--show", {"metavar": "COLUMN", "help": "what the plot shows (default: the first after the parameter)"}),
        ("--out", {"type": Path, "default": Path("sweep.csv"), "metavar": "FILE", "help": "default: %(default)s"}),
        ("--no-plot", {"action": "store_true", "help": "CSV alone"}),
        _device(),
    )


def _add(commands: Any, name: str, about: str, run: Callable[[argparse.Namespace], int] | None) -> Any:
    one = commands.add_parser(name, help=about, description=about)
    if run is not None:
        one.set_defaults(run=run)
        one.add_argument("--json", action="store_true", help="last line of stdout is one JSON object")
    return one


def _options(parser: Any, *options: tuple[str, Settings]) -> None:
    for flag, settings in options:
        parser.add_argument(flag, **settings)


def _device() -> tuple[str, Settings]:
    return "--device", {"default": "wse2", "help": "a preset, see `wafer-triton devices` (default: %(default)s)"}


def _estimate(args: argparse.Namespace) -> int:
    from wafer_triton import estimate

    given = {name: value for name, value in vars(args).items() if name not in ("kind", "run", "json")}
    made = getattr(estimate, args.kind)(**_with_model(given))
    return _tell(args, asdict(made), _lines(asdict(made)))


def _with_model(given: Settings) -> Settings:
    """The options of an estimate, with sizes that stand for a model made one."""
    if "model" not in given:
        return given
    from wafer_triton.cost.model_presets import ModelSizes

    sizes = {name: given.pop(name) for name in ("dim", "ffn", "heads", "kv_heads", "layers")}
    if given["model"] is not None:
        if any(value is not None for value in sizes.values()):
            raise ConfigError("give either --model or the sizes --dim, --ffn, --heads, not both")
        return given
    missing = [f"--{name}" for name in ("dim", "ffn", "heads") if sizes[name] is None]
    if missing:
        raise ConfigError(f"give --model, or the sizes of one: {', '.join(missing)} missing")
    sizes["kv_heads"] = sizes["heads"] if sizes["kv_heads"] is None else sizes["kv_heads"]
    sizes["layers"] = 1 if sizes["layers"] is None else sizes["layers"]
    return given | {"model": ModelSizes("model of the given sizes", **sizes)}


def _validate(args: argparse.Namespace) -> int:
    from statistics import fmean

    from wafer_triton.cost.calibrate import validation

    families, facts = validation.families(), validation.facts()
    page = validation.markdown(families, facts)
    if args.write:
        args.write.parent.mkdir(parents=True, exist_ok=True)
        args.write.write_text(page, encoding="utf-8")
    found = {
        one.name: {
            "rows": len(one.rows),
            "mean_error": fmean(map(abs, one.errors)),
            "worst_error": max(map(abs, one.errors)),
            "left_out": {
                key: errors and {"mean_error": fmean(map(abs, errors)), "worst_error": max(map(abs, errors))}
                for key, errors in one.left_out.items()
            },
        }
        for one in families
    }
    return _tell(args, {"families": found}, [page.rstrip()])


def _fit(args: argparse.Namespace) -> int:
    from wafer_triton.cost.calibrate import fit
    from wafer_triton.cost.constants import FOLDER, write

    found, results = fit.fit()
    lines = []
    for one in results:
        errors = [abs(error) for _, error in one.residuals]
        mean, worst = 100 * sum(errors) / len(errors), 100 * max(errors)
        where = f"{one.stage.device}, {one.stage.family}: {len(errors)} rows"
        lines.append(f"{where}, mean error {mean:.2f} %, worst {worst:.2f} %")
        for name, value in one.values.items():
            error = one.errors[name]
            spread = "as many constants as rows" if error is None else f"+- {error:.3f}"
            lines.append(f"  {name:24}{value:12.3f} {spread}, {fit.MEANING[name][0]}")
        lines += [f"    {row.name:32}{100 * error:+8.2f} %" for row, error in one.residuals]
    folder = args.out or FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    made = {name: fit.entries(name, c, results) for name, c in found.items()}
    lines += [f"written: {write(name, entries, folder)}" for name, entries in made.items()]
    return _tell(args, {"constants": made}, lines)


def _plan(args: argparse.Namespace) -> int:
    from wafer_triton.cost import search

    given = {name: value for name, value in vars(args).items() if name not in ("run", "json")}
    plans = [asdict(one) for one in search.plan(**_with_model(given))]
    widths = {name: max(len(name), 10) for name in plans[0]}
    lines = ["  ".join(f"{name:>{width}}" for name, width in widths.items())]
    lines += ["  ".join(f"{_text(one[name]):>{width}}" for name, width in widths.items()) for one in plans]
    return _tell(args, {"best": plans[0], "plans": plans}, lines)


def _sweep(args: argparse.Namespace) -> int:
    from wafer_triton.cost import search

    fixed: Settings = {}
    for text in args.set:
        name, sign, value = text.partition("=")
        if not sign:
            raise ConfigError(f"--set {text!r}: write NAME=VALUE")
        fixed[name.strip("-").replace("-", "_")] = _number(value, value)
    over = args.over.strip("-").replace("-", "_")
    wanted = _values(args.values)
    table = search.sweep(args.kind, over, wanted, device=args.device, **fixed)
    text = [", ".join(table[0]), *(", ".join(_text(value) for value in row.values()) for row in table)]
    if absent := [f"{value:g}" for value in wanted if value not in [row[over] for row in table]]:
        text.append(f"left out, as {args.kind} cannot be on such a mesh or device: {over} = {', '.join(absent)}")
    files = []
    if not args.no_plot:  # first, as it may fail
        files = search.write_plots(table, args.show or list(table[0])[1], args.out, f"{args.kind} on {args.device}")
    search.write_csv(table, args.out)
    files.insert(0, args.out)
    return _tell(
        args, {"rows": table, "files": [str(one) for one in files]}, [*text, *(f"written: {one}" for one in files)]
    )


def _values(text: str) -> list[float]:
    parts = text.split(":") if ":" in text else text.split(",")
    numbers = [_number(one, None) for one in parts]
    if None in numbers or (":" in text and (len(numbers) != 3 or numbers[2] <= 0)):
        raise ConfigError(f"--values {text!r}: write numbers as A,B,C or FROM:TO:STEP")
    if ":" not in text:
        return numbers
    first, last, step = numbers
    return [first + number * step for number in range(int((last - first) / step + 1e-9) + 1)]


def _number(text: str, otherwise: Any) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return otherwise


def _lines(values: Mapping[str, Any]) -> list[str]:
    width = max(map(len, values)) + 2
    lines = []
    for name, value in values.items():
        if isinstance(value, dict):
            lines += [f"{name}:", *(f"  {key:{width}}{_text(one)}" for key, one in value.items())]
        elif value is not None:
            lines.append(f"{name:{width}}{_text(value)}")
    return lines


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def _tell(args: argparse.Namespace, found: Mapping[str, Any], lines: list[str]) -> int:
    """Print for people, and with --json for scripts; then people read stderr."""
    print("\n".join(lines), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(found))
    return 0
