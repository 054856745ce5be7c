"""Echo engines whose head knows what they will say, and what such a head is shown."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tests.echo_engines import BLOCK_SIZE, VOCAB, make_engine, make_request, run
from tests.echo_head import EchoHead
from tests.guessing_drafter import ErringDrafter

from baton.core.kv_pool import Holder, HolderKind
from baton.engine.engine import Engine
from baton.engine.memory.kv_cache import KvCache
from baton.engine.passes.echo import EchoRunner, echo_output
from baton.engine.request.request import Phase, Request
from baton.engine.request.step_report import StepReport
from baton.engine.speculation.draft_budget import FixedBudget
from baton.engine.speculation.head_drafter import HeadDrafter
from baton.engine.speculation.hidden_reader import HiddenReader, Shown
from baton.engine.speculation.speculation import Speculation


class Never(FixedBudget):
    """Until it is told otherwise."""

    is_on = False

    def begins(self, num_running: int) -> bool:
        return self.is_on


class Waking(FixedBudget):
    """Drafts in six of 18 steps, and is inactive in the others."""

    num_steps = 0

    @property
    def is_paused(self) -> bool:  # type: ignore[override]
        return self.num_steps % 18 < 12

    is_inactive = is_paused

    def begins(self, num_running: int) -> bool:
        return not self.is_paused

    def learn(self, report: StepReport, seconds: float) -> None:
        self.num_steps += 1


def with_head(
    engine: Engine,
    *,
    num_blocks: int = 256,
    errs_every: int = 0,
    budget: FixedBudget | None = None,
    is_parallel: bool = False,
) -> EchoHead:
    assert isinstance(engine.runner, EchoRunner)
    head = EchoHead(engine.runner, is_parallel=is_parallel)
    cache = KvCache(engine.info.layout(BLOCK_SIZE), num_blocks)
    drafter = HeadDrafter("mtp", head, cache, eos_token_ids=())
    drafting = ErringDrafter(drafter, errs_every) if errs_every else drafter
    engine.speculation = Speculation(drafting, budget or FixedBudget(3), reader=drafter)
    return head


def ask(engine: Engine, prompt: Sequence[int], num_tokens: int = 40, name: str = "r") -> Request:
    request = make_request(name, prompt, max_tokens=num_tokens)
    engine.add(request)
    run(engine)
    assert request.output == echo_output(prompt, num_tokens, VOCAB)
    return request


def head_of(num_blocks: int) -> HeadDrafter:
    """A head on its own."""
    engine = make_engine()
    with_head(engine, num_blocks=num_blocks)
    assert engine.speculation is not None
    assert isinstance(engine.speculation.reader, HeadDrafter)
    return engine.speculation.reader


def running(name: str, num_tokens: int, first: int = 0) -> Request:
    request = make_request(name, range(first, first + num_tokens))
    request.phase = Phase.RUNNING
    return request


def show(drafter: HiddenReader, request: Request, start: int, num_rows: int) -> None:
    hidden = torch.arange(num_rows).unsqueeze(1)
    drafter.read([Shown(request, start, num_rows)], hidden, is_paused=False)


def copy_kv(source: Engine, target: Engine, lease: Holder, prompt: Sequence[int]) -> None:
    """What was computed there, block by block, into the blocks of `lease`."""
    kept = Holder(HolderKind.LEASE, "kept")
    source.pool.hold_cached(kept, prompt, b"")
    for index in range(len(target.pool.table(lease))):
        for plane in range(target.pool.layout.num_planes):
            if index < len(source.pool.table(kept)):
                view = source.pool.view(kept, index, plane)
                target.pool.write(lease, index, plane, view)
