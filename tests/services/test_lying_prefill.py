"""A prefill replica that says what cannot be costs a local computation, never a wrong answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.in_process_fleet import GREEDY, VOCAB_SIZE, running_fleet

from baton.core.messages import PrefillDone, PrefillGranted
from baton.engine.passes.echo import echo_output
from baton.prefill_service import server
from baton.proto import prefill_wire
from baton.proto import replica_pb2 as pb

PROMPT = [7, 3, 9, 1, 4, 4, 8, 2, 6, 5, 11]

Lie = Callable[[pb.PrefillGranted], None]


def another_transfer(granted: pb.PrefillGranted) -> None:
    granted.transfer_id = "somebody-elses"


def another_incarnation(granted: pb.PrefillGranted) -> None:
    granted.sender_epoch = "an-earlier-one"


def more_tokens(granted: pb.PrefillGranted) -> None:
    granted.num_tokens += 1


def all_cached(granted: pb.PrefillGranted) -> None:
    granted.num_cached = granted.num_tokens


def blocks_of_no_tokens(granted: pb.PrefillGranted) -> None:
    granted.layout.block_size = 0


def an_unknown_dtype(granted: pb.PrefillGranted) -> None:
    granted.layout.dtype = "float3"


def huge_blocks(granted: pb.PrefillGranted) -> None:
    granted.layout.block_size = 1 << 31


@pytest.mark.parametrize(
    "lie",
    [
        another_transfer,
        another_incarnation,
        more_tokens,
        all_cached,
        blocks_of_no_tokens,
        an_unknown_dtype,
        huge_blocks,
    ],
)
async def test_a_grant_of_something_else_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, lie: Lie
) -> None:
    write = prefill_wire.granted_to_proto

    def lying(granted: PrefillGranted) -> pb.PrefillGranted:
        message = write(granted)
        lie(message)
        return message

    async with running_fleet(prefill=1, decode=1) as fleet:
        monkeypatch.setattr(server, "granted_to_proto", lying)

        answer = await fleet.ask(PROMPT)

        assert answer.tokens == echo_output(PROMPT, GREEDY.max_tokens, VOCAB_SIZE)
        assert answer.receipt.attempts == 1
        assert answer.receipt.transport == ""
        await fleet.assert_nothing_is_held()


async def test_a_first_token_outside_the_vocabulary_is_never_given_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = prefill_wire.done_to_proto

    def lying(done: PrefillDone) -> pb.PrefillDone:
        message = write(done)
        message.token = VOCAB_SIZE
        return message

    async with running_fleet(prefill=1, decode=1) as fleet:
        monkeypatch.setattr(server, "done_to_proto", lying)

        answer = await fleet.ask(PROMPT)

        assert answer.tokens == echo_output(PROMPT, GREEDY.max_tokens, VOCAB_SIZE)
        assert answer.receipt.attempts == 1
        await fleet.assert_nothing_is_held()
