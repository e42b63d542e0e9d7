"""The command line. One function is one command: its options stand above it, its docstring is its help.

Exit codes: 0, 2 for a user's mistake (one line on stderr), 1 with a traceback for ours, 130 after Ctrl-C. With `--json`
the last line of stdout is one object, and whatever is for people goes to stderr. A command imports what it needs when
it runs, so that `--help` is quick and wants neither torch nor transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

from wafer_triton import __version__
from wafer_triton.device import PRESETS, device
from wafer_triton.errors import CacheError, ShapeError, WaferError
from wafer_triton.mesh import Mesh, as_mesh

if TYPE_CHECKING:
    from wafer_triton.emulate.executor import Executor

Option = tuple[tuple[str, ...], dict[str, Any]]
Run = Callable[[argparse.Namespace], int]

COMMANDS: dict[str, tuple[Run, tuple[Option, ...]]] = {}
# modules of further commands, each with a function `register(commands)`
FAMILIES = ("wafer_triton.cli.estimate", "wafer_triton.cli.compare", "wafer_triton.cli.judge")


def command(*options: Option) -> Callable[[Run], Run]:
    """Make the decorated function the command of its name."""

    def register(run: Run) -> Run:
        COMMANDS[run.__name__] = run, options
        return run

    return register


def option(*flags: str, **settings: Any) -> Option:
    """What argparse's `add_argument` takes, kept for commands to share."""
    return flags, settings


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


JSON = option("--json", action="store_true", help="last line of stdout is one JSON object, the rest goes to stderr")
PLACE = (
    option("--device", default="wse2", help="a preset, see `wafer-triton devices` (default: %(default)s)"),
    option(
        "--mesh", default="16", metavar="P|RxC|plan",
        help="virtual cores of a region, 16 or 16x24; plan: fastest on the wafer, slow here (default: %(default)s)",
    ),
)  # fmt: skip
EXECUTION = (
    option("--dtype", default="fp16", choices=("fp16", "bf16", "fp32"), help="of tiles (default: %(default)s)"),
    option("--accumulate", default="fp32", choices=("fp32", "fp16"), help="partial sums (default: %(default)s)"),
    option("--exchange", default="explicit", choices=("explicit", "elided"), help="do tiles move (default), or not"),
    option("--backend", choices=("torch", "triton"), help="default: triton where there is a GPU, else torch"),
)


@command(
    option("--model", required=True, metavar="PATH|NAME", help="a Hugging Face folder, or smollm2-135m (fetched)"),
    option("--prompt", required=True, help="the text to continue, as it is (no chat template)"),
    option("--max-new-tokens", type=_count, default=32, metavar="N", help="stop after N (default: %(default)s)"),
    option(
        "--max-length", type=_count, metavar="N", help="tokens that the KV cache holds (default: as many as needed)"
    ),
    option("--regions", action="store_true", help="list which blocks lie on which region"),
    *PLACE,
    *EXECUTION,
    JSON,
)
def generate(args: argparse.Namespace) -> int:
    """continue a text greedily, every matrix product on a mesh of virtual cores"""
    mesh = _mesh(args)
    if not args.prompt:
        raise ShapeError("the prompt is empty; give at least one character")
    from wafer_triton.draw import tables
    from wafer_triton.models.checkpoint.fetch import resolve
    from wafer_triton.models.decoder import WaferForCausalLM

    people = sys.stderr if args.json else sys.stdout
    executor = _executor(args.backend, args.exchange)
    folder = resolve(args.model)
    text = TextStream(folder, args.prompt)
    longest = len(text.prompt) + args.max_new_tokens - 1  # the last token is not cached
    if args.max_length and longest > args.max_length:
        raise CacheError(f"{longest} tokens do not fit the KV cache; give a --max-length of {longest}, or none")
    begun = perf_counter()
    with tables.Progress() as progress:
        model = WaferForCausalLM.from_pretrained(
            folder,
            mesh=mesh,
            device=args.device,
            dtype=args.dtype,
            accumulate=args.accumulate,
            max_length=args.max_length or len(text.prompt) + args.max_new_tokens,
            max_prompt=len(text.prompt),
            executor=executor,
            progress=progress,
        )
        loaded = perf_counter()
        stream = model.generate(text.prompt, args.max_new_tokens, progress)
        first = list(islice(stream, 1))
    prefilled, interrupted = perf_counter(), False
    try:
        for token in chain(first, stream):
            print(text.push(token), end="", file=people, flush=True)
    except KeyboardInterrupt:
        interrupted = True
    ended = perf_counter()
    print(text.rest(), file=people, flush=True)
    made = tables.Generation(
        text=text.shown,
        tokens=text.tokens,
        prompt_tokens=len(text.prompt),
        steps=model.count - len(text.prompt),
        settings={name: getattr(args, name) for name in ("dtype", "accumulate", "exchange")}
        | {"backend": type(model.executor).__name__.removesuffix("Executor").lower()},
        mesh=model.block.mesh,
        prefill_mesh=model.placement.prefill.mesh,
        regions=model.regions,
        account=model.account(),
        load_seconds=loaded - begun,
        prefill_seconds=prefilled - loaded,
        decode_seconds=ended - prefilled,
        interrupted=interrupted,
    )
    tables.show(tables.generation_table(made), people)
    if args.regions:
        tables.show(tables.regions_table(model.regions), people)
    if args.json:
        print(json.dumps(made.as_json()))
    if interrupted:
        print(f"interrupted after {len(text.tokens)} tokens", file=sys.stderr)
    return 130 if interrupted else 0


