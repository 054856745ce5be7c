"""Layers of a pass leave together, in order, each once, whatever the layout."""

from hypothesis import given
from hypothesis import strategies as st

from baton.core.kv_layout import DraftFeatures, KvLayout, SideCache
from baton.kv_transfer.sending.layer_groups import LATE_FACTOR, MIN_BYTES, LayerGroups


@st.composite
def layouts(draw: st.DrawFn) -> KvLayout:
    num_layers = draw(st.integers(1, 12))
    with_side = draw(st.sets(st.integers(0, num_layers - 1)))
    side = SideCache(
        name="index", layers=tuple(sorted(with_side)) or (0,), width=32, dtype="bfloat16"
    )
    features = DraftFeatures(kind="outputs", width=256, dtype="bfloat16")
    return KvLayout(
        model_fingerprint=b"model",
        dtype="bfloat16",
        num_layers=num_layers,
        num_kv_heads=draw(st.sampled_from((1, 8))),
        head_dim=draw(st.sampled_from((64, 512))),
        block_size=16,
        side_caches=draw(st.sampled_from(((), (side,)))),
        features=draw(st.sampled_from((None, features))),
    )


@given(layouts(), st.lists(st.integers(1, 8192), min_size=1, max_size=3), st.data())
def test_layers_leave_in_order_with_as_many_bytes_as_pay(
    layout: KvLayout, passes: list[int], data: st.DataObject
) -> None:
    groups = LayerGroups(layout)
    last = layout.num_layers - 1

    def num_bytes(layers: range, num_tokens: int) -> float:
        planes = [layout.planes[plane] for layer in layers for plane in layout.planes_of(layer)]
        return sum(plane.layer_block_bytes for plane in planes) / layout.block_size * num_tokens

    for num_tokens in passes:
        broken_off = data.draw(st.integers(0, last))  # by an abort of all that is in it
        for layer in range(broken_off):
            groups.computed(layer, num_tokens)
        told = range(last + 1 + (layout.features is not None))
        left = [group for layer in told if (group := groups.computed(layer, num_tokens))]
        assert [layer for group in left for layer in group] == [*told]
        for group in left:
            for stop in range(group.start + 1, group.stop):  # less did not pay
                least = MIN_BYTES * (LATE_FACTOR if stop == last else 1)
                assert num_bytes(range(group.start, stop), num_tokens) < least
            if group.stop <= last:
                least = MIN_BYTES * (LATE_FACTOR if group.stop == last else 1)
                assert num_bytes(group, num_tokens) >= least
