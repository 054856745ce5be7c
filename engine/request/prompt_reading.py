"""What a pass tells about prompts besides their next token: embeddings and prompt logprobs.

hidden states [S, D], by chunk --> each request takes its own --> [S', D] to sample from
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from baton.engine.batch.batch import Chunk
from baton.engine.passes.runner import Runner
from baton.engine.request.request import Request


def read_prompts(
    requests: Sequence[Request],
    nums_drafted: Sequence[int],
    chunks: Sequence[Chunk],
    hidden: Tensor,
    runner: Runner,
) -> Tensor:
    """Let each request read the rows its chunk asked for; return those to sample from: of the last
    known token, and of what is drafted behind it."""
    to_sample: list[int] = []
    end = 0
    for request, num_drafted, chunk in zip(requests, nums_drafted, chunks, strict=True):
        first, end = end, end + chunk.num_outputs
        if first < end and (request.embedding is not None or request.prompt_logprobs is not None):
            start = chunk.start + len(chunk.tokens) - chunk.num_outputs
            _read(request, start, hidden[first:end], runner)
        if request.awaits_token:
            to_sample.extend(range(end - 1 - num_drafted, end))
    return hidden if len(to_sample) == len(hidden) else hidden[to_sample]


def _read(request: Request, start: int, hidden: Tensor, runner: Runner) -> None:
    if request.embedding is not None:
        is_of_logits = request.embedding.is_of_logits
        request.embedding.read(start, runner.logits(hidden) if is_of_logits else hidden)
    elif request.prompt_logprobs is not None:
        request.prompt_logprobs.read(start, hidden, runner)
