"""Names of prompts, made a stretch at a time, under each way to cut them into blocks."""

from __future__ import annotations

from dataclasses import replace

from tests.gateway.fleet.known_replicas import make_replica

from baton.core.block_hash import block_hashes, root_hash
from baton.router.cache.prompt_names import STRETCH, PromptNames, way_to_name

SALT = b"tenant"
NARROW = replace(make_replica("d").layout, block_size=16)
WIDE = replace(NARROW, block_size=32)


def defined(tokens: range, block_size: int) -> list[bytes]:
    return list(block_hashes(root_hash(NARROW.model_fingerprint, SALT), tokens, block_size))


def test_a_long_prompt_is_named_in_stretches_between_which_others_go_on() -> None:
    tokens = range(7, 7 + 3 * STRETCH - 1)
    prompt = PromptNames(tokens, SALT)

    num_breaks = sum(1 for _ in prompt.make([NARROW, WIDE, NARROW]))

    assert num_breaks == 2 + 2
    assert not list(prompt.make([NARROW, WIDE]))
    assert list(prompt.under(NARROW)) == defined(tokens, 16)
    assert list(prompt.under(WIDE)) == defined(tokens, 32)


def test_a_short_prompt_is_named_without_a_break() -> None:
    assert not list(PromptNames(range(100), SALT).make([NARROW, WIDE]))


def test_a_prompt_that_goes_on_keeps_the_names_that_it_had() -> None:
    prompt = PromptNames(tuple(range(40)), SALT)
    before = prompt.under(NARROW)

    longer = prompt.followed_by(range(40, 70))

    assert list(longer.under(NARROW)) == defined(range(70), 16)
    assert list(longer.under(WIDE)) == defined(range(70), 32)
    assert prompt.under(NARROW) is before and prompt.followed_by(()) is prompt
    assert [len(names) for names in longer.by_each(map(way_to_name, (WIDE, NARROW, WIDE)))] == [
        2,
        4,
    ]
