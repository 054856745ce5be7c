"""The items of a response open, grow and close in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton.gateway.http.responses.items import CallItem, CustomCallItem, Item, OutputItems
from baton.gateway.output.pieces import CallStart, Content, Piece, Reasoning

pieces = st.one_of(
    st.text("ab", min_size=1, max_size=3).map(Content),
    st.text("ab", min_size=1, max_size=3).map(Reasoning),
    st.just(CallStart(0, "c", "f")),
    st.just(CallStart(0, "c", "t", is_custom=True)),
)


@given(st.lists(st.lists(pieces, max_size=4), max_size=5), st.booleans())
def test_events_tell_all_of_the_items(updates: list[list[Piece]], is_complete: bool) -> None:
    items = OutputItems("x")
    events = [event for update in updates for event in items.read(update, lambda _: ())]
    events += items.close(is_complete=is_complete)

    told: dict[int, str] = {}
    open_items: list[int] = []
    for event in events:
        index = event["output_index"]
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert index == len(told) and not open_items
                told[index] = ""
                open_items.append(index)
            case "output_text.delta" | "reasoning_text.delta":
                assert open_items == [index]
                told[index] += event["delta"]
            case "output_item.done":
                assert open_items.pop() == index
    assert not open_items
    assert list(told.values()) == [text_of(item) for item in items.items]
    statuses = [item.status for item in items.items]
    assert statuses[:-1] == ["completed"] * (len(statuses) - 1)
    assert statuses[-1] == ("completed" if is_complete else "incomplete")


def text_of(item: Item) -> str:
    return "" if isinstance(item, CallItem | CustomCallItem) else item.content[0].text
