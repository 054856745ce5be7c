"""Two tensor ranks hand KV over: each the heads that it has, to who keeps them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.engine.rank_processes import RankProcesses, engine_on_ranks
from tests.engine.ranks.greedy_answers import CONFIG, MAX_TOKENS, PROMPTS
from tests.in_process_fleet import Answer, running_fleet
from tests.tiny_checkpoints import FAMILIES, transformers_greedy

from baton.core.ids import ReplicaId
from baton.core.kv_arena import KvArena
from baton.core.rank_memory import Introduction, OwnRows
from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.engine import Engine
from baton.engine.mesh.mesh import Mesh
from baton.engine.ranks.rank_line import RankLine
from baton.kv_transfer import exchange, transports
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer
from baton.kv_transfer.receiving.receiver import ReceiverConfig
from baton.kv_transfer.transport.control.client import ControlClient
from baton.kv_transfer.transport.nixl.nixl import NixlTransport
from baton.kv_transfer.transport.nixl.reading import Reading
from baton.kv_transfer.transport.nixl.reads import NixlReads, ReadResult
from baton.kv_transfer.transport.nixl.sending import NixlSending, RegisteredMemory
from baton.kv_transfer.transport.shm import ShmTransport
from baton.kv_transfer.transports import TRANSPORTS

TENSOR = Mesh(tensor=2)
REGISTERED: list[RegisteredMemory] = []
"""In the process of a rank: its memory, which stays registered."""


def introduce(arena: KvArena, rows: OwnRows) -> Introduction:
    """As a rank on a GPU does."""
    REGISTERED.append(RegisteredMemory())
    return REGISTERED[-1].introduce(arena, rows)


@pytest.fixture
def others() -> Iterator[RankProcesses]:
    """D's, where `ranks` are P's."""
    processes = RankProcesses()
    yield processes
    processes.close()


async def answers_of(
    of_p: Engine,
    of_d: Engine,
    transport: str,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    *,
    is_killed: bool = False,
) -> list[Answer]:
    """`is_killed`: whether P ends by then, as a replica does that has lost a rank."""
    sampling = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)

    def engine_of(role: Role) -> Engine:
        return of_p if role is Role.PREFILL else of_d

    changes = {"transfer.transport": transport}
    async with running_fleet(prefill=1, make_engine=engine_of, changes=changes) as fleet:
        found = [await fleet.ask(prompt, sampling) for prompt in prompts]
        if is_killed:
            await fleet.crash(ReplicaId("prefill-1"))
        await fleet.assert_nothing_is_held()
    return found


async def test_tensor_ranks_hand_over_to_tensor_ranks_head_by_head(
    ranks: RankProcesses,
    others: RankProcesses,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = FAMILIES["llama"](tmp_path)
    expected = transformers_greedy(folder, PROMPTS, MAX_TOKENS)
    monkeypatch.setattr(exchange, "ReceiverConfig", partial(ReceiverConfig, min_stream_bytes=1))
    opened, open_ = set[range](), ShmTransport.open

    def noted(
        self: ShmTransport, address: str, request: OpenTransfer
    ) -> AsyncGenerator[KvPiece, None]:
        opened.add(range(request.layout.first_kv_head, request.layout.stop_kv_head))
        return open_(self, address, request)

    monkeypatch.setattr(ShmTransport, "open", noted)
    with (
        engine_on_ranks(ranks, folder, CONFIG, TENSOR, dtype="float32") as (of_p, _),
        engine_on_ranks(others, folder, CONFIG, TENSOR, dtype="float32") as (of_d, _),
    ):
        found = await answers_of(of_p, of_d, "shm")

    assert [answer.tokens for answer in found] == expected
    assert opened == {range(1), range(1, 2)}
    assert any(answer.receipt.kv_bytes for answer in found)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_nixl_reads_from_the_processes_of_the_ranks_and_a_killed_one_costs_no_token(
    is_killed: bool, others: RankProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nixl")
    folder = FAMILIES["llama"](tmp_path)
    prompts = [PROMPTS[1][:7]] if is_killed else PROMPTS
    expected = transformers_greedy(folder, prompts, MAX_TOKENS)
    alone = assemble_engine(folder, CONFIG, dtype="float32", device="cpu")
    peers, read = set[str | bytes](), NixlReads.read
    with engine_on_ranks(others, folder, CONFIG, TENSOR, introduce=introduce, dtype="float32") as (
        of_p,
        [follower],
    ):

        def noted(self: NixlReads, reading: Reading) -> asyncio.Future[ReadResult]:
            peers.update(part.peer for part in reading.parts)
            if is_killed and follower.process.is_alive():
                follower.process.kill()
                follower.process.join()
            return read(self, reading)

        monkeypatch.setattr(NixlReads, "read", noted)
        found = await answers_of(of_p, alone, "nixl", prompts, is_killed=is_killed)

    assert [answer.tokens for answer in found] == expected
    assert len(peers) >= 2
    assert is_killed or any(answer.receipt.kv_bytes for answer in found)


async def test_ranks_of_d_read_from_ranks_of_p_by_themselves_each_in_its_own_process(
    ranks: RankProcesses, others: RankProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nixl")
    folder = FAMILIES["llama"](tmp_path)
    expected = transformers_greedy(folder, PROMPTS, MAX_TOKENS)
    as_on_gpus = replace(
        TRANSPORTS["nixl"],
        receiving=lambda parts: NixlTransport(
            ControlClient(parts.channels), arena=parts.arena, is_on_device=True
        ),
        sending=lambda parts, arena: NixlSending(arena, is_on_device=True),
    )
    monkeypatch.setattr(transports, "TRANSPORTS", {**TRANSPORTS, "nixl": as_on_gpus})
    asked, ask = Counter[str](), RankLine.ask

    def noted(self: RankLine, what: str, *about: Any) -> Future[Any]:
        asked[what] += 1
        return ask(self, what, *about)

    monkeypatch.setattr(RankLine, "ask", noted)
    with (
        engine_on_ranks(ranks, folder, CONFIG, TENSOR, introduce=introduce, dtype="float32") as (
            of_p,
            _,
        ),
        engine_on_ranks(others, folder, CONFIG, TENSOR, introduce=introduce, dtype="float32") as (
            of_d,
            _,
        ),
    ):
        for engine in (of_p, of_d):
            monkeypatch.setattr(engine.runner.cache, "_is_at_once", True)
            monkeypatch.setattr(engine.runner.cache, "head_runs", ())
        found = await answers_of(of_p, of_d, "nixl")

    assert [answer.tokens for answer in found] == expected
    assert any(answer.receipt.kv_bytes for answer in found)
    assert min(asked[what] for what in ("checksums", "read", "write_rows")) > 0
    assert asked["read"] == asked["drop"], "every buffer was given back"
