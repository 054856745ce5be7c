"""Triton's interpreter, which finds once what it replaces in Triton's language, not each time.

A launch replaces some 300 functions of `triton.language`, and each call within it of a function of
ours, or of one like `tl.sum`, would look through all of them again: four fifths of what tests of
attention took. What NumPy calls a dtype it would tabulate for each value anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import ismodule
from types import ModuleType
from typing import Any

Modules = tuple[ModuleType, ...]
Change = tuple[Any, str, Any, Any]
"""Of which thing which attribute, from what to what."""


def quicken() -> None:
    """Safe to repeat."""
    from triton.runtime import interpreter

    if not isinstance(interpreter._patch_lang, _Replacements):
        interpreter._patch_lang = _Replacements(interpreter._patch_lang, interpreter._MISSING)
        interpreter._get_np_dtype = _tabulated(interpreter._get_np_dtype)


def _tabulated(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """By what a block is of, which all that is no pointer has a hash for."""
    import triton.language as tl

    by_scalar = cache(find)

    def found(dtype: Any) -> Any:
        item = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
        return find(item) if isinstance(item, tl.pointer_type) else by_scalar(item)

    return found


class _Nothing:
    def restore(self) -> None:
        """Whoever replaced nothing puts nothing back."""


class _Replacements:
    """Stands for `_patch_lang`, by which it finds them. What it returns puts them back."""

    def __init__(self, find: Callable[[Any], Any], missing: object) -> None:
        import triton.language as tl

        self._find, self._missing, self._language = find, missing, (tl, tl.core)
        self._modules: dict[Any, Modules] = {}
        """By function: the modules of the language that it sees."""
        self._changes: dict[tuple[Modules, ...], list[Change]] = {}
        """By the modules seen so far in a launch: what is replaced because of the last."""
        self._in_place: tuple[Modules, ...] = ()

    def __call__(self, function: Any) -> _Replacements | _Nothing:
        seen = self._seen_by(function)
        if seen in self._in_place:
            return _Nothing()
        is_launch, so_far = not self._in_place, (*self._in_place, seen)
        if so_far in self._changes:
            for thing, name, _, new in self._changes[so_far]:
                setattr(thing, name, new)
        else:
            self._changes[so_far] = [
                (thing, name, old, getattr(thing, name))
                for thing, name, old in self._find(function)._changes
            ]
        self._in_place = so_far
        return self if is_launch else _Nothing()

    def restore(self) -> None:
        """Undo all that was replaced since the launch began, the last first."""
        while self._in_place:
            for thing, name, old, _ in reversed(self._changes[self._in_place]):
                if old is self._missing:
                    delattr(thing, name)
                else:
                    setattr(thing, name, old)
            self._in_place = self._in_place[:-1]

    def _seen_by(self, function: Any) -> Modules:
        if function not in self._modules:
            values = [value for value in function.__globals__.values() if ismodule(value)]
            found = tuple(each for each in self._language if each in values)
            self._modules[function] = found
        return self._modules[function]
