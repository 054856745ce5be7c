"""What a replica does when it is ordered to fail: other rules, standing still, a sudden end."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import subprocess

from baton.core.chaos import LAST_WORDS_S, Chaos, kill_this_process
from baton.core.errors import InvalidRequest
from baton.core.ids import Epoch, ReplicaId
from baton.proto import replica_pb2 as pb
from baton.proto.chaos_wire import injected_to_proto, rules_from_proto

log = logging.getLogger(__name__)

MAX_STOPPED_S = 600.0


def unsettle(
    request: pb.ChaosRequest, chaos: Chaos, replica_id: ReplicaId, epoch: Epoch
) -> pb.ChaosReply:
    """Obey, once the answer is out. Raises InvalidRequest for an impossible order."""
    if request.epoch != epoch:
        raise InvalidRequest("another incarnation of this replica was meant", field="epoch")
    if not 0 <= request.stopped_s <= MAX_STOPPED_S or not math.isfinite(request.stopped_s):
        raise InvalidRequest(f"stopped_s must be at most {MAX_STOPPED_S:g}", field="stopped_s")
    try:
        chaos.set(rules_from_proto(request), request.seed)
    except ValueError as error:
        raise InvalidRequest(str(error), field="rules") from error
    log.warning("CHAOS: %s obeys %d rules%s", replica_id, len(request.rules), _what_else(request))
    loop = asyncio.get_running_loop()
    if request.is_killed:
        loop.call_later(LAST_WORDS_S, kill_this_process)
    elif request.stopped_s:
        loop.call_later(LAST_WORDS_S, _suspend, request.stopped_s)
    return injected_to_proto(chaos)


def _what_else(request: pb.ChaosRequest) -> str:
    if request.is_killed:
        return " and ends at once"
    return f" and stands still for {request.stopped_s:g} s" if request.stopped_s else ""


def _suspend(for_s: float) -> None:
    """A stopped process cannot wake itself: a small one does it, and then ends."""
    waking = f"sleep {for_s:f}; kill -CONT {os.getpid()}"
    subprocess.Popen(["/bin/sh", "-c", waking], start_new_session=True)
    os.kill(os.getpid(), signal.SIGSTOP)
