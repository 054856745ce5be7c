"""Blocks on their way: what prompts begin with alike is looked up once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.router.test_kv_index import chain, num_leading

from baton.core.ids import Epoch
from baton.router.cache.expected_blocks import ExpectedBlocks

PROMPTS = st.text("ab", max_size=7)
REPLICAS = st.sampled_from([Epoch("1"), Epoch("2"), Epoch("3")])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(PROMPTS, REPLICAS, st.booleans()), max_size=12), PROMPTS, REPLICAS)
def test_what_is_expected_is_the_longest_that_a_prompt_has_in_common_with_one_on_its_way(
    sent: list[tuple[str, Epoch, bool]], asked: str, gone: Epoch
) -> None:
    blocks = ExpectedBlocks()
    expected = [(blocks.add(chain(text), epoch), is_over) for text, epoch, is_over in sent]
    for one, is_over in expected:
        if is_over:
            blocks.remove(one)
    blocks.forget(gone)

    found = blocks.overlaps(chain(asked)).by_epoch()

    wanted: dict[Epoch, int] = {}
    for text, epoch, is_over in sent:
        if not is_over and epoch != gone:
            depth = num_leading(chain(asked), set(chain(text)))
            wanted[epoch] = max(depth, wanted.get(epoch, 0))
    assert found == {epoch: depth for epoch, depth in wanted.items() if depth}
