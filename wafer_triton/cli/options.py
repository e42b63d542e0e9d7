"""Common parts of commands: descriptions, options and their types, and the streams of an answer."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from wafer_triton.cli import ranks
from wafer_triton.device import device as find_device
from wafer_triton.device.dtype import BYTES, TILES, WEIGHTS
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.errors import MOST, printable
from wafer_triton.text.files import listed
from wafer_triton.text.table import Table

if TYPE_CHECKING:
    from wafer_triton.emulate.executor import Executor
    from wafer_triton.models.checkpoint.checkpoint import Checkpoint

Option = tuple[tuple[str, ...], dict[str, Any]]


@dataclass(frozen=True)
class Command:
    """A command: its function, whose docstring is its help unless `about` is given, and its options but for `--json`.

    One with `kinds` runs one of these instead, which is then `args.kind`; a FILE.py:FUNCTION in the place of a kind
    stands for the kind `otherwise` and itself.
    """

    name: str
    run: Callable[[argparse.Namespace], int]
    options: tuple[Option, ...] = ()
    about: str = ""
    kinds: tuple[Command, ...] = ()
    otherwise: str = ""

    def add_to(self, commands: Any) -> argparse.ArgumentParser:
        """Add the command to argparse's subparsers."""
        about = self.about or self.run.__doc__
        parser: argparse.ArgumentParser = commands.add_parser(self.name, help=about, description=about)
        if self.kinds:
            parser.otherwise = self.otherwise  # type: ignore[attr-defined]
            kinds = parser.add_subparsers(metavar="KIND", required=True)
            for kind in self.kinds:
                kind.add_to(kinds).set_defaults(kind=kind.name)
            return parser
        for flags, settings in (*self.options, JSON):
            parser.add_argument(*flags, **settings)
        parser.set_defaults(run=self.run)
        return parser


def option(*flags: str, **settings: Any) -> Option:
    """Return an option as the arguments of argparse's `add_argument`."""
    return flags, settings


WRITTEN = ("out", "trace", "write", "profile", "routing_out")  # options that name a file which is written
READ = ("data", "requests")
CHECKPOINT_FILES = ("*.safetensors", "*.index.json", "*config.json", "tokenizer*")  # which reading a model may need


def prepare(args: argparse.Namespace) -> None:
    """Raise the errors of `files.writable` for the files of a command."""
    from wafer_triton.text import files

    def named(names: tuple[str, ...]) -> dict[str, Path]:
        held = {f"--{name.replace('_', '-')}": getattr(args, name, None) for name in names}
        several = {name: value if isinstance(value, list) else [value] for name, value in held.items()}
        return {
            name if len(paths) == 1 else f"{name} {number}": path
            for name, paths in several.items()
            for number, path in enumerate(paths, 1)
            if isinstance(path, Path)
        }

    files.writable(named(WRITTEN), named(READ) | _read_by_name(args))


def _read_by_name(args: argparse.Namespace) -> dict[str, Path]:
    """Return the files that a command reads, of a model's folder and of a schedule of one's own."""
    found = {}
    model = getattr(args, "model", None)
    if model and (path := Path(model)).is_file():
        found["--model"] = path
    elif model and path.is_dir():
        held = (file for pattern in CHECKPOINT_FILES for file in path.glob(pattern))
        found |= {f"{file.name} of --model": file for file in held}
    if (chip := Path(listed(getattr(args, "device", None) or "")[0])).is_file():
        found["--device"] = chip
    file, colon, _ = (getattr(args, "schedule", None) or "").rpartition(":")
    return found | ({file: Path(file)} if colon else {})


def is_reference(text: str) -> bool:
    """Return whether a word of the command line is meant as FILE.py:FUNCTION."""
    return ".py:" in text or text.endswith(".py")


