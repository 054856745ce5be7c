"""Finds the compiled operators, or builds them if there is a compiler.

    built for this CPU before?    in the cache
    from a wheel?                 in PREBUILT: the best target that this CPU can run
    a compiler?                   build it, once
    built for its kind before?    in the cache: if there is no compiler, or it fails
    none

So an installed wheel compiles nothing, and a clone compiles once. A library is named after its
sources; a library of other sources is never used. Compilers that do not start, unreadable caches
and libraries that cannot be loaded are skipped. Without any library, or with
BATON_CPU_KERNELS=torch, every public kernel computes with torch instead: the same mathematics, but
slower. BATON_CPU_KERNELS=vectors disables the matrix tiles of the CPU (matrix_tiles.py), and the
name of a target in build.PORTABLE selects only libraries of that target, as for a fleet of
different CPUs that share KV.

`python -m baton.kernels.cpu` builds ahead of time, for this CPU (also if a wheel has a library) or
for images.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from baton.core.home import home
from baton.core.wording import count_of
from baton.kernels.cpu import build
from baton.kernels.cpu.matrix_tiles import (
    KERNELS,
    WITHOUT_TILES,
    Tiles,
    choose_tiles,
    tiles_in_use,
)
from baton.kernels.cpu.progress import EVERY_S, BuildProgress

PREBUILT = Path(__file__).parent / "prebuilt"
"""The libraries of a wheel (see hatch_build.py); missing elsewhere."""
CPU_SECONDS = 57
"""Approximate CPU time of a build."""

logger = logging.getLogger(__name__)


@cache
def library() -> ctypes.CDLL | None:
    """The operators for this machine; None, with one log message, if there are none."""
    import torch  # noqa: F401  # first: what it links is then found, and not loaded a second time

    if os.environ.get(KERNELS) == "torch":
        logger.info("BATON_CPU_KERNELS=torch: kernels on the CPU are torch's")
        return None
    try:
        found = find_or_build(cache_folder(), find_compiler())
    except (OSError, subprocess.CalledProcessError) as error:
        logger.warning("kernels on the CPU are torch's, and slower: %s", reason(error))
        return None
    if found is not None:
        choose_tiles(found)
    return found


def order_of_sums(*, is_bfloat16: bool) -> str:
    """How sums on this CPU differ from those of AVX2 and AVX-512 on x86-64, as part of a
    fingerprint; empty if they do not."""
    found = library()
    if found is None:
        return "torch"
    found.baton_order_of_sums.restype = ctypes.c_char_p
    order: bytes = found.baton_order_of_sums(int(is_bfloat16))
    by_tiles = is_bfloat16 and tiles_in_use() is not Tiles.NONE
    tiles = "AMX tiles" if by_tiles else ""  # "tiles" was the word when attention did without
    return " and ".join(filter(None, (order.decode(), tiles)))


def library_without_torch() -> ctypes.CDLL | None:
    """The part of the library that needs no tensors; None if no library exists yet.

    It does not import torch, compile or wait.
    """
    found = _found()
    if found is None and library.cache_info().currsize:  # it was built meanwhile
        return library()
    return found


@cache
def _found() -> ctypes.CDLL | None:
    if os.environ.get(KERNELS) == "torch":
        return None
    try:
        folder, supported = cache_folder(), _targets()
        return _load_best(folder, supported, None) or _load(folder, supported[1:], None)
    except OSError as error:
        logger.warning("the library of this CPU cannot be read: %s", error)
        return None


def find_or_build(folder: Path, compiler: build.Command | None) -> ctypes.CDLL | None:
    """Raises OSError or CalledProcessError if the compiler builds none and none is there."""
    supported = _targets()
    try:
        found = _load_best(folder, supported, compiler)
        if found is not None or compiler is None:
            return found or _load_of_kind(folder, supported)
        return _build(folder, supported[0], compiler)
    except (OSError, subprocess.CalledProcessError) as error:
        found = _load_best(folder, supported, None) or _load(folder, supported[1:], None)
        if found is None:
            raise
        logger.warning("kernels on the CPU did not build, others do: %s", reason(error))
        return found


def _targets() -> tuple[str, ...]:
    """The target to build first, then targets to use instead, the best first."""
    supported, named = build.supported_targets(), os.environ.get(KERNELS, "")
    if named in supported[1:]:
        return (named, named)
    if named not in ("", "torch", WITHOUT_TILES):
        known = ", ".join(("torch", WITHOUT_TILES, *supported[1:]))
        logger.warning("%s=%s is passed over: on this CPU it may be %s", KERNELS, named, known)
    return supported


def _load_best(
    folder: Path, supported: Sequence[str], compiler: build.Command | None
) -> ctypes.CDLL | None:
    """The library that was built for this CPU, or else one of a wheel."""
    return _load(folder, supported[:1], compiler) or _load(PREBUILT, supported[1:], None)


def _load_of_kind(folder: Path, supported: Sequence[str]) -> ctypes.CDLL | None:
    """A library that was built here before; the log says if there is none."""
    found = _load(folder, supported[1:], None)
    if found is None:
        logger.warning(
            "no C++ compiler (%s), and no operators for this CPU in %s: kernels are torch's, "
            "and slower",
            compiler_name(),
            folder,
        )
    return found


def compiler_name() -> str:
    return os.environ.get("CXX", "").strip() or "g++"


def find_compiler() -> build.Command | None:
    """The compiler. CXX may have several words, such as `ccache g++`; the first must be a
    program."""
    program, *more = shlex.split(compiler_name())
    path = shutil.which(program)
    return None if path is None else (path, *more)


def cache_folder() -> Path:
    """The folder of libraries; it may not exist."""
    base = os.environ.get("BATON_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or home() / ".cache", "baton"
    )
    return Path(base) / "kernels"


def _load(
    folder: Path, targets: Sequence[str], compiler: build.Command | None
) -> ctypes.CDLL | None:
    for target in targets:
        for path in build.find(folder, target, compiler):
            if build.is_whole(path):
                try:
                    found = ctypes.CDLL(str(path))
                except OSError as error:  # such as of a folder that nothing may be run from
                    logger.warning("%s cannot be loaded: %s", path, error)
                else:
                    logger.info("kernels on the CPU: %s, built for %s", path, target)
                    return found
            elif os.path.lexists(path):
                logger.warning("%s is damaged, or cannot be read: it is not used", path)
    return None


def _build(folder: Path, target: str, compiler: build.Command) -> ctypes.CDLL:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_kept = os.access(folder, os.W_OK)
    except OSError:
        is_kept = False
    logger.warning(
        "kernels for this CPU are compiled, once: %s, about %d s on %s",
        count_of(build.num_sources(), "source"),
        CPU_SECONDS // build.num_threads(),
        count_of(build.num_threads(), "core"),
    )
    report = BuildProgress(logger.info, every_s=EVERY_S)
    if is_kept:
        path = build.build(folder, target, compiler, report)
        logger.info("kernels on the CPU were built: %s", path)
        return ctypes.CDLL(str(path))
    logger.warning("%s cannot be written: kernels are built for this process alone", folder)
    with tempfile.TemporaryDirectory() as temporary:  # what is loaded needs no name any more
        return ctypes.CDLL(str(build.build(Path(temporary), target, compiler, report)))


def reason(error: OSError | subprocess.CalledProcessError) -> str:
    said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else ""
    return (said or str(error))[-2000:]
