"""Seeded requests with known answers: asked once without faults, then repeatedly with faults.

Greedy or sampled with a seed, an answer depends on the request alone, so any token that differs is
an error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from baton.platform.chaos.scenario import Load

_TEXT = (
    "the a one some every no first last small large old new red quiet broken open engine river "
    "letter window garden number question answer machine story morning captain island bridge "
    "runs holds gives takes keeps finds waits turns sleeps breaks and or but while because until "
    "under over beside between without"
)
_WORDS = tuple(_TEXT.split())

Tokens = tuple[int, ...]


class ChaosGateway(Protocol):
    async def ask(self, prompt: str, seed: int, load: Load, *, salt: str = "") -> Tokens:
        """The answer's tokens. Raises any Exception where there is none."""


@dataclass(frozen=True, slots=True)
class WrongToken:
    prompt: int
    position: int
    """The position of the first token that differs."""


@dataclass(slots=True)
class Tally:
    """Counts of the requests' outcomes."""

    num_right: int = 0
    wrong: list[WrongToken] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """The messages of requests that ended in an error."""
    num_hung: int = 0
    longest_s: float = 0.0

    @property
    def num_asked(self) -> int:
        return self.num_right + len(self.wrong) + len(self.failed) + self.num_hung


def make_prompts(load: Load, seed: int) -> tuple[str, ...]:
    """Different prompts with a common prefix."""
    random = Random(f"prompts/{seed}")
    shared = [random.choice(_WORDS) for _ in range(load.shared_words)]
    num_own = max(1, load.prompt_words - load.shared_words)
    return tuple(
        " ".join([*shared, str(number), *(random.choice(_WORDS) for _ in range(num_own))])
        for number in range(load.num_prompts)
    )


async def undisturbed(gateway: ChaosGateway, prompts: Sequence[str], load: Load) -> list[Tokens]:
    """The answers without faults. Raises what `ask` raises."""
    room = asyncio.Semaphore(load.concurrency)

    async def ask(number: int) -> Tokens:
        async with room, asyncio.timeout(load.timeout_s):
            return await gateway.ask(prompts[number], number, load)

    return list(await asyncio.gather(*(ask(number) for number in range(len(prompts)))))


@dataclass(frozen=True, slots=True)
class DisturbedLoad:
    """The load with faults: prompts and their expected answers."""

    gateway: ChaosGateway
    load: Load
    prompts: Sequence[str]
    expected: Sequence[Tokens]

    async def run(self, is_over: Callable[[], bool]) -> Tally:
        """`load.concurrency` requests at any time, until it is over and the last is answered."""
        tally = Tally()

        async def one_after_another(candidate: int) -> None:
            random = Random(f"order/{candidate}")
            while not is_over():
                number = random.randrange(len(self.prompts))
                is_salted = random.random() < self.load.salted
                salt = random.randbytes(8).hex() if is_salted else ""
                await self._ask(number, salt, tally)

        async with asyncio.TaskGroup() as group:
            for candidate in range(self.load.concurrency):
                group.create_task(one_after_another(candidate))
        return tally

    async def _ask(self, number: int, salt: str, tally: Tally) -> None:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self.load.timeout_s):
                prompt = self.prompts[number]
                tokens = await self.gateway.ask(prompt, number, self.load, salt=salt)
        except TimeoutError:
            tally.num_hung += 1
        except Exception as error:
            tally.failed.append(str(error) or type(error).__name__)
            await asyncio.sleep(0.2)  # what fails at once must not be asked thousands of times
        else:
            self._judge(number, tokens, tally)
        tally.longest_s = max(tally.longest_s, time.monotonic() - started)

    def _judge(self, number: int, tokens: Tokens, tally: Tally) -> None:
        expected = self.expected[number]
        if tokens == expected:
            tally.num_right += 1
        else:
            tally.wrong.append(WrongToken(number, _first_difference(tokens, expected)))


def _first_difference(found: Tokens, expected: Tokens) -> int:
    pairs = zip(found, expected, strict=False)
    return next(
        (position for position, (a, b) in enumerate(pairs) if a != b),
        min(len(found), len(expected)),
    )
