"""What KV of few bits, and seeing less of it, cost: perplexity of the demo model on held-out text.

    python examples/demo_model/kv_quality.py

Every window is read in chunks, so that all but the first attend to what the cache kept. In float32:
the difference is the cache's alone, or that of what tokens see.
"""

from dataclasses import dataclass
from math import exp
from pathlib import Path

import torch
from corpus import read_corpus
from tokenizers import Tokenizer
from train import encode

from baton.core.kv_layout import KvLayout
from baton.engine.batch.batch import Chunk
from baton.engine.checkpoint.load import LoadedModel, load_model
from baton.engine.memory.kv_cache import KvCache
from baton.engine.passes.runner import ModelRunner
from baton.kernels.paging.window import Streaming

HERE = Path(__file__).parent
STREAMING = [Streaming(size, num_first) for size in (64, 128, 256) for num_first in (0, 4)]
NUM_WINDOWS, WINDOW, CHUNK, BLOCK_SIZE = 24, 512, 32, 16
KV_DTYPES = ("auto", "int8", "fp8", "int4")


@dataclass(frozen=True)
class Quality:
    perplexity: float
    same_token: float
    """Share of positions whose most probable token is that of the unquantized cache."""
    furthest: float
    """The largest change of a log-probability of a token that came, in nats."""


def main() -> None:
    loaded = load_model(HERE / "checkpoint", dtype="float32")
    windows = held_out_windows()
    exact = read(loaded, loaded.info.layout(BLOCK_SIZE), windows)
    for name in KV_DTYPES:
        layout = loaded.info.layout(BLOCK_SIZE, name)
        quality = compare(exact, read(loaded, layout, windows), windows)
        bits = 8 * layout.block_bytes / (BLOCK_SIZE * 2 * layout.num_layers)
        bits /= layout.num_kv_heads * layout.head_dim
        print(
            f"{name:5} {bits:5.2f} bits an item   perplexity {quality.perplexity:.4f}   "
            f"same top token {quality.same_token:.2%}   furthest {quality.furthest:.4f} nats"
        )
    for window in STREAMING:
        narrowed = load_model(HERE / "checkpoint", dtype="float32", streaming=window)
        found = read(narrowed, narrowed.info.layout(BLOCK_SIZE), windows)
        quality = compare(exact, found, windows)
        print(
            f"the last {window.size}, the first {window.num_first}   "
            f"perplexity {quality.perplexity:.4f}   same top token {quality.same_token:.2%}"
        )


def held_out_windows() -> list[torch.Tensor]:
    """NUM_WINDOWS of WINDOW tokens that the model was not trained on."""
    tokenizer = Tokenizer.from_file(str(HERE / "checkpoint" / "tokenizer.json"))
    held_out = encode(read_corpus(0)[1], tokenizer, 0, 0).text
    step = (len(held_out) - WINDOW) // NUM_WINDOWS
    return [held_out[i * step : i * step + WINDOW] for i in range(NUM_WINDOWS)]


def read(loaded: LoadedModel, layout: KvLayout, windows: list[torch.Tensor]) -> torch.Tensor:
    """Log-probabilities [windows, WINDOW, V]."""
    num_blocks = layout.num_blocks_for(WINDOW)
    runner = ModelRunner(loaded, KvCache(layout, num_blocks, dtype=loaded.info.dtype))
    table = list(range(num_blocks))
    found = [
        torch.cat(
            [
                _logits(runner, Chunk(tokens[at : at + CHUNK], at, table, CHUNK))
                for at in range(0, WINDOW, CHUNK)
            ]
        )
        for tokens in (window.tolist() for window in windows)
    ]
    return torch.stack(found).log_softmax(-1)


def _logits(runner: ModelRunner, chunk: Chunk) -> torch.Tensor:
    """The logits of the tokens of one chunk, for as long as they are wanted."""
    return runner.logits(runner.forward([chunk])).clone()


def compare(exact: torch.Tensor, found: torch.Tensor, windows: list[torch.Tensor]) -> Quality:
    came = torch.stack(windows)[:, 1:, None].long()
    wanted, got = (x[:, :-1].gather(2, came) for x in (exact, found))
    return Quality(
        perplexity=exp(-got.mean().item()),
        same_token=(exact.argmax(-1) == found.argmax(-1)).float().mean().item(),
        furthest=(wanted - got).abs().max().item(),
    )


if __name__ == "__main__":
    main()
