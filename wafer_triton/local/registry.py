"""The table of local operations: of each its torch definition, its operands and its work."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from math import inf, isfinite, nan, prod
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

from wafer_triton.device.dtype import BYTES, TILES
from wafer_triton.errors import ScheduleError, article, shown

if TYPE_CHECKING:
    from torch import Tensor

Work = Callable[..., tuple[int, int]]
Tiles = Callable[..., tuple[tuple[int, ...], ...]]
T = TypeVar("T")
_KINDS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
_WANTED = {
    "int": "a whole number of at least 0",
    "float": "a finite number",
    "bool": "True or False",
    "str": "a string",
}


@dataclass(frozen=True)
class SlotOperand:
    """An operand that a schedule gives an operation: the name of a slot, its elements and dtype."""

    slot: str
    numel: int
    dtype: str


@dataclass(frozen=True)
class LocalOp:
    """One local operation: its torch definition `run(*outs, *ins, **params)` (writes `outs` in place) and its work.

    `tiles(**params)` gives the dimensions of every operand, in order, and `work(**params)` the multiply-adds of its
    products and its vector elements, of one core; `outs` is the number of outputs. Operands have the dtypes that
    `dtypes` names for them, else any dtype of tiles. Of a `partial` operation operands may be longer. An `elementwise`
    operation may write the slot that it reads. Of an input that `reads` names no more elements are read than it says,
    of others all. Outputs that `updates` names are read as well, or all of them where a parameter `add` is true; of
    other outputs all elements are written, and what they held is NaN.
    `product(**params)` gives (m, k, n, heads) of an operation that is a product, by which it is priced. Other
    multiply-adds are priced as one vector instruction, those of `elementwise` operations as vector elements. One that
    is `own`, defined outside of this package, is checked more closely. Operands come as flat tiles [..., elements].
    """

    name: str
    run: Callable[..., None]
    tiles: Tiles
    work: Work
    outs: int = 1
    elementwise: bool = False
    reads: Mapping[str, Callable[..., int]] = field(default_factory=dict)
    product: Callable[..., tuple[int, int, int, int]] | None = None
    partial: bool = False
    dtypes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    own: bool = False
    updates: Sequence[str] = ()

    def wrong_names(self) -> str | None:
        """Return the fault of an operation's operands, `reads` or `dtypes`; None if there is none."""
        if any(entry.kind in (entry.VAR_POSITIONAL, entry.VAR_KEYWORD) for entry in self._signature.values()):
            return "its definition takes any number of arguments; name each operand and each parameter"
        for part, known in (("reads", self.operands[self.outs :]), ("dtypes", self.operands)):
            held = getattr(self, part)
            if not isinstance(held, Mapping) or (unknown := [name for name in held if name not in known]):
                found = shown(unknown[0]) if isinstance(held, Mapping) else article(type(held).__name__)
                return f"`{part}` has {found}; give a dict by the names {', '.join(known)}"
        if not isinstance(self.updates, tuple | list) or not set(self.updates) <= set(self.operands[: self.outs]):
            return (
                f"`updates` is {shown(self.updates)}; give a tuple of some of {', '.join(self.operands[: self.outs])}"
            )
        held = [one if isinstance(one, tuple | list | set | frozenset) else [one] for one in self.dtypes.values()]
        unknown = [dtype for dtypes in held for dtype in dtypes if not isinstance(dtype, str) or dtype not in BYTES]
        return f"`dtypes` has {shown(unknown[0])}; give some of {', '.join(BYTES)}" if unknown else None

    def _wrong_functions(self, params: Mapping[str, Any]) -> str | None:
        """Return the fault of a function that does not take the parameters or gives no counts; None without one."""
        more = {"product": self.product} if self.product else {}
        reads = {f"reads of {name}": read for name, read in self.reads.items()}
        for part, function in {"tiles": self.tiles, "work": self.work, **reads, **more}.items():
            try:
                inspect.signature(function).bind(**params)
            except TypeError as error:
                return f"`{part}` does not take the parameters ({error})"
            found = function(**params) if part in reads or part in more else None
            if part in reads and not _are_counts([found]):
                return f"`{part}` returns {shown(found)}; give the elements that are read, at least 0"
            if part in more and (not isinstance(found, tuple | list) or len(found) != 4 or not _are_counts(found)):
                return f"`{part}` returns {shown(found)}; give m, k, n and heads, at least 0"
        return None

    def accumulates(self, params: Mapping[str, Any], out: int = 0) -> bool:
        """Return whether output number `out` is also read."""
        return bool(params.get("add", False)) or self.operands[out] in self.updates

    def sources(self, params: Mapping[str, Any], outs: Sequence[T], ins: Sequence[T]) -> list[T]:
        """Return the operands that are read: all inputs, and the outputs that are updated."""
        return [*ins, *(out for number, out in enumerate(outs) if self.accumulates(params, number))]

    def clear(self, outs: Iterable[Tensor], params: Mapping[str, Any]) -> None:
        """Fill with NaN the elements of flat tiles `outs` that the operation overwrites without reading them."""
        for number, (out, dims) in enumerate(zip(outs, self.tiles(**params), strict=False)):
            if not self.accumulates(params, number):
                out[..., : prod(dims)] = nan

    def keeps(self, params: Mapping[str, Any], numel: int, out: int = 0) -> bool:
        """Return whether output number `out` of `numel` elements keeps old values: it is added to, or longer."""
        return self.accumulates(params, out) or prod(self.tiles(**params)[out]) < numel

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """The names of the operands, outputs first, by the definition."""
        return tuple(name for name, entry in self._signature.items() if entry.kind is not entry.KEYWORD_ONLY)

    @cached_property
    def _signature(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.run).parameters

    @cached_property
    def _defaults(self) -> Mapping[str, Any]:
        entries = self._signature.items()
        return {name: entry.default for name, entry in entries if entry.default is not entry.empty}

    def filled(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters, with the definition's defaults where none is given."""
        return {**self._defaults, **params}

    def fault(self, params: Mapping[str, Any], outs: Sequence[SlotOperand], ins: Sequence[SlotOperand]) -> str | None:
        """Return the fault of the parameters or the operands, in one line; None if there is none."""
        return self._wrong_params(params) or self._wrong_operands(params, outs, ins)

    def _wrong_params(self, params: Mapping[str, Any]) -> str | None:
        known = {name: entry for name, entry in self._signature.items() if entry.kind is entry.KEYWORD_ONLY}
        takes = f"{self.name} takes {', '.join(known) or 'none; keyword-only ones are parameters'}"
        if unknown := sorted(set(params) - set(known)):
            return f"{self.name} has no parameter {unknown[0]!r}; {takes}"
        if missing := [name for name, entry in known.items() if entry.default is entry.empty and name not in params]:
            return f"{self.name} lacks its parameter {missing[0]!r}; {takes}"
        for name, value in params.items():
            kind = known[name].annotation  # a text where annotations are not evaluated
            kind = kind.__name__ if isinstance(kind, type) else kind
            if kind in _KINDS and not _is(value, kind):
                return f"{self.name}: {name} = {shown(value)} must be {_WANTED[kind]}"
        return None

    def _wrong_operands(
        self, params: Mapping[str, Any], outs: Sequence[SlotOperand], ins: Sequence[SlotOperand]
    ) -> str | None:
        expected = len(self.operands) - self.outs
        if (len(outs), len(ins)) != (self.outs, expected):
            names = f"{', '.join(self.operands[: self.outs])} of {', '.join(self.operands[self.outs :])}"
            return (
                f"{self.name} writes {self.outs} and reads {expected} slots ({names}), not {len(outs)} and {len(ins)}"
                + "; its definition says how many it writes, as local_op(outs=2)" * self.own
            )
        if self.own and (wrong := self._wrong_functions(params)):
            return f"{self.name}: {wrong}"
        tiles, done = self.tiles(**params), self.work(**params)
        if not _are_counts([size for dims in tiles for size in dims]) or len(tiles) != len(self.operands):
            return f"{self.name}: `tiles` returns {shown(tiles)}; give whole sizes for {', '.join(self.operands)}"
        if not isinstance(done, tuple | list) or len(done) != 2 or not _are_counts(done):
            return f"{self.name}: `work` returns {shown(done)}; give multiply-adds and other operations, at least 0"
        for name, dims, given in zip(self.operands, tiles, (*outs, *ins), strict=True):
            if given.numel < prod(dims) or (given.numel > prod(dims) and not self.partial):
                sizes = ", ".join(f"{key}={value}" for key, value in params.items())
                remedy = "copy the part to a buffer of its own" if given.numel > prod(dims) else "give a larger buffer"
                return (
                    f"{self.name}: operand {name} is {given.slot} with {given.numel} elements, but by {sizes} it is "
                    f"{list(dims)}, {prod(dims)} elements; {remedy}, or other sizes"
                )
            taken = self.dtypes.get(name, TILES)
            if given.dtype not in taken:
                return (
                    f"{self.name}: operand {name} is {given.slot} in {given.dtype}, but it must be in "
                    f"{' or '.join(taken)}"
                )
        return None


def _are_counts(values: Iterable[Any]) -> bool:
    """Return whether all values are finite numbers of at least 0."""
    return all(isinstance(value, Real) and 0 <= float(value) < inf for value in values)


def _is(value: Any, kind: str) -> bool:
    of_kind = isinstance(value, _KINDS[kind]) and isinstance(value, bool) == (kind == "bool")
    if not of_kind or kind not in ("int", "float"):
        return of_kind
    return bool(value >= 0) if kind == "int" else isfinite(value)


MATRIX = tuple(BYTES)  # the dtypes of an operand that may hold stored weights
LOCAL_OPS: dict[str, LocalOp] = {}
_OWN = [0]  # definitions of users


def definitions() -> int:
    """Return the number of definitions by users so far; results kept by the names of operations hold for one number."""
    return _OWN[0]


def local_op(
    run: object = None, /, *, tiles: Tiles | None = None, work: Work | None = None, outs: int = 1,
    elementwise: bool = False, partial: bool = False,
    reads: Mapping[str, Callable[..., int]] | None = None,
    product: Callable[..., tuple[int, int, int, int]] | None = None,
    dtypes: Mapping[str, Sequence[str]] | None = None, updates: Sequence[str] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:  # fmt: skip
    """Register the decorated torch function as the local operation of its name (without the suffix `_torch`).

    Its positional parameters are the operands, outputs first, its keywords the parameters; the rest as in `LocalOp`.
    Raises ScheduleError without `tiles` or `work`, for other `outs` than operands, and if another module has an
    operation of that name. An operation outside of this package raises it when it writes into an input.
    """
    if run is not None or tiles is None or work is None:
        raise ScheduleError("@local_op: `tiles` and `work` missing; write @local_op(tiles=..., work=...)")
    read = {} if reads is None else reads
    taken = {} if dtypes is None else dtypes

    def register(run: Callable[..., None]) -> Callable[..., None]:
        name = run.__name__.removesuffix("_torch")
        known = LOCAL_OPS.get(name)
        if known is not None and (known.run.__module__, known.run.__qualname__) != (run.__module__, run.__qualname__):
            raise ScheduleError(
                f"local operation {name!r} exists already, in {known.run.__module__}; give the function another name"
            )
        made = LocalOp(name, run, tiles, work, outs, elementwise, read, product, partial, taken, updates=updates)
        if type(outs) is not int or not 1 <= outs <= len(made.operands):
            raise ScheduleError(
                f"local operation {name!r}: outs = {shown(outs)} must be the number of operands that it writes, of "
                f"{', '.join(made.operands) or 'none'}"
            )
        if not run.__module__.startswith("wafer_triton."):
            if wrong := made.wrong_names():
                raise ScheduleError(f"local operation {name!r}: {wrong}")
            made = replace(made, run=_guarded(made), own=True)
            _OWN[0] += 1
        LOCAL_OPS[name] = made
        return run

    return register


def _guarded(op: LocalOp) -> Callable[..., None]:
    """Return the definition of an operation, which raises ScheduleError where it writes an input, or no output.

    Torch counts all writes but those through numpy or `data`, so values are compared at the first call of each shape.
    An input that lies where an output does is a copy. Outputs that the operation does not update are NaN before.
    """
    compared: set[tuple[Any, ...]] = set()

    @wraps(op.run)
    def run(*tiles: Tensor, **params: Any) -> None:
        outs = tiles[: op.outs]
        places = [(tile.data_ptr(), tile.shape) for tile in outs]
        ins = [  # each with a count of writes of its own, from 0
            tile.clone() if (tile.data_ptr(), tile.shape) in places else tile.data for tile in tiles[op.outs :]
        ]
        op.clear(outs, params)
        shapes = tuple(tile.shape for tile in ins)
        values = [None if shapes in compared else tile.clone() for tile in ins]
        before = [tile._version for tile in outs]
        result: object = op.run(*outs, *ins, **params)  # type: ignore[func-returns-value]
        if result is not None and [tile._version for tile in outs] == before:
            raise ScheduleError(
                f"local operation {op.name!r} returns {article(type(result).__name__)} and writes no output; write it "
                f"into {op.operands[0]}, as {op.operands[0]}.copy_(...)"
            )
        if [(tile.data_ptr(), tile.shape) for tile in outs] != places:
            raise ScheduleError(f"local operation {op.name!r} resizes or replaces an output; write into it by copy_")
        for name, tile, was in zip(op.operands[op.outs :], ins, values, strict=True):
            if tile._version or (was is not None and not _same(was, tile)):
                raise ScheduleError(
                    f"local operation {op.name!r} writes into its input {name}, which it may only read; compute on a "
                    f"copy, {name}.clone()"
                )
        compared.add(shapes)

    return run


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same values, NaN where the other has NaN."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def find(name: str) -> LocalOp:
    """Return the registered local operation `name`; ScheduleError with the known names otherwise."""
    if name not in LOCAL_OPS:
        raise ScheduleError(f"local operation {shown(name)} is not registered; known: {', '.join(sorted(LOCAL_OPS))}")
    return LOCAL_OPS[name]


def cut(tile: Tensor, *dims: int) -> Tensor:
    """Return a view of a flat tile [..., numel] as [..., *dims]."""
    return tile.view(*tile.shape[:-1], *dims)  # quicker than `unflatten`
