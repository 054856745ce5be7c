"""A substitute for `torch` with shapes only, for checking models without importing torch.

    checker  -> install()           before our first module that imports torch
    checker  -> family.build()      the modules that serve, with parameters of shapes only
    anything that needs numbers raises NeedsTorch: then torch itself is used

Importing torch takes more than a second of CPU. Whether a checkpoint has its model's tensors, and
how much memory they take, follows from shapes, which the modules' own constructors give: there is
no second description of a family. Values computed on the way (rotary frequencies) become a
`Computed`, which cannot be read.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

AMD_DRIVER = Path("/dev/kfd")


class NeedsTorch(BaseException):
    """Shapes are not enough. A BaseException, so that no `except Exception` turns it into a model
    error."""


class DType:
    def __init__(self, name: str, itemsize: int) -> None:
        self.name = name
        self.itemsize = itemsize

    def __repr__(self) -> str:
        return f"torch.{self.name}"


DTYPES = {
    name: DType(name, itemsize)
    for name, itemsize in (
        ("float64", 8), ("float32", 4), ("float16", 2), ("bfloat16", 2), ("float8_e4m3fn", 1),
        ("complex128", 16), ("int64", 8), ("int32", 4), ("int16", 2), ("int8", 1), ("uint8", 1),
        ("bool", 1),
    )
}  # fmt: skip

COMPUTING = ("arange", "ones", "tensor", "where")
"""Functions that module constructors compute with."""


class Device:
    def __init__(self, name: str) -> None:
        self.type = name.partition(":")[0]


class Tensor:
    """A tensor without memory."""

    def __init__(self, shape: tuple[int, ...], dtype: DType, device: Device) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = device

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return prod(self.shape)


class Parameter(Tensor):
    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        super().__init__(data.shape, data.dtype, data.device)


class Computed:
    """A computed value without content; results of operations on it are Computed, too."""

    def __getattr__(self, name: str) -> Computed:
        if name.startswith("__"):  # other attributes do not exist
            raise AttributeError(name)
        return self

    def _computed(self, *_: object, **__: object) -> Computed:
        return self

    __call__ = __getitem__ = __neg__ = _computed
    __add__ = __sub__ = __mul__ = __truediv__ = __pow__ = __matmul__ = _computed
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rpow__ = _computed
    __lt__ = __gt__ = __le__ = __ge__ = _computed

    def _unknown(self, *_: object) -> NoReturn:
        raise NeedsTorch("a number")

    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = _unknown


class Unknown:
    """A name of torch that this substitute lacks: modules may refer to it, but not use it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise NeedsTorch(self.name)

    def __getattr__(self, name: str) -> Unknown:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(f"{self.name}.{name}")


class Module:
    """Its parameters and submodules are its attributes, in the order of first assignment."""

    def named_children(self) -> Iterator[tuple[str, Module]]:
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value

    def children(self) -> Iterator[Module]:
        return (child for _, child in self.named_children())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        yield prefix, self
        for name, child in self.named_children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        return (module for _, module in self.named_modules())

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Each once, under its first name."""
        seen: set[int] = set()
        for prefix, module in self.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, Parameter) and id(value) not in seen:
                    seen.add(id(value))
                    yield f"{prefix}.{name}" if prefix else name, value

    def parameters(self) -> Iterator[Parameter]:
        return (parameter for _, parameter in self.named_parameters())

    def get_submodule(self, target: str) -> Module:
        found = self
        for name in filter(None, target.split(".")):
            found = vars(found)[name]
        return found

    def register_buffer(self, name: str, value: object, persistent: bool = True) -> None:
        setattr(self, name, value)


class ModuleList(Module):
    def __init__(self, modules: Iterable[Module] = ()) -> None:
        for number, module in enumerate(modules):
            self[number] = module

    def __len__(self) -> int:
        return len(vars(self))

    def __iter__(self) -> Iterator[Module]:
        return iter(tuple(vars(self).values()))

    def __getitem__(self, number: int) -> Module:
        return tuple(self)[number]

    def __setitem__(self, number: int, module: Module) -> None:
        setattr(self, str(number), module)


def empty(
    *sizes: int | tuple[int, ...], dtype: DType = DTYPES["float32"], device: str = "cpu"
) -> Tensor:
    shape: tuple[int, ...] = ()
    for size in sizes:
        shape += size if isinstance(size, tuple) else (size,)
    return Tensor(shape, dtype, Device(device))


def inference_mode() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda function: function


def is_available() -> bool:
    """A driver of GPUs is for torch to ask."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        if not AMD_DRIVER.exists():
            return False
    raise NeedsTorch("a driver of GPUs is here")


class _Module(ModuleType):
    """A module of torch; what is not in it is unknown."""

    def __init__(self, name: str, **names: object) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        vars(self).update(names)

    def __getattr__(self, name: str) -> Unknown:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(f"{self.__name__}.{name}")


def install() -> None:
    """Torch is this from now on, in the whole process. It must not have been imported."""
    assert "torch" not in sys.modules, "it is there already, and costs nothing more"
    functional = _Module("torch.nn.functional")
    nn = _Module(
        "torch.nn",
        Module=Module, ModuleList=ModuleList, Parameter=Parameter, functional=functional,
    )  # fmt: skip
    cuda = _Module("torch.cuda", is_available=is_available)
    distributed = _Module("torch.distributed")
    reductions = _Module("torch.multiprocessing.reductions")
    multiprocessing = _Module("torch.multiprocessing", reductions=reductions)
    torch = _Module(
        "torch",
        **DTYPES,
        **dict.fromkeys(COMPUTING, Computed()),
        Tensor=Tensor, device=Device, dtype=DType, empty=empty, inference_mode=inference_mode,
        nn=nn, cuda=cuda, distributed=distributed, multiprocessing=multiprocessing,
    )  # fmt: skip
    every = (torch, nn, functional, cuda, distributed, multiprocessing, reductions)
    sys.modules.update({module.__name__: module for module in every})
