"""Triton's interpreter without its greatest cost: it patches `triton.language` anew for every function that a kernel
calls, which takes half of a launch, although the launch has patched it already."""

from functools import cache
from types import ModuleType, SimpleNamespace

import triton.language as tl
from triton.runtime import interpreter


def patch_once_a_launch() -> None:
    """Have the interpreter patch a language only while it is not patched; the values that kernels compute stay."""
    patch = interpreter._patch_lang
    nothing = SimpleNamespace(restore=lambda: None)  # the scope of a patch that changed nothing

    @cache
    def languages(function) -> tuple[ModuleType, ...]:
        return tuple(value for value in function.__globals__.values() if value is tl or value is tl.core)

    def patch_if_needed(function):
        fresh = any(tl.core.is_builtin(language.load) for language in languages(function))
        return patch(function) if fresh else nothing

    interpreter._patch_lang = patch_if_needed
