"""What `baton verify` tries: prompts of telling lengths, in situations that have gone wrong before.

Every case must give the tokens that one engine gives to each prompt alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from baton.core.sampling import SamplingParams

Prompt = tuple[int, ...]

NUM_OUTPUT = 16
MAX_PROMPT = 160
NUM_LOGPROBS = 2
"""Two: their distance tells a wrong token from a near tie."""

GREEDY = SamplingParams(
    temperature=0.0, max_tokens=NUM_OUTPUT, ignore_eos=True, num_logprobs=NUM_LOGPROBS
)
SEEDED = SamplingParams(
    temperature=1.1,
    top_p=0.95,
    top_k=50,
    presence_penalty=0.5,
    seed=7,
    max_tokens=NUM_OUTPUT,
    ignore_eos=True,
    num_logprobs=NUM_LOGPROBS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    sampling: SamplingParams = GREEDY
    changes: Mapping[str, object] = field(default_factory=dict)
    """To the configuration, by path."""
    is_repeated: bool = False
    """Ask everything before, so that its prompts are in the prefix caches."""
    is_crowded: bool = False
    """All at once, on a decode replica with room for one and a half: requests are preempted, and
    handoffs refused or taken back."""


CASES = (
    Case(name="cold"),
    Case(name="prefix hit", is_repeated=True),
    Case(name="chunked", changes={"prefill.scheduler.prefill_chunk": 7}),
    Case(name="crowded", is_crowded=True),
    Case(name="seeded", sampling=SEEDED),
    Case(name="seeded, crowded", sampling=SEEDED, is_crowded=True),
)


def make_prompts(vocab_size: int, block_size: int, max_model_len: int) -> list[Prompt]:
    """Around the ends of blocks, half of each shared with the others. The same in every run."""
    random_ids = random.Random(1)
    longest = min(MAX_PROMPT, max_model_len - NUM_OUTPUT - 1)
    ends = [1, 2, 5]
    wanted = [1, 2, 5, *(block_size * end + off for end in ends for off in (-1, 0, 1)), longest]
    lengths = sorted({length for length in wanted if 1 <= length <= longest})
    shared = [random_ids.randrange(vocab_size) for _ in range(longest)]
    return [
        (
            *shared[: length // 2],
            *(random_ids.randrange(vocab_size) for _ in range(length - length // 2)),
        )
        for length in lengths
    ]
