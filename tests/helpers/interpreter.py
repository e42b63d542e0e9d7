"""Triton's interpreter without its greatest costs, none of which touches the values that kernels compute.

It patches `triton.language` anew for every function that a kernel calls, although the launch has patched it already;
checks every sum of integers for overflow, by the same sum in 64 bits; and makes a table of dtypes to look one up.
"""

from dataclasses import replace
from functools import cache
from types import ModuleType, SimpleNamespace

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def lighten() -> None:
    """Have the interpreter do each of these once, or not at all."""
    _patch_once()
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    look_up, known = interpreter._get_np_dtype, dict[str, np.dtype]()

    def dtype_of(of: tl.dtype) -> np.dtype:
        name = of.scalar.name
        if name not in known:
            known[name] = look_up(of)
        return known[name]

    interpreter._get_np_dtype = dtype_of


def _patch_once() -> None:
    """A language is patched only while it is not patched."""
    patch = interpreter._patch_lang
    nothing = SimpleNamespace(restore=lambda: None)  # the scope of a patch that changed nothing

    @cache
    def languages(function) -> tuple[ModuleType, ...]:
        return tuple(value for value in function.__globals__.values() if value is tl or value is tl.core)

    def patch_if_needed(function):
        fresh = any(tl.core.is_builtin(language.load) for language in languages(function))
        return patch(function) if fresh else nothing

    interpreter._patch_lang = patch_if_needed
