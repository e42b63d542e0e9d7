"""Commands that are made from functions: a signature has the options, and `WORDS` says what each of them means.

A command is a line of `COMMANDS`: its module and function are loaded when it is called, so `--help` stays quick. `made`
gives a function of a command the options of an answer such as `estimate.decode`. An option has one meaning, as its
words and the type in which a user writes it stand here once, by its name; a command in which it takes more says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from shutil import get_terminal_size
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from wafer_triton.errors import MOST, ConfigError, WaferError

if TYPE_CHECKING:
    from cyclopts import App, Token

# Each command: its module here and its function, and a line of help.
COMMANDS: dict[str, tuple[str, str]] = {
    "generate": ("generate:generate", "continue a text greedily, every matrix product on a mesh of virtual cores"),
    "estimate product": ("estimate:product", "a matrix product, or a vector-matrix product"),
    "estimate decode": (
        "estimate:decode",
        "one token, a turn of a batch (--batch), MoE-CAP's measures (--routing), or a full cache (no --context)",
    ),
    "estimate prefill": ("estimate:prefill", "a prompt"),
    "estimate request": ("estimate:request", "a prompt and its answer"),
    "estimate training": ("estimate:training", "the products of a training step, forward and backward"),
    "compare": (
        "compare:compare",
        "compare the algorithms of a product, a schedule of your own beside them; --time times one beside torch.matmul",
    ),
    "draw": (
        "draw:draw",
        "a schedule of a product or your own as a picture, a page to walk through or a trace, by the ending of --out",
    ),
    "serve": ("serve:serve", "simulate many requests on one wafer: latencies, throughput, goodput, energy"),
    "validate": (
        "calibrate:validate",
        "compare predictions with measurements on silicon, published ones or your own; --fit fits the constants",
    ),
    "devices": (
        "devices:devices",
        "list the presets of devices, or show one: every number and constant with its source, and what follows from it",
    ),
    "check": ("compare:check", "judge every operation of a decoder layer on a device, or a schedule of your own"),
    "cap": ("cap:cap", "compare cost, accuracy and performance of runs of `generate --json`, in predicted wafer time"),
    "plan-training": (
        "train:plan_training",
        "plan the training of a workload on wafers of dies, with every baseline beside it, in predicted wafer time",
    ),
    "sweep": ("sweep:sweep", "estimates over one or two parameters, devices and models"),
    "plan": ("estimate:plan", "search the best meshes for a request"),
}
# The word of a command that may be left out, or be several; cyclopts calls every such word ARGS.
WORD = {"check": "[SCHEDULE]", "compare": "SUBJECT...", "cap": "RUNS...", "devices": "[NAME]", "validate": "[DATA]"}
GROUPS = {"estimate": "predict cycles, tokens per second or capacity; --explain says why"}  # of commands of two words
LEAST_WIDTH = 40  # of a page of help, which cyclopts lays out without an end in two columns
# What a user writes for an option, and what it means; a shell completes files where it may be a path, too.
WORDS: dict[str, tuple[Any, str]] = {
    "kind": (
        str | Path,
        "product, decode, prefill, request or training, as `estimate` has them, or FILE.py:FUNCTION, which returns a "
        "Schedule",
    ),
    "subject": (
        str | Path,
        "gemm, gemv or FILE.py:FUNCTION, a function that returns a Schedule, a Recipe or a pair (Schedule, Intent)",
    ),
    "model": (
        str | Path,
        "a preset, a folder, its config.json, either with sizes, or sizes: dim=2048,ffn=8192,heads=32,layers=16",
    ),
    "mesh": (str, "rows x columns of cores, 48x64, or 64 for 64x64"),
    "prefill_mesh": (str, "rows x columns of prefill, 48x64, or 64 for 64x64"),
    "decode_mesh": (str, "rows x columns of decode, 48x64, or 64 for 64x64"),
    "device": (
        str | Path,
        "a preset, a .toml or .json file, either with numbers: wse2,sram_kib=96; see `wafer-triton devices` "
        "(default: wse2)",
    ),
    "m": (int, "rows of the first matrix; of a vector-matrix product, vectors that go at once"),
    "k": (int, "columns of the first matrix, elements of a vector"),
    "n": (int, "columns of the second matrix"),
    "algorithm": (
        str,
        "of matrices mesh (default with --m), cannon, summa or allgather; "
        "of a vector ktree (default), pipeline, ring, star or two-phase",
    ),
    "prompt": (str, "the text to continue, as it is"),
    "max_new_tokens": (int, "tokens of the answer, at most"),
    "max_length": (int, "tokens that the KV cache holds (default: as many as needed)"),
    "accumulate": (Literal["fp32", "fp16"], "partial sums"),
    "exchange": (Literal["explicit", "elided"], "explicit: tiles move; elided: a core reads a tile where it lies"),
    "shards": (str, "RxC of ranks of torchrun: rectangles that a mesh is cut into (default: ranks take layers first)"),
    "regions": (bool, "list which blocks lie on which region"),
    "routing_out": (Path, "write which experts each token took"),
    "profile": (Path, "profile the emulation's first decode steps: a trace for Perfetto, in time of this machine"),
    "size": (int, "elements of every core in an all-reduce"),
    "axis": (Literal["x", "y"], "of an all-reduce: along mesh rows (default: x) or columns"),
    "values": (bool, "compute, for the error (default: on up to 64 x 64 cores)"),
    "picture": (Literal["links", "timeline"], "kind of a picture (default: links)"),
    "beside": (
        list[str],
        "another algorithm, or beside a schedule of your own another one, in the page or trace; repeatable",
    ),
    "time": (float, "seconds, about, in which each row is timed on this machine: explicit, elided, torch.matmul"),
    "emulate_on": (str, "cpu, cuda, cuda:N or auto, where the cores are emulated (default: a GPU where there is one)"),
    "backend": (Literal["torch", "triton"], "of the emulation (default: triton on a GPU, else torch)"),
    "groups": (int, "groups of the K-tree's first level (default: the best)"),
    "dtype": (
        str,
        "of weights or tiles; int8 and fp8 lie beside activations in fp16 (default: fp16)",
    ),
    "context": (int, "tokens in a sequence's cache (default: a full cache)"),
    "tokens": (int, "tokens of the prompt"),
    "input": (int, "tokens of the prompt"),
    "output": (int, "tokens of the answer"),
    "batch": (int, "sequences of a step, each of which gets a token"),
    "at_once": (int, "sequences of a group, which follow one another through the regions (default: the fastest)"),
    "routing": (
        str | Path,
        "give MoE-CAP's measures, with experts taken uniform, by Zipf's law (1.2, a skew) or by a trace's FILE",
    ),
    "head_groups": (int, "groups of heads on the columns (default: the fastest)"),
    "experts": (
        Literal["spread", "regions"],
        "a mixture's experts in prefill: spread, each over the mesh, or regions, each in one (default: the faster)",
    ),
    "step": (int, "sides are multiples of it"),
    "best": (int, "plans to show"),
    "over": (
        list[str],
        "NAME=A,B,... or NAME=FROM:TO:STEP of a device's number or an option of KIND; at most two and model, device",
    ),
    "set": (list[str], "NAME=VALUE, another option of KIND; repeatable"),
    "show": (str, "column that is shown and drawn (default: tokens_per_second, or the first)"),
    "out": (list[Path], "write the answer to a file, whose ending says how; repeatable"),
    "schedule": (
        str | Path,
        "FILE.py:FUNCTION, a function that returns a Schedule, a Recipe or a pair (Schedule, Intent)",
    ),
    "requests": (Path, "a trace of requests: CSV or JSON lines with arrival, input, output"),
    "rate": (float, "requests a second, at which a trace is replayed or requests come"),
    "count": (int, "requests (default: the whole trace, or 1000)"),
    "seed": (int, "of all draws"),
    "policy": (
        Literal["replace", "shared", "split"],
        "one phase after the other with re-placement, both on one mesh (default), or split columns",
    ),
    "chunk": (int, "tokens of a chunk of a prompt (default: whole prompts)"),
    "quantum": (int, "of policy shared: tokens of a visit of prefill (default: 4096)"),
    "turns": (int, "of policy shared: tokens of each sequence between visits (default: 64)"),
    "caches": (int, "sequences of --context in the cache (default: as many as fit)"),
    "columns": (int, "of policy split: columns of the device for prefill (default: the best)"),
    "slo": (str, "ttft=200ms,tpot=1ms: requests within them are the goodput"),
    "find_rate": (bool, "search the highest rate at which 9 in 10 requests keep --slo, in place of --rate"),
    "overload": (bool, "report a rate that is too high all the same"),
    "data": (Path, "your own measurements, a CSV, in place of the published ones"),
    "table": (
        Literal["2", "3", "4", "5", "6", "7", "8", "text", "all"],
        "of WaferLLM's paper, or its text: each number beside its prediction",
    ),
    "fit": (bool, "fit the constants of the cost model, and their error bands, on the measurements"),
    "runs": (Path, "the output of `generate --json`"),
    "accuracy": (list[float], "of a run; once for each, in order"),
    "watts": (float, "power of the device (default: its own)"),
    "name": (str | Path, "a preset, a .toml or .json file, either with numbers: wse2,sram_kib=96"),
    "workload": (str, "gpt3-6.7b (default), gpt3-76b, gpt3-175b, llama2-7b, llama3-70b or opt-175b"),
    "config": (Path, "a Llama-like config.json in place of --workload"),
    "sequence": (int, "tokens of a sequence in training (default: the workload's)"),
    "wafer": (str, "a preset: wafer-48 (6 x 8 dies) or wafer-32"),
    "wafers": (int, "wafers, in a pipeline"),
    "forwarding": (Literal["cut", "store"], "how several hops go (default: the wafer's)"),
    "link_rate": (float, "TB/s of a link in one direction (default: the wafer's)"),
    "failed": (list[str], "R,C-R,C, a broken link between two dies; repeatable"),
    "recompute": (Literal["none", "selective", "full"], "of all layers (default: the fastest)"),
    "objective": (Literal["time", "energy"], "what the plan has the least of"),
    "no_baselines": (bool, "the plan alone"),
    "explain": (bool, "say why: shares of the time, and each number of the device halved and doubled"),
    "json": (bool, "last line of stdout is one JSON object, the rest goes to stderr"),
}
CHECKPOINT_FILES = ("*.safetensors", "*.index.json", "*config.json", "tokenizer*")  # which reading a model may need
FOLDER = ""  # the ending of a folder that is written
FIRST = ("model", "mesh", "prefill_mesh", "decode_mesh", "device")  # in this order, before the other options


class UsageError(WaferError):
    """The arguments do not form a command."""


def made(
    run: Callable[..., int],
    answer: Callable[..., Any] | None = None,
    *,
    but: Collection[str] = (),
    flags: Sequence[str] = (),
    written: Mapping[str, Sequence[str]] = MappingProxyType({}),
    words: Mapping[str, tuple[Any, str]] = MappingProxyType({}),
) -> Callable[..., int]:
    """Return a command that calls `run` with the options of `answer` (None: its own), but for some, and with flags.

    Options that name files which are `written` have the endings of these files. `words` are of options that take more
    here than in other commands.
    """
    kind = inspect.Parameter
    held = [each for name, each in inspect.signature(answer or run).parameters.items() if name not in but]
    rank = {name: number for number, name in enumerate(FIRST)}
    held.sort(key=lambda each: (each.kind, rank.get(each.name, len(FIRST))))
    held += [kind(name, kind.KEYWORD_ONLY, default=False) for name in flags]
    said = {**WORDS, **words}
    parameters = [
        each.replace(annotation=_said(each.name, each.default, said[each.name], written.get(each.name, ())))
        for each in held
    ]
    signature = inspect.Signature(parameters)

    def command(*given: Any, **asked: Any) -> int:
        bound = signature.bind(*given, **asked)
        bound.apply_defaults()
        _check_files(written, bound.arguments)
        return run(*bound.args, **bound.kwargs)

    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__doc__ = run.__doc__
    return command


def _said(name: str, default: Any, said: tuple[Any, str], endings: Sequence[str]) -> Any:
    """Return the annotation of an option: the type of its text, and its words with the endings of its files."""
    from cyclopts import Parameter
    from cyclopts.validators import Number

    written, words = said
    if endings:
        words += f": {', '.join(ending or 'a folder' for ending in endings)}"
    flag, absent = written is bool, default in (None, ())
    how = Parameter(
        help=words, negative=None if flag and absent else "",  # --values, --no-values, or neither
        show_default=not (absent or flag or "(default" in words), allow_leading_hyphen=name == "prompt",
        converter=_whole if written is int else None,
        validator=Number(gt=0, lte=MOST) if written in (int, float) and name != "seed" else None,
    )  # fmt: skip
    return Annotated[written | None if absent and not flag else written, how]


def _whole(_: Any, texts: Sequence[Token]) -> int:
    """Return a whole number; cyclopts itself makes 2 of 1.5."""
    try:
        return int(texts[0].value)
    except ValueError:
        raise ValueError(f"{texts[0].value!r} is no whole number.") from None


def given(**options: Any) -> dict[str, Any]:
    """Return the options that a user gave."""
    return {name: value for name, value in options.items() if not (value is None or value is False or value == ())}


def refuse(why: str, **options: Any) -> None:
    """Raise ConfigError where an option is given, which has no meaning beside others."""
    if flags := [_flag(name) for name in given(**options)]:
        raise ConfigError(f"{', '.join(flags)}: {why}")


def is_reference(text: str) -> bool:
    """Return whether a word of the command line is meant as FILE.py:FUNCTION."""
    return ".py:" in text or text.endswith(".py")


def need(of: str, **options: Any) -> None:
    """Raise ConfigError where an option of a subject is absent."""
    if flags := [_flag(name) for name, value in options.items() if value is None]:
        raise ConfigError(f"give {', '.join(flags)} of {of}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check_files(written: Mapping[str, Sequence[str]], asked: Mapping[str, Any]) -> None:
    """Raise for files that cannot be written, or are read, and for names without their ending, which may be a slip."""
    from wafer_triton.text.files import writable

    files = {}
    for name, endings in written.items():
        given = asked[name]
        paths = [given] if isinstance(given, Path) else given or ()
        for number, path in enumerate(paths, 1):
            if not path.suffix and FOLDER in endings and path != Path():
                continue  # which is made
            if path.suffix.lower() not in endings and not path.is_char_device():
                raise ConfigError(f"{_flag(name)} {path}: does not end in {', '.join(filter(None, endings))}; give one")
            files[_flag(name) + f" {number}" * (len(paths) > 1)] = path
    if files:
        writable(files, _read(asked))


def _read(asked: Mapping[str, Any]) -> dict[str, Path]:
    """Return the files that a command reads, of a model's folder and of a schedule of one's own."""
    from wafer_triton.text.files import listed

    found = {}
    named = [(f"--{name}", name, asked.get(name)) for name in ("model", "device")]
    for option in ("over", "set"):  # of a sweep
        parts = (text.partition("=") for text in asked.get(option) or ())
        named += [(f"--{option} {name}={value}", name.strip("-"), value) for name, _, value in parts]
    for flag, name, value in named:
        for path in map(Path, listed(value) if value and name in ("model", "device") else ()):
            if path.is_file():
                found[flag] = path
            elif name == "model" and path.is_dir():
                held = (file for pattern in CHECKPOINT_FILES for file in path.glob(pattern))
                found |= {f"{file.name} of {flag}": file for file in held}
    found |= {_flag(name): asked[name] for name in ("requests", "data") if asked.get(name)}
    for name in ("kind", "subject"):
        file, colon, _ = (asked.get(name) or "").rpartition(":")
        found |= {file: Path(file)} if colon else {}
    return found


def app() -> App:
    """Return the commands."""
    from cyclopts import App

    from wafer_triton import __doc__ as about_all
    from wafer_triton import __version__

    whole = App(
        name="wafer-triton", help=about_all, help_format="plaintext", version=f"wafer-triton {__version__}",
        version_flags=("--version",), exit_on_error=False, print_error=False, suppress_keyboard_interrupt=False,
        result_action="return_value",
    )  # fmt: skip
    groups = {name: App(name=name, help=about, version_flags=()) for name, about in GROUPS.items()}
    for group in groups.values():
        whole.command(group)
    for name, (where, about) in COMMANDS.items():
        *group_name, leaf = name.split()
        usage = f"Usage: wafer-triton {name} [OPTIONS] {WORD[name]}" if name in WORD else None
        group = groups[group_name[0]] if group_name else whole
        group.command(f"wafer_triton.cli.{where}", name=leaf, help=about, usage=usage)
    whole.register_install_completion_command(
        help="install completion for the shell that you are in: bash, zsh or fish"
    )
    return whole


def run(words: Sequence[str]) -> int:
    """Run the words of a command line; UsageError where they do not form a command."""
    from cyclopts.exceptions import CycloptsError, MissingArgumentError, UnusedCliTokensError

    if not words:
        raise UsageError("give a command; see `wafer-triton --help`")
    console = None
    if get_terminal_size().columns < LEAST_WIDTH:
        from rich.console import Console

        console = Console(width=LEAST_WIDTH)
    try:
        done = app()(list(words), console=console)
    except CycloptsError as error:
        typed = (" ".join(words[:count]) for count in (2, 1))
        page = next((name for name in typed if name in (*COMMANDS, *GROUPS)), "")
        absent = error.argument if isinstance(error, MissingArgumentError) and error.keyword is None else None
        said = f"Give {absent.name}. " if absent else ""
        if (absent or isinstance(error, UnusedCliTokensError)) and error.unused_tokens:
            said += f"No option or argument takes {' '.join(error.unused_tokens)!r}."
        raise UsageError(f"{said or error} See `{f'wafer-triton {page}'.strip()} --help`") from None
    return int(done or 0)
