"""What int8 and int4 weights cost in quality: perplexity of the demo model on held-out text.

    python examples/demo_model/weight_quality.py

The windows are those of kv_quality.py, all but the weights in float32.
"""

from kv_quality import BLOCK_SIZE, HERE, compare, held_out_windows, read
from torch import nn

from baton.engine.checkpoint.load import load_model
from baton.engine.layers.embedding import Embedding
from baton.engine.layers.linear import Linear


def main() -> None:
    windows = held_out_windows()
    exact = None
    for quantize in ("none", "int8", "int4"):
        loaded = load_model(HERE / "checkpoint", dtype="float32", quantize=quantize)
        found = read(loaded, loaded.info.layout(BLOCK_SIZE), windows)
        exact = found if exact is None else exact
        quality = compare(exact, found, windows)
        num_bytes = bytes_of(loaded.model)
        print(
            f"{quantize:4} {num_bytes / 1e6:6.1f} MB   perplexity {quality.perplexity:.4f}   "
            f"same top token {quality.same_token:.2%}   furthest {quality.furthest:.4f} nats"
        )


def bytes_of(model: nn.Module) -> int:
    """The bytes of all weights, as they are kept."""
    whole = sum(parameter.nbytes for parameter in model.parameters())
    kept = [
        module.weight
        for module in model.modules()
        if isinstance(module, Linear | Embedding) and not isinstance(module.weight, nn.Parameter)
    ]
    return whole + sum(weight.nbytes for weight in kept)


if __name__ == "__main__":
    main()