@command(JSON)
def devices(args: argparse.Namespace) -> int:
    """list the devices that --device knows"""
    if args.json:
        print(json.dumps([asdict(one) for one in PRESETS.values()]))
        return 0
    from wafer_triton.draw import tables

    tables.show(tables.devices_table(map(device, PRESETS)), sys.stdout)
    return 0


class TextStream:
    """A prompt's tokens, and the text of new ones as they come; raises CheckpointError without a tokenizer.

    The bytes of one character may be spread over tokens, so text that ends in the middle of one waits for the rest.
    """

    def __init__(self, folder: Path, prompt: str) -> None:
        from wafer_triton.models.checkpoint.text import tokenizer_of

        self._tokenizer = tokenizer_of(folder)
        self.prompt: list[int] = self._tokenizer(prompt)["input_ids"]
        self.tokens: list[int] = []
        self.shown = ""
        # With the prompt in front, a tokenizer that strips the first space does not strip that of the new text.
        self._start = len(self._decode())

    def push(self, token: int) -> str:
        """The text that `token` completes, which may be none."""
        self.tokens.append(token)
        return "" if self._decode().endswith("\ufffd") else self.rest()

    def rest(self) -> str:
        """The text not shown yet, complete or not."""
        new = self._decode()[self._start + len(self.shown) :]
        self.shown += new
        return new

    def _decode(self) -> str:
        tokens = self.prompt + self.tokens
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


def _mesh(args: argparse.Namespace) -> Mesh | None:
    """The mesh that is asked for; None leaves it to the cost model."""
    return None if args.mesh == "plan" else as_mesh(args.mesh, args.device)


def _executor(backend: str | None, exchange: str) -> Executor:
    import torch

    from wafer_triton import ops

    # A step on a mesh is thousands of operations of some microseconds each: a second thread only makes them wait.
    torch.set_num_threads(1)
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return ops.executor(backend, exchange, "cuda" if torch.cuda.is_available() and not interpreted else "cpu")


class _Usage(WaferError):
    """The arguments do not form a command."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Usage(f"{message}; see `{self.prog} --help`")


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    from wafer_triton import __doc__ as about

    whole = _Parser(prog="wafer-triton", description=about)
    whole.add_argument("--version", action="version", version=f"wafer-triton {__version__}")
    commands = whole.add_subparsers(metavar="COMMAND", required=True)
    for name, (run, options) in COMMANDS.items():
        one = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        for flags, settings in options:
            one.add_argument(*flags, **settings)
        one.set_defaults(run=run)
    for module in FAMILIES:
        import_module(module).register(commands)
    return whole


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    try:
        args = parser().parse_args(argv)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    except WaferError as error:
        return _mistake(str(error))
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "tokenizers", "transformers"):
            raise
        return _mistake(f"this command needs {error.name}; run: pip install 'wafer-triton[models]'")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (FileNotFoundError, PermissionError, FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        return _mistake(f"{error.filename}: {error.strerror}; give another path")
    except BrokenPipeError:  # whoever read our output has gone; Python would complain again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _mistake(message: str) -> int:
    print(f"wafer-triton: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
