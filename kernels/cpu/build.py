"""Builds the compiled operators, and names the libraries.

    sources + flags + target + compiler --name--> CACHE/<name>.so        built once a machine

A target is the CPU of this machine (`native`) or one of several kinds of CPU, for images and wheels
that must run on more than one. A build runs one compiler per source, as many at a time as this
process may use cores, the longest first. The headers that nearly all sources include are
precompiled.

A build copies the sources first, and the library is named after that copy: if an editor or a `git
checkout` changes the sources meanwhile, the next process builds another library. Processes that
start together build one after the other, so that the second finds the library of the first. A file
is written under another name and renamed; a checksum at its end shows whether a library or object
is complete.
"""

from __future__ import annotations

import fcntl
import math
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from hashlib import blake2b
from itertools import chain
from pathlib import Path

from baton.core.cores import usable_cores

SOURCES = Path(__file__).parent / "source"
"""One folder per family of operators. No two files have the same name, so that `#include "x.h"` is
unambiguous."""
FLAGS = (
    "-O3",
    "-std=c++20",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",  # one row must give the same bits in every loop it is computed by
    "-Wall",
    "-Wno-psabi",
)
Command = tuple[str, ...]
"""A compiler: its program and first arguments."""
Report = Callable[[int, int], None]
"""Called with the number of compiled sources and of all sources, at the start and about once a
second."""
NATIVE = "native"
BEGINNING: Mapping[str, str] = {
    **dict.fromkeys(("algorithm", "atomic", "bit", "cmath", "cstring", "limits", "vector"), "1"),
    "immintrin.h": "defined(__x86_64__)",
    "arm_neon.h": "defined(__aarch64__)",
}
"""Headers that nearly all sources include, with the condition of machines that have them."""
FEW_SOURCES = 4
"""With at most this many sources the headers are not precompiled, as that would take longer."""
LONGEST = (
    "attention_products",
    "int4_attention",
    "compressed_attention",
    "paged_attention",
    "moe",
)
"""Sources that take longest to compile, and are begun first; otherwise one core would finish late,
alone."""
REPORT_S = 1.0
DIGEST_BYTES = 12

