"""Two tensor ranks hand KV over to two: each the heads that it has, to the one that keeps them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.engine.rank_processes import RankProcesses, engine_on_ranks
from tests.engine.ranks.greedy_answers import CONFIG, MAX_TOKENS, PROMPTS
from tests.in_process_fleet import running_fleet
from tests.tiny_checkpoints import FAMILIES, transformers_greedy

from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.engine.engine import Engine
from baton.engine.mesh.mesh import Mesh
from baton.kv_transfer import exchange
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer
from baton.kv_transfer.receiving.receiver import ReceiverConfig
from baton.kv_transfer.transport.tcp.tcp import TcpTransport

TENSOR = Mesh(tensor=2)


@pytest.fixture
def others() -> Iterator[RankProcesses]:
    """D's, where `ranks` are P's."""
    processes = RankProcesses()
    yield processes
    processes.close()


async def test_tensor_ranks_hand_over_to_tensor_ranks_head_by_head(
    ranks: RankProcesses,
    others: RankProcesses,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = FAMILIES["llama"](tmp_path)
    expected = transformers_greedy(folder, PROMPTS, MAX_TOKENS)
    sampling = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    monkeypatch.setattr(exchange, "ReceiverConfig", partial(ReceiverConfig, min_stream_bytes=1))
    opened, open_ = set[range](), TcpTransport.open

    def noted(
        self: TcpTransport, address: str, request: OpenTransfer
    ) -> AsyncGenerator[KvPiece, None]:
        opened.add(range(request.layout.first_kv_head, request.layout.stop_kv_head))
        return open_(self, address, request)

    monkeypatch.setattr(TcpTransport, "open", noted)
    with (
        engine_on_ranks(ranks, folder, CONFIG, TENSOR, dtype="float32") as (of_p, _),
        engine_on_ranks(others, folder, CONFIG, TENSOR, dtype="float32") as (of_d, _),
    ):

        def engine_of(role: Role) -> Engine:
            return of_p if role is Role.PREFILL else of_d

        changes = {"transfer.transport": "tcp"}
        async with running_fleet(prefill=1, make_engine=engine_of, changes=changes) as fleet:
            found = [await fleet.ask(prompt, sampling) for prompt in PROMPTS]
            await fleet.assert_nothing_is_held()

    assert [answer.tokens for answer in found] == expected
    assert opened == {range(1), range(1, 2)}
    assert any(answer.receipt.kv_bytes for answer in found)
