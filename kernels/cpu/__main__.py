"""Builds the operators ahead of time, for `make serve`, images and wheels.

python -m baton.kernels.cpu                    for this CPU
python -m baton.kernels.cpu x86-64-v3 x86-64   for kinds of CPU; the best that runs is used
python -m baton.kernels.cpu all                all of them, or `portable`: all but this CPU's own
python -m baton.kernels.cpu --if-possible      not an error if there is no compiler, or it fails
python -m baton.kernels.cpu --into FOLDER ...  instead of the cache, as for a wheel
CXX=aarch64-linux-gnu-g++ python -m baton.kernels.cpu --into FOLDER armv8-a
                                               for another machine, with a cross-compiler
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

from baton.kernels.cpu.build import NATIVE, build, other_targets, targets
from baton.kernels.cpu.library import cache_folder, compiler_name, find_compiler, reason
from baton.kernels.cpu.progress import progress_on

SEVERAL = {"all": targets(), "portable": targets()[1:]}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m baton.kernels.cpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    kinds = (*targets(), *SEVERAL, *other_targets())
    parser.add_argument("targets", nargs="*", choices=kinds, default=NATIVE)
    parser.add_argument("--if-possible", action="store_true")
    parser.add_argument("--into", type=Path, default=cache_folder())
    options = parser.parse_args()
    chosen = options.targets
    wanted = (
        [NATIVE] if chosen == NATIVE else chain(*(SEVERAL.get(name, (name,)) for name in chosen))
    )
    compiler, folder = find_compiler(), options.into
    if compiler is None:
        missing = f"no C++ compiler ({compiler_name()}): install g++, or set CXX"
        slower = "; without one kernels are torch's, and slower" if options.if_possible else ""
        print(f"{missing}{slower}", file=sys.stderr)
        return 0 if options.if_possible else 1
    for target in wanted:
        started = time.monotonic()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = build(folder, target, compiler, progress_on(sys.stderr))
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{target}: {reason(error)}", file=sys.stderr)
            return 0 if options.if_possible else 1
        print(f"{target:16} {time.monotonic() - started:5.1f} s   {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
