"""Records the stages of an eager pass with module hooks.

The work of attention between its first and its last product (rotation, KV write, scores, values) is
a stage of its own, which ends when the last product begins.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from baton.engine.layers.linear import Linear
from baton.engine.layers.moe import MoeFeedForward
from baton.engine.layers.norm import LayerNorm, RmsNorm
from baton.engine.models.skeleton.decoder import Decoder
from baton.kernels.experts.routing import Routed
from baton.platform.instruments.forward_trace.trace import Stage
from baton.platform.instruments.pass_cost import (
    Chunk,
    Work,
    attention_work,
    norm_work,
    product_work,
    rope_work,
)
from baton.platform.models.model_shape import (
    ModelShape,
    Part,
    part_of,
    product_of,
    products_of_experts,
)

OF_MANY = {
    "attn.q": "queries",
    "attn.q_a": "latent of queries",
    "attn.q_b": "queries",
    "attn.kv_a": "latent",
    "indexer.q": "index queries",
    "indexer.k": "index keys",
    "indexer.weights": "weights of index heads",
    "shared.gate_up": "shared gate and up",
    "shared.down": "shared down",
}
"""Names of products in parts that have several, by the end of the module's name."""


@runtime_checkable
class SeesTokens(Protocol):
    """Attention of any kind. `out` is the last product of its `forward`."""

    out: Linear

    def last_weights(self, *inputs: Any) -> Tensor:
        """Attention weights of the last token, [N, context]. `inputs`: those of `forward`."""


class StageWatch:
    """Records the stages of passes while it is entered; `model` must run eagerly."""

    def __init__(self, model: Decoder, shape: ModelShape, num_tokens: int) -> None:
        self.stages: list[Stage] = []
        self.after_block: list[tuple[Tensor, Tensor]] = []
        """Each block's output for the last token: x and residual [1, D]."""
        self._model = model
        self._shape = shape
        self._chunk = Chunk(num_tokens, num_tokens)
        self.routed: dict[int, Routed] = {}
        """Expert routing of each token, by sparse layer."""
        self._attended: list[tuple[SeesTokens, Any]] = []
        self._hooks = ExitStack()

    def heats(self) -> list[Tensor]:
        """The weights of each attention of the pass, once it is over: [N, context]."""
        return [attention.last_weights(*inputs) for attention, inputs in self._attended]

    def __enter__(self) -> StageWatch:
        model = self._model
        self._after(model.embed, lambda inputs, out: self._note("embedding", None, inputs[0], out))
        if model.positions is not None:
            self._after(
                model.positions,
                lambda inputs, out: self._note("positions", None, inputs[0], out),
            )
        for layer, block in enumerate(model.blocks):
            for name, module in block.named_modules():
                self._watch(layer, name, module)
                if isinstance(module, MoeFeedForward):
                    self._watch_experts(layer, module)
            self._after(block, lambda inputs, out: self._keep_last(out))
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()

    def head(self, hidden: Tensor, logits: Tensor) -> None:
        """The last norm and the head, which run after the blocks."""
        rows = len(hidden)
        self._add("last norm", None, hidden, hidden, norm_work(hidden.numel(), self._item_bytes))
        head = self._model.embed if self._model.head is None else self._model.head
        work = product_work(product_of(Part.HEAD, head.weight), rows, self._item_bytes)
        self._add("head", None, hidden, logits, work)

    def _watch(self, layer: int, name: str, module: nn.Module) -> None:
        match module:
            case Linear():
                self._after(
                    module, lambda inputs, out: self._product(name, layer, module, inputs[0], out)
                )
            case RmsNorm() | LayerNorm() if "." not in name:  # norms of heads count as attention
                self._after(
                    module, lambda inputs, out: self._norm(name, layer, inputs[0], _first(out))
                )
            case SeesTokens():
                self._before(module.out, lambda inputs: self._attention(layer, inputs[0]))
                self._after(module, lambda inputs, out: self._attended.append((module, inputs)))

    def _watch_experts(self, layer: int, module: MoeFeedForward) -> None:
        def before(inputs: Any) -> None:
            self.routed[layer] = inputs[1]

        def after(inputs: Any, out: Tensor) -> None:
            parts = products_of_experts(module)
            work = sum((product_work(each, len(out), self._item_bytes) for each in parts), Work())
            self._add("experts", layer, inputs[0], out, work)

        self._before(module.experts, before)
        self._after(module.experts, after)

    def _product(self, name: str, layer: int, module: Linear, x: Tensor, out: Tensor) -> None:
        product = product_of(part_of(name), module.weight, is_gated=module.is_gated)
        work = product_work(product, len(x), self._item_bytes)
        self._add(_named(name, product.part), layer, x, out, work)

    def _norm(self, name: str, layer: int, x: Tensor, out: Tensor) -> None:
        text = name.replace("attn", "attention").replace("ffn", "feed-forward").replace("_", " ")
        self._add(text, layer, x, out, norm_work(x.numel(), self._item_bytes))

    def _attention(self, layer: int, attended: Tensor) -> None:
        shape = self._shape.attentions[layer]
        work = rope_work(shape, self._chunk.num_tokens, self._item_bytes)
        work += attention_work(shape, [self._chunk], self._item_bytes)
        self._stage("RoPE, KV write, attention", layer, self.stages[-1].shape_out, attended, work)

    def _note(self, name: str, layer: int | None, x: Tensor, out: Tensor) -> None:
        self._add(name, layer, x, out, Work(0.0, 2.0 * out.nbytes))

    def _add(self, name: str, layer: int | None, x: Tensor, out: Tensor, work: Work) -> None:
        self._stage(name, layer, tuple(x.shape), out, work)

    def _stage(
        self, name: str, layer: int | None, shape_in: tuple[int, ...], out: Tensor, work: Work
    ) -> None:
        self.stages.append(
            Stage(
                name=name,
                layer=layer,
                shape_in=shape_in,
                shape_out=tuple(out.shape),
                work=work,
                size=float(out.float().square().mean().sqrt()),
            )
        )

    def _keep_last(self, out: tuple[Tensor, ...]) -> None:
        x, residual, *_ = out
        self.after_block.append((x[-1:].clone(), residual[-1:].clone()))

    def _after(self, module: nn.Module, note: Callable[[Any, Any], None]) -> None:
        def hook(module: nn.Module, inputs: Any, out: Any) -> None:
            note(inputs, out)

        self._hooks.callback(module.register_forward_hook(hook).remove)

    def _before(self, module: nn.Module, note: Callable[[Any], None]) -> None:
        def hook(module: nn.Module, inputs: Any) -> None:
            note(inputs)

        self._hooks.callback(module.register_forward_pre_hook(hook).remove)

    @property
    def _item_bytes(self) -> int:
        return self._shape.item_bytes


def _first(out: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    """The normalised output, without the residual stream."""
    return out[0] if isinstance(out, tuple) else out


def _named(module: str, part: Part) -> str:
    return OF_MANY.get(".".join(module.split(".")[-2:]), str(part))
