"""Build the operators ahead of time, for images that have no compiler when they run.

python -m baton.kernels.cpu                    for this CPU
python -m baton.kernels.cpu x86-64-v3 x86-64   for kinds of CPU; the best that runs is used
python -m baton.kernels.cpu all
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from baton.kernels.cpu.build import NATIVE, build, targets
from baton.kernels.cpu.library import cache_folder, compiler_name, find_compiler, reason


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m baton.kernels.cpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("targets", nargs="*", choices=(*targets(), "all"), default=NATIVE)
    chosen = parser.parse_args().targets
    wanted = targets() if "all" in chosen else [chosen] if chosen == NATIVE else chosen
    compiler, folder = find_compiler(), cache_folder()
    if compiler is None:
        print(f"no C++ compiler ({compiler_name()}): install g++, or set CXX", file=sys.stderr)
        return 1
    for target in wanted:
        started = time.monotonic()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = build(folder, target, compiler)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{target}: {reason(error)}", file=sys.stderr)
            return 1
        print(f"{target:16} {time.monotonic() - started:5.1f} s   {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
