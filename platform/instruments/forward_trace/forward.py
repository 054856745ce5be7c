"""Runs and records the traced pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.core.errors import InvalidConfig, InvalidRequest
from baton.engine.batch.batch import Batch, Chunk, ignore_layer, make_batch
from baton.engine.checkpoint.load import LoadedModel
from baton.engine.memory.kv_cache import KvCache
from baton.engine.models.skeleton.mtp import MtpHead
from baton.engine.models.skeleton.stream_decoder import StreamDecoder
from baton.gateway.text.tokenizer import TextTokenizer
from baton.kernels.experts.routing import Routed
from baton.platform.instruments.forward_trace.stage_watch import StageWatch
from baton.platform.instruments.forward_trace.trace import (
    ForwardTrace,
    Guess,
    LayerTrace,
    TracedToken,
)
from baton.platform.models.model_shape import shape_of

BLOCK_SIZE = 16
MAX_TOKENS = 1024
"""The most tokens of a prompt, since the page shows all of them for each layer."""
NUM_GUESSES = 5


def trace_forward(
    loaded: LoadedModel,
    tokenizer: TextTokenizer,
    tokens: Sequence[int],
    *,
    name: str,
    device: str,
    mtp: MtpHead | None = None,
) -> ForwardTrace:
    """Compute `tokens` in one pass with all outputs, since the last layer would otherwise skip
    tokens. `mtp`: the head that predicts one token further.

    Raises InvalidRequest for too few or too many, and InvalidConfig for a model of another kind
    than it can show.
    """
    if isinstance(loaded.model, StreamDecoder):
        raise InvalidConfig(
            f"{loaded.info.architecture} is not traced: a trace shows one residual stream, and "
            "what attention gives to tokens; this model has several, and compresses tokens before "
            "it looks at them"
        )
    limit = min(MAX_TOKENS, loaded.info.max_model_len)
    if not 0 < len(tokens) <= limit:
        raise InvalidRequest(
            f"the prompt has {len(tokens)} tokens; a trace takes 1 to {limit} of this model",
            field="prompt",
        )
    layout = loaded.info.layout(BLOCK_SIZE)
    num_blocks, is_deterministic = layout.num_blocks_for(len(tokens)), loaded.is_deterministic
    cache = KvCache(layout, num_blocks, device, is_deterministic=is_deterministic)
    chunk = Chunk(tokens, 0, range(cache.num_blocks), num_outputs=len(tokens))
    batch = make_batch([chunk], BLOCK_SIZE, device)
    model = loaded.model
    shape = shape_of(model, layout, loaded.info.dtype)
    words, watch = _Words(tokenizer), StageWatch(model, shape, len(tokens))
    with torch.inference_mode():
        with watch:
            hidden = model(batch, cache.layers, ignore_layer)
            logits = model.logits(hidden[-1:])
        watch.head(hidden[-1:], logits)
        after = None if mtp is None else _logits_after(mtp, hidden, cache, batch, logits)
        layers = [
            LayerTrace(
                heat=heat.tolist(),
                guesses=words.guesses(model.logits(model.norm(x, residual)[0])[0]),
                experts=_experts(watch.routed.get(layer)),
            )
            for layer, (heat, (x, residual)) in enumerate(
                zip(watch.heats(), watch.after_block, strict=True)
            )
        ]
    return ForwardTrace(
        model=name,
        architecture=loaded.info.architecture,
        dtype=loaded.info.dtype,
        device=device,
        tokens=[words.of(token) for token in tokens],
        stages=watch.stages,
        layers=layers,
        guesses=words.guesses(logits[0]),
        guesses_after=[] if after is None else words.guesses(after),
    )


def _logits_after(
    mtp: MtpHead, hidden: Tensor, cache: KvCache, batch: Batch, logits: Tensor
) -> Tensor:
    """Logits [V] of the token after the most probable next one."""
    own = KvCache(mtp.layout(cache.layout), cache.num_blocks, cache.device)
    next_tokens = torch.cat((batch.tokens[1:], logits.argmax(dim=-1)))
    found: Tensor = mtp(hidden, next_tokens, batch.sequences, own.layers)
    return mtp.logits(found[-1:])[0]


def _experts(routed: Routed | None) -> list[list[tuple[int, float]]]:
    if routed is None:
        return []
    choices = zip(routed.experts.tolist(), routed.shares.tolist(), strict=True)
    return [list(zip(experts, shares, strict=True)) for experts, shares in choices]


class _Words:
    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def of(self, token: int) -> TracedToken:
        text = self._tokenizer.token_bytes(token).decode(errors="replace")
        return TracedToken(token, text)

    def guesses(self, logits: Tensor) -> list[Guess]:
        """The most probable tokens of logits [V], at temperature 1."""
        best = logits.float().softmax(-1).topk(min(NUM_GUESSES, len(logits)))
        found = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [Guess(self.of(token), probability) for token, probability in found]
