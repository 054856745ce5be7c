"""Attention kernels against the definition: interpreted here, on the device where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.kernels.paged_passes import Heads, PagedPass

from baton.kernels.attention import library_prefill_gpu as library_prefill
from baton.kernels.attention import paged_attention_gpu as paged_attention
from baton.kernels.attention import paged_decode_gpu as decode
from baton.kernels.attention import paged_prefill_gpu as prefill
from baton.kernels.attention import prefill_splits_gpu as prefill_splits
from baton.kernels.attention.layer_kv import LayerKv
from baton.kernels.attention.merge_splits_gpu import merge_splits
from baton.kernels.attention.paged_decode_gpu import paged_decode, split_keys
from baton.kernels.attention.scoring import Scoring
from baton.kernels.attention.scoring_gpu import ScoringRules
from baton.kernels.paging.arena_gpu import PagedCache
from baton.kernels.paging.sequences import MAX_RUN
from baton.kernels.paging.window import Chunks, Streaming, Window

BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16
FP8 = torch.float8_e4m3fn
ATOL = {torch.float32: 1e-5, FLOAT16: 4e-3, BFLOAT16: 3e-2}
CAPPED = Scoring(scale=0.9, softcap=0.7)

KINDS = [
    pytest.param({}, id="grouped-query"),
    pytest.param({"heads": Heads(3, 3)}, id="multi-head"),
    pytest.param({"heads": Heads(17, 1)}, id="multi-query of more heads than a tile"),
    pytest.param({"heads": Heads(6, 2, width=100)}, id="odd group and width"),
    pytest.param({"block_size": 3, "entries": torch.int32}, id="odd block, tables of a device"),
    pytest.param({"rules": ScoringRules(window=1)}, id="window of itself alone"),
    pytest.param({"rules": ScoringRules(window=6)}, id="window"),
    pytest.param({"rules": ScoringRules(window=99)}, id="window that hides nothing"),
    pytest.param({"rules": ScoringRules(window=Chunks(6))}, id="chunks"),
    pytest.param({"rules": ScoringRules(window=Chunks(1))}, id="chunks of one"),
    pytest.param({"rules": ScoringRules(window=Streaming(6, 3))}, id="first tokens"),
    pytest.param({"rules": ScoringRules(window=Streaming(1, 20))}, id="many first tokens"),
    pytest.param({"rules": ScoringRules(CAPPED)}, id="soft cap"),
    pytest.param({"rules": ScoringRules(sinks=torch.tensor([1.0, -2, 0, 9]))}, id="sinks"),
    pytest.param({"dtype": FLOAT16}, id="float16"),
    pytest.param({"dtype": BFLOAT16}, id="bfloat16"),
    pytest.param({"items": torch.int8}, id="int8"),
    pytest.param({"items": FP8}, id="fp8"),
    pytest.param({"items": torch.int8, "dtype": BFLOAT16}, id="int8 for bfloat16"),
    pytest.param(
        {
            "items": FP8,
            "dtype": BFLOAT16,
            "rules": ScoringRules(CAPPED, 6, torch.zeros(4)),
            "block_size": 8,
        },
        id="all of them",
    ),
]
PASSES = [
    pytest.param([(1, 1), (1, 9), (1, 40)], id="decoding only"),
    pytest.param([(1, 5), (6, 6), (5, 21), (2, 8)], id="drafts to be verified"),
    pytest.param([(1, 5), (17, 17), (5, 21), (2, 8)], id="everything at once"),
]
each_kind = pytest.mark.parametrize("kind", KINDS)
each_pass = pytest.mark.parametrize("requests", PASSES)


def grids_of(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[Any]:
    """The grids that a kernel of `module` is launched over."""
    kernel, grids = getattr(module, name), list[Any]()

    class Noting:
        def __getitem__(self, grid: Any) -> Any:
            grids.append(grid)
            return kernel[grid]

    monkeypatch.setattr(module, name, Noting())
    return grids


def attended(made: PagedPass) -> torch.Tensor:
    rules = made.rules
    return paged_attention.paged_attention(
        made.q,
        PagedCache.of(made.arena()),
        made.sequences(),
        rules.window,
        rules.scoring,
        rules.sinks,
    )


def decoded(made: PagedPass, keys_a_split: int) -> torch.Tensor:
    out = torch.full_like(made.q, torch.nan)
    cache = PagedCache.of(made.arena())
    paged_decode(made.q, out, cache, made.sequences(), made.rules, keys_a_split)
    return out


@each_pass
@each_kind
def test_attention_is_as_defined(
    requests: Sequence[tuple[int, int]], kind: dict[str, object]
) -> None:
    made = PagedPass(requests, **kind)  # type: ignore[arg-type]

    out = attended(made)

    assert out.dtype is made.dtype
    torch.testing.assert_close(out, made.expected(), rtol=0, atol=ATOL[made.dtype])


@pytest.mark.parametrize("num_tokens", [1, 2, 37])
def test_a_whole_prompt_alone_is_attended(num_tokens: int) -> None:
    made = PagedPass([(num_tokens, num_tokens)])

    out = attended(made)

    torch.testing.assert_close(out, made.expected(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param({"rules": ScoringRules(sinks=torch.tensor([1.0, -2, 0, 9]))}, id="sinks"),
        pytest.param({"items": torch.int8, "heads": Heads(3, 1, 20)}, id="int8, odd"),
    ],
)
def test_keys_of_short_chunks_behind_long_contexts_are_split(
    kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_splits, "MIN_SPLIT_KEYS", 16)
    monkeypatch.setattr(prefill_splits, "MAX_SPLITS", 4)
    grids = grids_of(monkeypatch, prefill, "_attend_tiles")
    requests = [(1, 40), (20, 75), (3, 17), (5, 9)]  # the last is one split
    made = PagedPass(requests, entries=torch.int32, **kind)

    out = attended(made)

    torch.testing.assert_close(out, made.expected(), rtol=0, atol=ATOL[made.dtype])
    assert [splits for *_, splits in grids] == [4]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param({}, id="plain"),
        pytest.param(
            {"items": torch.int8, "rules": ScoringRules(CAPPED, 6, torch.zeros(4))},
            id="int8, with a window and sinks",
        ),
    ],
)
def test_a_graph_of_any_pass_attends_those_who_are_there(
    kind: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few tokens at the end of a long context are read in splits; behind all are requests without
    tokens."""
    monkeypatch.setattr(decode, "ENOUGH_PROGRAMS", 4)
    made = PagedPass([(1, 40), (17, 60), (5, 300), (2, 8), (7, 7)], entries=torch.int32, **kind)  # type: ignore[arg-type]
    whole, nothing = made.sequences(), torch.zeros(3, dtype=torch.int64)
    sequences = replace(
        whole,
        num_requests=8,
        query_starts=torch.cat((whole.query_starts, nothing + len(made.q))),
        context_lens=torch.cat((whole.context_lens, nothing)),
        block_tables=torch.cat((whole.block_tables, whole.block_tables[:3])),
        max_query_len=len(made.q),
        max_context_len=2048,
        is_captured=True,
    )
    rules = made.rules

    out = paged_attention.paged_attention(
        made.q, PagedCache.of(made.arena()), sequences, rules.window, rules.scoring, rules.sinks
    )

    torch.testing.assert_close(out, made.expected(), rtol=0, atol=ATOL[made.dtype])


