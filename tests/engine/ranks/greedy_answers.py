"""What an engine answers to a few prompts."""

from __future__ import annotations

import random

from tests.tiny_checkpoints import VOCAB_SIZE

from baton.core.sampling import SamplingParams
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.request.request import Request

MAX_TOKENS = 12
CONFIG = EngineConfig(
    cache=CacheConfig(block_size=4, num_blocks=64),
    scheduler=SchedulerConfig(prefill_chunk=7, max_batch_tokens=64),
)
RNG = random.Random(5)
PROMPTS = [[RNG.randrange(2, VOCAB_SIZE) for _ in range(length)] for length in (1, 9, 22, 30)]
PROMPTS.append([*PROMPTS[3][:20], 5])  # a prefix hit, once the others are done


def answers(engine: Engine) -> list[list[int]]:
    """All but the last prompt at once, then the last."""
    found: list[list[int]] = []
    for group in (PROMPTS[:-1], PROMPTS[-1:]):
        sampling = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
        requests = [
            Request(f"{len(found)}-{number}", prompt, sampling=sampling)
            for number, prompt in enumerate(group)
        ]
        for request in requests:
            engine.add(request)
        while engine.has_work:
            assert not engine.step().is_stalled
        found += [request.output for request in requests]
    return found
