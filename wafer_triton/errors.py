"""The one exception family: every mistake a user can make raises a `WaferError`.

A message names the mistake, its place (core, round, buffer, key or file) and the remedy.
Our own impossibilities are `assert`s, not members of this family.
"""

import contextlib
import difflib
import re
import typing
from collections import abc
from operator import index

_WORDS = 80  # characters of a value in a message
_LONGEST = 400  # characters of a word, as a path may have


class WaferError(Exception):
    """Base of all errors that wafer_triton raises for a user's mistake; a message is one line, long words are cut.

    A `remedy` is told after the message, which an error with a remedy of its own may quote without it.
    """

    # no constructor, which torch.compile could not follow to the message

    @property
    def message(self) -> str:
        """The message without the remedy."""
        return str(self.args[0])

    def __str__(self) -> str:
        words = printable(" ".join("; ".join(filter(None, self.args)).split()))
        return re.sub(rf"\S{{{_LONGEST},}}", lambda word: f"{word[0][:_WORDS]}...", words)


class DeviceError(WaferError, ValueError):
    """A device is unknown or its numbers make no sense."""


class MeshError(WaferError, ValueError):
    """A mesh or region is empty, larger than its device, or unfit for the algorithm."""


class ShapeError(WaferError, ValueError):
    """Shapes of operands do not agree with each other, the layout or the mesh."""


class DtypeError(WaferError, TypeError):
    """A dtype is unsupported, or operands mix dtypes or torch devices."""


class SramError(WaferError, MemoryError):
    """A core's buffers do not fit into its SRAM."""


class HbmError(WaferError, MemoryError):
    """A die's tensors do not fit into its HBM."""


class ScheduleError(WaferError, ValueError):
    """A schedule breaks a rule of the machine: a receive without one sender, a slot both read and written."""


class BackendError(WaferError, RuntimeError):
    """The chosen backend cannot run here: no GPU, no Triton, an operation without a kernel."""


class ConfigError(WaferError, ValueError):
    """A model configuration is incomplete, or has a feature that is not computed here."""


class CheckpointError(WaferError, ValueError):
    """A checkpoint is missing, truncated, damaged or not in the safetensors format."""


class CacheError(WaferError, ValueError):
    """A prompt or a decode step does not fit the KV cache."""


class DrawError(WaferError, ValueError):
    """A picture, a page or a trace cannot be made of its arguments."""


class ArgumentError(WaferError, TypeError):
    """A keyword or an option that a function does not take."""


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """Return a text for a terminal, with escapes in place of control characters, such as a folder's name may have."""
    return text.translate(_CONTROLS)


MOST = 10**9  # of any whole number, some thousand times the largest model's


def article(word: str) -> str:
    """Return a word with its article, such as "an int" or "a Schedule"."""
    return f"{'an' if word[:1] in 'aeioAEIO' else 'a'} {word}"  # u as in "a uint8"


def shown(value: object) -> str:
    """Return a value in at most one short line, for a message."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a class of the user, or of a number with more digits than Python prints
        text = article(type(value).__name__)
    return text if len(text) <= _WORDS else f"{text[:_WORDS]}..."


def nearest(word: object, known: abc.Iterable[str]) -> str:
    """Return the end of an error that names the nearest of several words; empty where none is near."""
    near = difflib.get_close_matches(str(word).lower(), list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def plain(value: typing.Any) -> typing.Any:
    """Return a whole number of numpy or torch as an int, and any other value as it is."""
    if type(value) is int or isinstance(value, bool) or not hasattr(value, "__index__"):
        return value
    try:
        return index(value)
    except (TypeError, RuntimeError, ValueError):  # of an array or a tensor of several numbers
        return value


def check_counts(**counts: object) -> tuple[int, ...]:
    """Return whole numbers from 1 to `MOST`, numpy's among them, as ints; ShapeError, by its name, for another."""
    return tuple(_count(name, plain(value)) for name, value in counts.items())


def _count(name: str, value: typing.Any) -> int:
    number = value if type(value) is int else 0
    if number < 1:
        raise ShapeError(f"{name} = {shown(value)} must be a whole number of at least 1")
    if number > MOST:
        raise ShapeError(f"{name} = {shown(value)} is more than the {MOST:,} that are taken here; give a smaller one")
    return number


def check_positive(where: str, **given: float) -> None:
    """Raise ShapeError, by its name, unless each is a positive number, far from the ends of fp32."""
    for name, value in given.items():
        if not 1e-30 <= value <= 1e30:
            raise ShapeError(f"{where}: {name} = {shown(value)} must be a positive number, from 1e-30 to 1e30")


@contextlib.contextmanager
def writing(path: object) -> "abc.Iterator[None]":
    """Write a file: an OSError that names none, as of a full disk, names this one."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