def number(text: str) -> float:
    """Return the type of an option that takes a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a finite number")
    return value


def tiles(text: str) -> str:
    """Return the type of an option that takes a dtype of tiles."""
    if text in WEIGHTS and text not in TILES:
        raise argparse.ArgumentTypeError(
            f"{text} is a storage of a model's weights; give tiles in one of {', '.join(TILES)}"
        )
    if text not in TILES:
        raise argparse.ArgumentTypeError(f"{text!r} is no dtype of tiles; choose one of {', '.join(TILES)}")
    return text


def path(text: str) -> Path:
    """Return the type of an option that takes a path."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def file_of(*endings: str) -> Callable[[str], Path]:
    """Return the type of an option that names a file to write, so that a slip overwrites no file of another kind.

    A device such as /dev/null is taken as well.
    """

    def written(text: str) -> Path:
        given = path(text)
        with suppress(OSError):  # which is raised later, in other words
            if given.suffix.lower() not in endings and not given.is_char_device():
                name = f"give a name such as {given.stem[:40] or 'a'}{endings[0]}"
                raise argparse.ArgumentTypeError(f"{text[:80]!r} does not end in {' or '.join(endings)}; {name}")
        return given

    return written


def count(text: str) -> int:
    """Return the type of an option that takes a whole number of at least 1."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 30 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a whole number of at least 1")
    if int(text) > MOST:
        raise argparse.ArgumentTypeError(f"{int(text):,} is more than the {MOST:,} that are taken here")
    return int(text)


def size(flag: str, about: str) -> Option:
    """Return a required option that takes a whole number of at least 1."""
    return option(flag, type=count, required=True, metavar="N", help=about)


JSON = option("--json", action="store_true", help="last line of stdout is one JSON object, the rest goes to stderr")
NAMED = "a preset, a .toml or .json file, either with numbers: wse2,sram_kib=96; see `wafer-triton devices`"
DEVICE = option("--device", default="wse2", metavar="NAME|FILE", help=f"{NAMED} (default: %(default)s)")
DTYPE = option("--dtype", type=tiles, default="fp16", metavar="fp16|bf16|fp32", help="of tiles (default: %(default)s)")
OF_WEIGHTS = "of tiles; int8 and fp8 are of weights, beside activations in fp16 (default: fp16)"
STORED = option("--dtype", default="fp16", choices=tuple(BYTES), help=OF_WEIGHTS)
WEIGHTS_DTYPE = option("--dtype", choices=WEIGHTS, help="of weights, beside activations in fp16 (default: fp16)")
SIZES = "a preset, a folder, its config.json, either with sizes, or sizes: dim=2048,ffn=8192,heads=32,layers=16"
SHAPE = option("--model", required=True, metavar="NAME|PATH|SIZES", help=SIZES)
MESH = option("--mesh", required=True, metavar="P|RxC", help="cores of a region, 64 or 48x64")
HEADS = option(
    "--head-groups", type=count, metavar="N",
    help="groups of heads on the columns (default: in each phase the fastest on the wafer)",
)  # fmt: skip
EXPERTS = option(
    "--experts", choices=("spread", "regions"),
    help="place of a mixture's experts in prefill: each over the whole mesh, or in a region (default: the faster)",
)  # fmt: skip
CHECKPOINT = option(
    "--model", required=True, metavar="PATH|NAME", help="a Hugging Face folder, or smollm2-135m (fetched)"
)
PLACE = (
    DEVICE,
    option(
        "--mesh", default="16", metavar="P|RxC|plan",
        help="virtual cores of a region, 16 or 16x24; plan: fastest on the wafer, slow here (default: %(default)s)",
    ),
    HEADS,
    EXPERTS,
)  # fmt: skip
EMULATE_ON = (
    option(
        "--emulate-on", default="auto", metavar="auto|cpu|cuda|cuda:N",
        help="the torch device that emulates the cores (default: a GPU where there is one)",
    ),
    option("--backend", choices=("torch", "triton"), help="default: triton on a GPU, else torch"),
)  # fmt: skip
EXECUTION = (
    STORED,
    option("--accumulate", default="fp32", choices=("fp32", "fp16"), help="partial sums (default: %(default)s)"),
    option("--exchange", default="explicit", choices=("explicit", "elided"), help="do tiles move (default), or not"),
    *EMULATE_ON,
    option(
        "--shards", metavar="RxC",
        help="of ranks that torchrun starts: rectangles that a mesh is cut into (default: ranks take layers first)",
    ),
)  # fmt: skip


def mesh_of(args: argparse.Namespace) -> Mesh | None:
    """Return the mesh of `PLACE`; None leaves it to the cost model."""
    return None if args.mesh == "plan" else as_mesh(args.mesh, args.device)


def searching(args: argparse.Namespace) -> None:
    """Print, before the cost model searches the mesh of `PLACE`, that it does and about how long."""
    find_device(args.device)  # before a search is announced
    if mesh_of(args) is None and ranks.number() == 0:
        print(
            f"searching the fastest meshes for {args.model} on {args.device}, which takes about a minute here; "
            f"a --mesh such as 16 takes none",
            file=sys.stderr, flush=True,
        )  # fmt: skip


def checkpoint_of(args: argparse.Namespace, tokens: int = 1) -> Checkpoint:
    """Return the checkpoint of `CHECKPOINT`; raises for its faults, and for faults of `PLACE` and a number of tokens.

    These are judged before the tokenizer is loaded, which takes seconds, and before weights are placed.
    """
    from wafer_triton.decoder.heads import HeadGroups
    from wafer_triton.device.dtype import torch_dtype
    from wafer_triton.models.checkpoint.checkpoint import Checkpoint

    mesh, checkpoint = mesh_of(args), Checkpoint(args.model)
    weights = checkpoint.weights(torch_dtype(args.dtype))
    checkpoint.config.room(tokens)
    if mesh is not None:
        mesh.square()  # of prefill
        if args.head_groups is not None:
            HeadGroups(checkpoint.config, mesh.cols, args.head_groups)
    for name in weights if ranks.count() == 1 else ():  # of several each reads its own
        weights[name]  # which has no NaN
    return checkpoint


def executor_of(args: argparse.Namespace) -> Executor:
    """Return the executor of `EXECUTION`."""
    import torch

    from wafer_triton import distributed

    # A step on a mesh is thousands of operations of some microseconds each: a second thread only makes them wait.
    torch.set_num_threads(1)
    return distributed.executor(args.backend, args.exchange, shards=args.shards, emulate_on=args.emulate_on)


def tell_where(executor: Executor) -> None:
    """Print the device and the exchange of an executor, to stderr."""
    from wafer_triton.ops import described

    print(f"emulated {described(executor)}", file=sys.stderr, flush=True)


def people(as_json: bool) -> TextIO:
    """Return the stream that people read."""
    return sys.stderr if as_json else sys.stdout


def tell(as_json: bool, answer: Any, *texts: str | Table) -> int:
    """Print `texts` for people and, `as_json`, `answer` for programs; the exit code of a success."""
    stream = people(as_json)
    for text in texts:
        print(printable(text.on(stream) if isinstance(text, Table) else text), file=stream)
    stream.flush()
    if as_json:
        print(json.dumps(_plain(answer), allow_nan=False))
    return 0


def _plain(answer: Any) -> Any:
    """Return an answer as JSON has it: a table as its records, null for numbers that are not finite."""
    if isinstance(answer, Table):
        answer = answer.records
    if isinstance(answer, dict):
        return {name: _plain(value) for name, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [_plain(value) for value in answer]
    return None if isinstance(answer, float) and not math.isfinite(answer) else answer


def cut_short(when: str) -> int:
    """Print that Ctrl-C ended a command, whose answer so far is printed; returns the exit code."""
    print(f"interrupted {when}", file=sys.stderr)
    return 130


def utf8(text: str) -> str:
    """Return the type of an option that takes a text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(
            f"{text!a} is not UTF-8 text (at character {error.start}), or the locale is not; try LC_ALL=C.UTF-8"
        ) from None
    return text