@pytest.mark.gpu
@each_pass
@each_kind
def test_attention_on_a_device_is_as_defined(
    requests: Sequence[tuple[int, int]], kind: dict[str, object]
) -> None:
    made = PagedPass(requests, device="cuda", **kind)  # type: ignore[arg-type]
    sinks = made.rules.sinks if made.rules.sinks is None else made.rules.sinks.cuda()

    out = LayerKv.of(made.arena(), made.dtype).attend(
        made.q, made.sequences(), made.rules.window, made.rules.scoring, sinks
    )

    torch.testing.assert_close(out, made.expected(), rtol=0, atol=ATOL[made.dtype])


@pytest.mark.parametrize(
    ("window", "sinks"),
    [
        (None, None),
        (None, torch.tensor([1.0, -2, 0, 9])),
        (1, None),
        (16, None),
        (17, None),
        (Chunks(16), None),
        (Streaming(7, 3), None),
        (Streaming(16, 16), None),
        (Streaming(2, 18), torch.tensor([1.0, -2, 0, 9])),
        (Streaming(40, 2), None),
        (Chunks(20), torch.tensor([1.0, -2, 0, 9])),
    ],
)
@pytest.mark.parametrize(
    "requests",
    [
        pytest.param([(1, 33), (1, 16), (1, 17), (1, 48)], id="decoding"),
        pytest.param([(1, 33), (5, 16), (9, 40), (2, 65), (3, 3)], id="drafts"),
    ],
)
def test_splits_of_a_context_are_merged_into_the_whole(
    requests: Sequence[tuple[int, int]], window: Window, sinks: torch.Tensor | None
) -> None:
    made = PagedPass(requests, Heads(4, 1), rules=ScoringRules(window=window, sinks=sinks))

    out = decoded(made, 16)

    torch.testing.assert_close(out, made.expected(), rtol=0, atol=1e-5)


