"""One engine's prompt in another's blocks, without anything between them."""

from __future__ import annotations

from collections.abc import Sequence

from baton.core.kv_pool import Holder, HolderKind
from baton.core.sampling import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.request import Request


def handed_over(
    source: Engine, target: Engine, prompt: Sequence[int], sampling: SamplingParams
) -> Request:
    """A request whose prompt `source` computed, in blocks of `target`, with all their planes."""
    first = Request("first", prompt, sampling=sampling)
    source.add(first)
    while not first.output:
        source.step()
    lease = Holder(HolderKind.LEASE, "lease")
    target.pool.reserve(lease, prompt, first.salt)
    for index in range(len(target.pool.table(lease))):
        for plane in range(target.pool.layout.num_planes):
            view = source.pool.view(first.holder, index, plane)
            target.pool.write(lease, index, plane, view)
    request = Request("r", prompt, output=first.output[:1], sampling=sampling)
    target.adopt(request, lease)
    source.abort("first")
    return request
