from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from baton.core.block_hash import block_hashes, root_hash
from baton.core.ids import Epoch
from baton.platform.router.prefix_memory import PrefixMemory

A, B, C = Epoch("a"), Epoch("b"), Epoch("c")


def hashes(prompt: Sequence[int] | str) -> list[bytes]:
    """The names of the blocks of a prompt; a block is one token here."""
    tokens = [ord(char) for char in prompt] if isinstance(prompt, str) else prompt
    return list(block_hashes(root_hash(b"model"), tokens, block_size=1))


def test_a_replica_has_the_longest_prefix_in_common_with_what_it_was_given() -> None:
    memory = PrefixMemory()
    memory.remember(hashes("the king"), [A])
    memory.remember(hashes("the queen"), [B])

    assert memory.num_cached_blocks(hashes("the kitten")) == {A: 6, B: 4}


def test_one_prompt_may_be_on_several_replicas() -> None:
    memory = PrefixMemory()

    memory.remember(hashes("abc"), [A, B])

    assert memory.num_cached_blocks(hashes("abcd")) == {A: 3, B: 3}


def test_blocks_in_the_middle_do_not_count_without_those_before_them() -> None:
    memory = PrefixMemory()
    memory.remember(hashes("abc"), [A])
    memory.remember(hashes("abcdef"), [B])
    memory.remember(hashes("abcdef")[4:], [C])

    assert memory.num_cached_blocks(hashes("abcdef")) == {A: 3, B: 6}


def test_an_unknown_prompt_is_cached_nowhere() -> None:
    memory = PrefixMemory()
    memory.remember(hashes("abc"), [A])

    assert memory.num_cached_blocks(hashes("xabc")) == {}
    assert memory.num_cached_blocks([]) == {}


def test_a_replica_that_is_gone_is_forgotten_with_the_blocks_only_it_had() -> None:
    memory = PrefixMemory()
    memory.remember(hashes("ab"), [A, B])
    memory.remember(hashes("abcd"), [A])

    memory.forget(A)

    assert memory.num_cached_blocks(hashes("abcd")) == {B: 2}
    assert len(memory) == 2


def test_to_remember_a_prompt_for_nobody_costs_nothing() -> None:
    memory = PrefixMemory()

    memory.remember(hashes("abc"), [])

    assert len(memory) == 0


def test_the_prompt_not_used_for_longest_is_forgotten_first() -> None:
    memory = PrefixMemory(max_blocks=6)
    memory.remember(hashes("old"), [A])
    memory.remember(hashes("new"), [A])
    memory.remember(hashes("old"), [A])

    memory.remember(hashes("xyz"), [A])

    assert memory.num_cached_blocks(hashes("new")) == {}
    assert memory.num_cached_blocks(hashes("old")) == {A: 3}
    assert memory.num_cached_blocks(hashes("xyz")) == {A: 3}


def test_a_prompt_that_does_not_fit_is_remembered_from_its_beginning() -> None:
    memory = PrefixMemory(max_blocks=4)

    memory.remember(hashes("abcdefgh"), [A])

    assert memory.num_cached_blocks(hashes("abcdefgh")) == {A: 4}


def test_prompts_of_one_conversation_share_what_they_have_in_common() -> None:
    memory = PrefixMemory()
    memory.remember(hashes("question"), [A])

    memory.remember(hashes("question answer question"), [A])

    assert len(memory) == len("question answer question")


prompts = st.lists(st.integers(0, 1), max_size=6)
epochs = st.lists(st.sampled_from([A, B, C]), unique=True)
uses = st.lists(st.tuples(prompts, epochs), max_size=12)


@given(uses=uses, gone=st.sampled_from([A, B, C]), prompt=prompts)
def test_with_room_for_all_the_memory_is_what_was_told_and_not_forgotten(
    uses: list[tuple[list[int], list[Epoch]]], gone: Epoch, prompt: list[int]
) -> None:
    memory = PrefixMemory()
    for used, holders in uses:
        memory.remember(hashes(used), holders)
    memory.forget(gone)

    found = memory.num_cached_blocks(hashes(prompt))

    expected: dict[Epoch, int] = {}
    for used, holders in uses:
        for epoch in holders:
            common = num_common(used, prompt)
            if epoch != gone and common:
                expected[epoch] = max(expected.get(epoch, 0), common)
    assert found == expected


@given(uses=uses, max_blocks=st.integers(1, 8))
def test_the_memory_never_grows_past_its_limit_and_keeps_prefixes_only(
    uses: list[tuple[list[int], list[Epoch]]], max_blocks: int
) -> None:
    memory = PrefixMemory(max_blocks=max_blocks)
    for used, holders in uses:
        memory.remember(hashes(used), holders)
        assert len(memory) <= max_blocks
        if holders:
            found = memory.num_cached_blocks(hashes(used))
            kept = min(len(used), max_blocks)
            assert all(found.get(epoch, 0) == kept for epoch in holders)


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count
