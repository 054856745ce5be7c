"""Names of prompts, made a stretch at a time, under each way to cut them into blocks."""

from __future__ import annotations

from dataclasses import replace

from tests.gateway.fleet.known_replicas import make_replica

from baton.core.block_hash import BlockNames, block_hashes, root_hash
from baton.core.ids import Epoch
from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.router.cache.kv_index import KvIndex
from baton.router.cache.matches import Matches
from baton.router.cache.prompt_names import STRETCH, PromptNames, way_to_name

A = Epoch("a")
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


def test_what_a_replica_has_of_prompts_in_line_is_remembered_until_its_cache_changes() -> None:
    index, tokens = KvIndex(), range(32)
    longer, other = PromptNames((*range(48),)), PromptNames((*range(100, 148),))
    matches = Matches(index, lambda epoch: NARROW)

    def tell(first_sequence: int, names: BlockNames, *, is_snapshot: bool = False) -> list[int]:
        told = KvEvent(KvChange.STORED, names.packed)
        index.apply(
            A, KvEvents(first_sequence=first_sequence, events=(told,), is_snapshot=is_snapshot)
        )
        return matches.num_tokens([longer, other], A)

    assert matches.num_tokens([longer, other], A) == [0, 0]
    assert tell(1, PromptNames((*tokens,)).under(NARROW), is_snapshot=True) == [32, 0]
    assert matches.num_tokens([other, longer], A) == [0, 32]
    assert tell(1, other.under(NARROW)) == [32, 48]
