"""Which kernels passes launch, as a GPU would have to have compiled them: found without one.

    with launched() as kernels:     where TRITON_INTERPRET=0; CPU tensors that say they are on a GPU
        runner.forward(...)         nothing runs, so what comes out means nothing
    kernels                         (name, what each argument is specialised to) ...

Triton compiles a kernel anew for other constants, for integers that are 1 or that 16 divides where
those before were not, for memory that begins elsewhere: seconds, in which all requests wait.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import triton
from tests.kernels.gpu.pretended_gpu import tensors_on_a_gpu
from triton.backends.compiler import BaseBackend
from triton.runtime.jit import native_specialize_impl

Kernel = tuple[str, tuple[tuple[str, str], ...]]


@contextmanager
def launched() -> Iterator[set[Kernel]]:
    found: set[Kernel] = set()

    def note(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        found.add(
            (f"{kernel.fn.__module__}.{kernel.fn.__name__}", _specialised(kernel, args, kwargs))
        )

    with (
        mock.patch.object(triton.runtime.jit.JITFunction, "run", note),
        tensors_on_a_gpu(),
    ):
        yield found


def _specialised(
    kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[str, str], ...]:
    names = set(kernel.arg_names)
    bound = inspect.signature(kernel.fn).bind(
        *args, **{name: value for name, value in kwargs.items() if name in names}
    )
    options = [(name, str(value)) for name, value in kwargs.items() if name not in names]
    of_arguments = [
        (parameter.name, str(_key(parameter, value)))
        for parameter, value in zip(kernel.params, bound.arguments.values(), strict=True)
    ]
    return (*of_arguments, *options)


def _key(parameter: Any, value: Any) -> object:
    if parameter.is_constexpr:
        return value
    return native_specialize_impl(
        BaseBackend,
        value,
        parameter.is_const,
        not parameter.do_not_specialize,
        not parameter.do_not_specialize_on_alignment,
    )
