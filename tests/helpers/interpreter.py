"""Triton's interpreter without its greatest costs, none of which touches the values that kernels compute.

Triton's interpreter patches `triton.language` anew for every function that a kernel calls, although the launch has
patched it already. It checks every sum of integers for overflow, by the same sum in 64 bits. To look up a dtype it
makes a table of dtypes, and for every tensor a new type and a new shape. It converts operands that are of one type
already. It asks every operand whether it is a list. This file saves these costs.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


def lighten() -> None:
    """Patch Triton's interpreter so that costly steps run once, or never."""
    _patch_once()
    _share_types()
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter.interpreter_semantic = Semantic(builder)
    look_up, known = interpreter._get_np_dtype, dict[str, np.dtype]()

    def dtype_of(of: tl.dtype) -> np.dtype:
        name = of.scalar.name
        if name not in known:
            known[name] = look_up(of)
        return known[name]

    interpreter._get_np_dtype = dtype_of
    convert = interpreter._convert_float

    def convert_float(numbers: np.ndarray, of: tl.dtype, to: tl.dtype, rounding: Any) -> np.ndarray:
        """Take bf16 as the upper half of fp32, which it is."""
        if rounding is None and (of, to) == (tl.bfloat16, tl.float32):
            return numbers.view(np.uint16).astype(np.uint32) << 16
        if rounding is None and (of, to) == (tl.float32, tl.bfloat16):
            return (np.ascontiguousarray(numbers).view(np.uint32) >> 16).astype(np.uint16)
        return convert(numbers, of, to, rounding)

    interpreter._convert_float = convert_float
    unwrap, plain = core._unwrap_if_constexpr, (core.tensor, type(None), tl.dtype)
    core._unwrap_if_constexpr = lambda value: value if type(value) in plain else unwrap(value)
    interpreter.TensorHandle.__post_init__ = lambda self: None  # which compares bits of numpy's dtype and of Triton's


class Semantic(TritonSemantic):
    """Skips work that the interpreter repeats in each operation: numpy broadcasts operands that have one type.

    A Python number's tensor of a type is made once, and reused.
    """

    def binary_op_type_checking_impl(self, lhs: Any, rhs: Any, *rules: bool) -> tuple[Any, Any]:
        tensors = isinstance(lhs, tl.tensor), isinstance(rhs, tl.tensor)
        if tensors[0] == tensors[1]:
            # a third rule is of division
            alike = tensors[0] and lhs.dtype is rhs.dtype and len(rules) < 3 and not lhs.dtype.is_ptr()
            if alike:
                return (lhs, rhs) if lhs.type is rhs.type else self.broadcast_impl_value(lhs, rhs)
            return super().binary_op_type_checking_impl(lhs, rhs, *rules)
        tensor, number = (lhs, rhs) if tensors[0] else (rhs, lhs)
        known = vars(tensor.type).setdefault("numbers", {})
        key = type(number), number, rules, tensors[0]
        if key in known:
            return (lhs, known[key]) if tensors[0] else (known[key], rhs)
        found = super().binary_op_type_checking_impl(lhs, rhs, *rules)
        if found[1 - tensors[0]] is tensor:
            known[key] = found[tensors[0]]
        return found

    def broadcast_impl_value(self, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        if not (lhs.type.is_block() or rhs.type.is_block()):
            return lhs, rhs
        shape = np.broadcast(lhs.handle.data, rhs.handle.data).shape
        return self._spread(lhs, shape), self._spread(rhs, shape)

    def _spread(self, of: Any, shape: tuple[int, ...]) -> Any:
        if of.handle.data.shape == shape and of.type.is_block():
            return of
        data = np.empty(shape, of.handle.data.dtype)
        data[...] = of.handle.data  # sooner than `np.broadcast_to` makes a view of small blocks
        return self.tensor(interpreter.TensorHandle(data, of.dtype), core.block_type(of.dtype, shape))


def _share_types() -> None:
    """Make one type for all blocks of an element type and a shape, with the attributes that all such tensors share."""
    block, tensor, begin = core.block_type, core.tensor, core.block_type.__init__

    def type_of(cls: type, element_ty: tl.dtype, shape: Sequence) -> Any:
        sizes, known = tuple(shape), vars(element_ty).setdefault("blocks", {})
        if sizes not in known:
            made = object.__new__(cls)
            begin(made, element_ty, list(sizes))  # which refuses some
            known[sizes] = made
        return known[sizes]

    def make(self: Any, handle: Any, type: tl.dtype) -> None:
        told = vars(type).get("told")
        if told is None:
            shape = type.shape.values if type.is_block() else ()
            constants = core.tuple([tl.constexpr(size) for size in shape])
            told = type.told = tl.constexpr(math.prod(shape)), type.scalar, constants
        self.handle, self.type = handle, type
        self.numel, self.dtype, self.shape = told

    block.__new__, block.__init__, tensor.__init__ = type_of, lambda *_: None, make
    item = core.tuple.__getitem__
    core.tuple.__getitem__ = lambda self, at: self.values[at] if isinstance(at, int) else item(self, at)


def _patch_once() -> None:
    """Patch a language only while it is not patched, and by the patch that was made for it once."""
    patch = interpreter._patch_lang
    nothing = SimpleNamespace(restore=lambda: None)  # the scope of a patch that changed nothing

    @cache
    def languages(function: Callable) -> tuple[ModuleType, ...]:
        return tuple(value for value in function.__globals__.values() if value is tl or value is tl.core)

    def patch_if_needed(function: Callable) -> Any:
        fresh = any(tl.core.is_builtin(language.load) for language in languages(function))
        return patch(function) if fresh else nothing

    @cache
    def interpreted(package: Any) -> dict[str, Callable]:
        found = inspect.getmembers(package, core.is_builtin)
        return {name: _with_semantic(getattr(member, "__wrapped__", member)) for name, member in found}

    def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        for name, member in interpreted(package).items():
            scope.set_attr(package, name, member)

    interpreter._patch_lang, interpreter._patch_builtin = patch_if_needed, patch_builtin


def _with_semantic(member: Callable) -> Callable:
    """Return a function of the language, as the interpreter calls it."""

    def call(*args: Any, **options: Any) -> Any:
        options["_semantic"] = interpreter.interpreter_semantic
        return member(*args, **options)

    return call
