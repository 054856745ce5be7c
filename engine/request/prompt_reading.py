"""Reads the results of a pass for embeddings, labels and prompt logprobs.

hidden states [S, D], by chunk --> each request takes its own --> [S', D] to sample from
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from baton.engine.batch.batch import Chunk
from baton.engine.passes.runner import Runner
from baton.engine.request.pooling import Embedding
from baton.engine.request.request import Request


def read_prompts(
    requests: Sequence[Request],
    nums_drafted: Sequence[int],
    chunks: Sequence[Chunk],
    hidden: Tensor,
    runner: Runner,
) -> Tensor:
    """Let each request read the rows of its chunk in `hidden` [S, D]. Returns the rows [S', D] to
    sample from: those of each request's last known token and of its draft tokens."""
    if not any([r.embedding is not None or r.prompt_logprobs is not None for r in requests]):
        drafting = zip(requests, nums_drafted, strict=True)
        if sum([1 + num for request, num in drafting if not request.num_pending]) == len(hidden):
            return hidden  # all rows are sampled from
    to_sample: list[int] = []
    judged: list[tuple[Embedding, int, int]] = []  # (embedding, start of its logits, row)
    end = 0
    for request, num_drafted, chunk in zip(requests, nums_drafted, chunks, strict=True):
        first, end = end, end + chunk.num_outputs
        start = chunk.start + len(chunk.tokens) - chunk.num_outputs
        if first < end and request.embedding is not None:
            if request.embedding.is_of_logits:
                judged.append((request.embedding, start, first))
            else:
                request.embedding.read(start, hidden[first:end])
        elif first < end and request.prompt_logprobs is not None:
            request.prompt_logprobs.read(start, hidden[first:end], runner)
        if request.awaits_token:
            to_sample.extend(range(end - 1 - num_drafted, end))
    if judged:  # all in one product, because the output head is large
        logits = runner.logits(hidden[[row for _, _, row in judged]])
        for (embedding, start, _), row in zip(judged, logits, strict=True):
            embedding.read(start, row.unsqueeze(0))
    return hidden if len(to_sample) == len(hidden) else hidden[to_sample]