def test_drafts_have_longer_splits_where_there_would_be_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = [(5, 90), (2, 33), (16, 70)]
    monkeypatch.setattr("baton.kernels.attention.paged_decode_gpu.MAX_PARTIAL_BYTES", 20_000)
    shapes: list[torch.Size] = []

    def merging(partial: torch.Tensor, *others: object, is_batch_invariant: bool) -> None:
        shapes.append(partial.shape)
        merge_splits(partial, *others, is_batch_invariant=is_batch_invariant)  # type: ignore[arg-type]

    monkeypatch.setattr("baton.kernels.attention.paged_decode_gpu.merge_splits", merging)
    made = PagedPass(requests)

    torch.testing.assert_close(decoded(made, 16), made.expected(), rtol=0, atol=1e-5)
    assert [shape.numel() * 4 <= 20_000 for shape in shapes] == [True]
    assert shapes[0][3] == 3


def test_a_token_attends_alike_alone_and_in_any_batch() -> None:
    requests = [(1, 33), (1, 90), (1, 17)]
    made = PagedPass(requests)
    together = decoded(made, 16)

    for place, request in enumerate(requests):
        alone = PagedPass([request])
        alone.q, alone.kv, alone.tables = made.q[place : place + 1], made.kv, [made.tables[place]]

        assert torch.equal(decoded(alone, 16)[0], together[place])


def test_the_split_depends_on_the_room_of_a_table_alone() -> None:
    short, long = PagedPass([(1, 9)]).sequences(), PagedPass([(1, 9), (1, 5000)]).sequences()
    object.__setattr__(short, "block_tables", long.block_tables[:1, :3])

    assert split_keys(short) == split_keys(long) == 256


def test_programs_take_several_splits_where_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = PagedPass([(1, 70), (1, 33)])
    expected = decoded(made, 16)

    monkeypatch.setattr("baton.kernels.attention.paged_decode_gpu.ENOUGH_PROGRAMS", 5)

    assert torch.equal(decoded(made, 16), expected)


