"""The command line of a benchmark."""

from __future__ import annotations

import argparse
import sys


def benchmark_parser(docstring: str | None) -> argparse.ArgumentParser:
    """A parser that shows the docstring of the benchmark as its help, tables included, under the
    name by which it was started."""
    spec = sys.modules["__main__"].__spec__
    return argparse.ArgumentParser(
        prog=f"python -m {spec.name.removesuffix('.__main__')}" if spec else None,
        description=docstring,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