_V3 = ("avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_ARM_V82 = ("asimd", "asimddp", "asimdrdm", "atomics", "crc32")
PORTABLE: Mapping[str, Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "x86_64": {
        "x86-64-v4-bf16": (
            ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"),
            (*_V4, "avx512_bf16", "avx512_vnni"),
        ),
        "x86-64-v4": (("-march=x86-64-v4",), _V4),
        "x86-64-v3": (("-march=x86-64-v3",), _V3),
        "x86-64": (("-march=x86-64",), ()),
    },
    "aarch64": {
        "armv8.2-a-bf16": (("-march=armv8.2-a+dotprod+bf16+i8mm",), (*_ARM_V82, "bf16", "i8mm")),
        "armv8.2-a": (("-march=armv8.2-a+dotprod",), _ARM_V82),
        "armv8-a": (("-march=armv8-a",), ()),
    },
}
"""Compiler flags and required CPU features, by machine and target, the best first. No two machines
have a target of the same name."""


def targets() -> tuple[str, ...]:
    """Targets that can be built for this kind of machine."""
    return (NATIVE, *PORTABLE.get(platform.machine(), {}))


def other_targets() -> tuple[str, ...]:
    """Targets that can be built for other machines with a cross-compiler."""
    others = (kinds for machine, kinds in PORTABLE.items() if machine != platform.machine())
    return tuple(chain(*others))


def supported_targets() -> tuple[str, ...]:
    """Targets that run on this CPU, the best first."""
    return (NATIVE, *kinds_of(platform.machine(), _cpu_flags().split()))


def kinds_of(machine: str, cpu_flags: Iterable[str]) -> tuple[str, ...]:
    """Portable targets that run on a CPU with these flags of /proc/cpuinfo, the best first."""
    has, portable = set(cpu_flags), PORTABLE.get(machine, {})
    return tuple(name for name, (_, needs) in portable.items() if has.issuperset(needs))


def find(folder: Path, target: str, compiler: Command | None) -> Iterator[Path]:
    """Paths under which a library of these sources may be found. Without a compiler: built by any
    compiler."""
    if compiler is not None:
        yield folder / _name(target, compiler, SOURCES)
    else:
        with suppress(OSError):  # the folder cannot be read
            yield from sorted(folder.glob(f"baton-{_sources_digest(target, SOURCES)}-*.so"))


def num_sources() -> int:
    """Number of sources of a library."""
    return len(_files(SOURCES, ".cpp"))


def _files(sources: Path, *suffixes: str) -> list[Path]:
    """Source files sorted by name, so that folders do not affect the result."""
    found = [path for path in sources.rglob("*") if path.suffix in suffixes]
    return sorted(found, key=lambda path: path.name)


def _include_flags(sources: Path) -> list[str]:
    return [f"-I{family}" for family in sorted({path.parent for path in _files(sources, ".h")})]


def num_threads() -> int:
    """Number of compilers that run at a time."""
    return max(1, math.ceil(usable_cores()))


def build(folder: Path, target: str, compiler: Command, report: Report) -> Path:
    """Build the library. Raises CalledProcessError or OSError."""
    flags = (*FLAGS, *_target_flags(target))
    made_by = repr((flags, _identity(target), _version(compiler))).encode()
    with _one_at_a_time(folder), _copied(SOURCES) as sources:
        headers = b"".join(header.read_bytes() for header in _files(sources, ".h"))
        object_by_source = {
            source: folder / f"{source.stem}-{_digest(made_by, headers, source.read_bytes())}.o"
            for source in _files(sources, ".cpp")
        }
        library = folder / _name(target, compiler, sources)
        missing = {s: made for s, made in object_by_source.items() if not is_whole(made)}
        _compile((*compiler, *flags, *_include_flags(sources)), missing, report)
        _make(library, *compiler, "-shared", "-pthread", *map(str, object_by_source.values()))
    return library


@contextmanager
def _copied(sources: Path) -> Iterator[Path]:
    """A copy of the sources, which cannot change during compilation. Compiler errors are reported
    with the names of the original files."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / sources.name
        for file in _files(sources, ".cpp", ".h"):  # an editor's own files may be gone by now
            target = copy / file.relative_to(sources)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        try:
            yield copy
        except subprocess.CalledProcessError as error:
            error.stderr = error.stderr.replace(str(copy), str(sources))
            raise


def is_whole(made: Path) -> bool:
    """Whether a file exists, can be read, and matches its checksum."""
    try:
        data = made.read_bytes()
    except OSError:
        return False
    return data[-DIGEST_BYTES:] == _seal(data[:-DIGEST_BYTES])


def _compile(compiler: Command, made_by_source: Mapping[Path, Path], report: Report) -> None:
    """Compile each source into its object. After a failure no further compiler is started."""
    in_order = sorted(made_by_source, key=lambda source: _place(source.stem))
    with ExitStack() as stack:
        if len(in_order) > FEW_SOURCES:
            compiler = (*compiler, "-include", str(stack.enter_context(_read_once(compiler))))
        threads = ThreadPoolExecutor(num_threads())
        stack.callback(threads.shutdown, cancel_futures=True)
        left = {
            threads.submit(_make, made_by_source[source], *compiler, "-c", str(source))
            for source in in_order
        }
        while left:
            report(len(in_order) - len(left), len(in_order))
            done, left = wait(left, REPORT_S, FIRST_EXCEPTION)
            for job in done:
                job.result()
        report(len(in_order), len(in_order))


def _place(source: str) -> tuple[int, str]:
    return (LONGEST.index(source) if source in LONGEST else len(LONGEST), source)


@contextmanager
def _read_once(compiler: Command) -> Iterator[Path]:
    """A precompiled header, as a path to include: compilers find the precompiled form next to
    it."""
    with tempfile.TemporaryDirectory() as folder:
        header = Path(folder) / "beginning.h"
        lines = [f"#if {has}\n#include <{name}>\n#endif\n" for name, has in BEGINNING.items()]
        header.write_text("".join(lines))
        _run(*compiler, "-x", "c++-header", str(header), "-o", f"{header}.gch")
        yield header


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    with (folder / "building").open("w") as file:
        with suppress(OSError):  # not every file system locks: then all of them build
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(made: Path, *command: str) -> None:
    """Run a command that writes a file, and rename the file when it is complete."""
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        unfinished = Path(folder) / made.name
        _run(*command, "-o", str(unfinished))
        unfinished.write_bytes((data := unfinished.read_bytes()) + _seal(data))
        unfinished.rename(made)


def _name(target: str, compiler: Command, sources: Path) -> str:
    return f"baton-{_sources_digest(target, sources)}-{_digest(_version(compiler).encode())}.so"


def _sources_digest(target: str, sources: Path) -> str:
    files = _files(sources, ".cpp", ".h")
    named = [part for file in files for part in (file.name.encode(), file.read_bytes())]
    return _digest(repr((FLAGS, _target_flags(target))).encode(), _identity(target), *named)


def _identity(target: str) -> bytes:
    """Everything besides the flags that determines what a compiler produces for a target."""
    return _cpu_flags().encode() if target == NATIVE else b""


def _target_flags(target: str) -> tuple[str, ...]:
    """On ARM, native means the best portable target: `-march=native` would enable SVE, which has
    not been tested."""
    if target == NATIVE and platform.machine() == "aarch64":
        target = supported_targets()[1]
    if target == NATIVE:
        return ("-march=native",)
    return next(kinds[target][0] for kinds in PORTABLE.values() if target in kinds)


def _digest(*parts: bytes) -> str:
    digest = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _seal(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


@cache
def _version(compiler: Command) -> str:
    return _run(*compiler, "--version")


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@cache
def _cpu_flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