@pytest.mark.parametrize(
    ("requests", "rules", "split"),
    [
        pytest.param([(1, 16)] * 20 + [(1, 4096)] + [(1, 16)] * 11, {}, 512, id="one is long"),
        pytest.param([(1, 75), (20, 20), (1, 40)], {"window": 20}, 16, id="beside a prompt"),
        pytest.param([(2, 35), (12, 40), (1, 1)], {}, 16, id="drafts of two tiles and of one"),
    ],
)
def test_programs_share_the_splits_that_there_are_however_long_contexts_may_become(
    requests: Sequence[tuple[int, int]],
    rules: dict[str, Any],
    split: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a graph: the grid follows from the longest that may be, and a few requests are looked
    through at a time."""
    made = PagedPass(
        requests, Heads(6, 1, 8), 16, BFLOAT16, rules=ScoringRules(**rules), entries=torch.int32
    )
    sequences = replace(made.sequences(), max_context_len=10 * split)
    monkeypatch.setattr(decode, "REQUESTS_AT_ONCE", 16 if len(requests) > 16 else 2)
    monkeypatch.setattr(decode, "ENOUGH_PROGRAMS", 4)
    grids = grids_of(monkeypatch, decode, "_attend_splits")
    out = torch.full_like(made.q, torch.nan)

    paged_decode(made.q, out, PagedCache.of(made.arena()), sequences, made.rules, split)

    is_taken = sequences.max_query_len <= MAX_RUN
    taken = torch.cat([torch.full((count,), is_taken or count == 1) for count, _ in requests])
    torch.testing.assert_close(out[taken], made.expected()[taken], rtol=0, atol=ATOL[BFLOAT16])
    assert out[~taken].isnan().all()
    assert [workers * programs for workers, programs in grids] == [4]


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param([(9, 9)], id="a whole prompt"),
        pytest.param([(20, 47)], id="a chunk after others"),
        pytest.param([(1, 5), (20, 47), (4, 9), (8, 8)], id="among others"),
    ],
)
@pytest.mark.parametrize(
    ("items", "dtype"), [(None, torch.float32), (None, BFLOAT16), (torch.int8, torch.float32)]
)
def test_long_chunks_are_attended_by_the_library_in_pieces(
    requests: Sequence[tuple[int, int]],
    items: torch.dtype | None,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library_prefill, "LENGTH_STEP", 4)
    monkeypatch.setattr(library_prefill, "PIECE", 8)
    made = PagedPass(requests, dtype=dtype, items=items)
    out, cache = torch.full_like(made.q, torch.nan), PagedCache.of(made.arena())

    library_prefill.library_prefill(made.q, out, cache, made.sequences(), made.rules, min_tokens=8)

    long = [torch.full((query_len,), query_len >= 8) for query_len, _ in requests]
    taken = torch.cat(long)
    torch.testing.assert_close(out[taken], made.expected()[taken], rtol=0, atol=ATOL[dtype])
    assert out[~taken].isnan().all()


def test_a_pass_is_shared_between_the_library_and_the_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library_prefill, "MIN_TOKENS", 16)
    monkeypatch.setattr(library_prefill, "LENGTH_STEP", 8)
    monkeypatch.setattr(library_prefill.library_prefill, "__defaults__", (16,))
    made = PagedPass([(1, 5), (20, 47), (4, 9), (15, 15), (16, 16)], dtype=BFLOAT16)

    out = attended(made)

    torch.testing.assert_close(out, made.expected(), rtol=0, atol=ATOL[BFLOAT16])


@pytest.mark.gpu
@pytest.mark.parametrize("requests", [[(4096, 4096)], [(2500, 9000), (1, 300), (70, 70)]])
@pytest.mark.parametrize("items", [None, FP8])
def test_long_chunks_on_a_device_are_as_those_of_the_kernel(
    requests: Sequence[tuple[int, int]], items: torch.dtype | None
) -> None:
    made = PagedPass(
        requests, Heads(8, 2, 128), block_size=16, dtype=BFLOAT16, items=items, device="cuda"
    )
    arena, sequences = made.arena(), made.sequences()

    kv = LayerKv.of(arena, made.dtype)
    out = kv.attend(made.q, sequences)

    capped = Scoring(softcap=1e6)  # which the library does not know, and changes nothing
    by_kernel = kv.attend(made.q, sequences, scoring=capped)
    torch.testing.assert_close(out, by_kernel, rtol=0, atol=3e-2)
