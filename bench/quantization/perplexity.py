"""What quantised checkpoint formats (GPTQ, AWQ and others) cost in quality: perplexity of the demo.

    python -m bench.quantization.perplexity

The demo model is written in each format by bench/quantization/checkpoint_writer.py (rounded to the
nearest, without calibration) and loaded twice: quantised, as on a CPU, and dequantised. The text
windows and all else are those of examples/demo_model/kv_quality.py, in float32.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from baton.engine.checkpoint.load import load_model
from bench.harness.command_line import benchmark_parser
from bench.quantization.checkpoint_writer import LAYOUTS, write_layout

DEMO = Path(__file__).parents[2] / "examples" / "demo_model"
sys.path.insert(0, str(DEMO))

from kv_quality import (  # type: ignore[import-not-found]  # noqa: E402
    BLOCK_SIZE,
    Quality,
    compare,
    held_out_windows,
    read,
)
from weight_quality import bytes_of  # type: ignore[import-not-found]  # noqa: E402


def main() -> None:
    benchmark_parser(__doc__).parse_args()
    windows = held_out_windows()
    exact, num_bytes = measured(DEMO / "checkpoint", "none", windows)
    show("float32", num_bytes, compare(exact, exact, windows))
    with tempfile.TemporaryDirectory() as folder:
        for name, layout in LAYOUTS.items():
            written = write_layout(DEMO / "checkpoint", Path(folder) / name, layout)
            wide, wide_bytes = measured(written, "wide", windows)
            show(f"{name}, widened", wide_bytes, compare(exact, wide, windows))
            kept, kept_bytes = measured(written, "none", windows)
            if kept_bytes < wide_bytes:
                show(f"{name}, kept", kept_bytes, compare(exact, kept, windows))


def measured(folder: Path, quantize: str, windows: list[torch.Tensor]) -> tuple[torch.Tensor, int]:
    """Log-probabilities, and the bytes of the weights."""
    loaded = load_model(folder, dtype="float32", quantize=quantize)
    return read(loaded, loaded.info.layout(BLOCK_SIZE), windows), bytes_of(loaded.model)


def show(name: str, num_bytes: int, quality: Quality) -> None:
    print(
        f"{name:28} {num_bytes / 1e6:6.1f} MB   perplexity {quality.perplexity:.4f}   "
        f"same top token {quality.same_token:.2%}   furthest {quality.furthest:.4f} nats"
    )


if __name__ == "__main__":
    main()
