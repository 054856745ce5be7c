"""What `baton verify` tries: prompts of critical lengths, in situations that went wrong before.

Every case must give the tokens that one engine gives to each prompt alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from baton.core.sampling import SamplingParams

Prompt = tuple[int, ...]

NUM_OUTPUT = 16
MAX_PROMPT = 160
NUM_LOGPROBS = 2
"""Two: their distance distinguishes a wrong token from a near tie."""
PERIODS = (1, 2, 5)
"""Periods, in tokens, of repetitive prompts: prompt-lookup methods draft behind them."""

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
REPEATING = replace(
    SEEDED, logit_bias=((11, 100.0), (12, 100.0), (13, 100.0)), presence_penalty=0.0
)
"""What has three tokens to say repeats itself: a drafter that looks up earlier text finds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    sampling: SamplingParams = GREEDY
    changes: Mapping[str, object] = field(default_factory=dict)
    """Changes to the configuration, by path."""
    is_repeated: bool = False
    """Ask everything before, so that its prompts are in the prefix caches."""
    is_crowded: bool = False
    """All at once, on a decode replica with room for one and a half: requests are preempted, and
    handoffs refused or taken back."""

    @property
    def is_repeating(self) -> bool:
        """Every method has something to draft, and some of it is right."""
        return self.sampling is REPEATING


CASES = (
    Case(name="cold"),
    Case(name="prefix hit", is_repeated=True),
    Case(name="chunked", changes={"prefill.scheduler.prefill_chunk": 7}),
    Case(name="crowded", is_crowded=True),
    Case(name="seeded", sampling=SEEDED),
    Case(name="seeded, crowded", sampling=SEEDED, is_crowded=True),
    Case(name="repeats", sampling=REPEATING),
    Case(name="repeats, crowded", sampling=REPEATING, is_crowded=True),
)


def make_prompts(vocab_size: int, block_size: int, max_model_len: int) -> list[Prompt]:
    """Around the ends of blocks, half of each shared with the others; then those that repeat
    themselves. The same in every run."""
    random_ids = random.Random(1)
    longest = min(MAX_PROMPT, max_model_len - NUM_OUTPUT - 1)
    ends = [1, 2, 5]
    wanted = [1, 2, 5, *(block_size * end + off for end in ends for off in (-1, 0, 1)), longest]
    lengths = sorted({length for length in wanted if 1 <= length <= longest})
    shared = [random_ids.randrange(vocab_size) for _ in range(longest)]
    varied = [
        (
            *shared[: length // 2],
            *(random_ids.randrange(vocab_size) for _ in range(length - length // 2)),
        )
        for length in lengths
    ]
    periods = [period for period in PERIODS if period < longest]
    return [*varied, *(_repeated(shared[:period], longest - period) for period in periods)]


def _repeated(tokens: Sequence[int], length: int) -> Prompt:
    return tuple(tokens[place % len(tokens)] for place in range(length))
