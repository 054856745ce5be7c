"""Translates Ray's messages to one line each, with a remedy, or drops them.

Known paragraphs are recognised by a phrase. Of others the first sentence is shown, and where to
find the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

Process = tuple[str, str]
"""IP address of the node, and pid."""
MEMORY = (
    "quantize the weights (--quantize int8), start fewer replicas, or keep smaller caches "
    "(--cache-gib, --max-model-len)"
)
"""The remedy for too little memory."""
ALL_OF_IT = "-v shows all of it, and so do the logs in /tmp/ray/session_latest/logs"
LATE = r"timed out during startup|failed to start.*(GCS|raylet)|did not start"
SAYINGS: Sequence[tuple[str, str]] = (
    (
        r"memory pressure|low on memory|OutOfMemory",
        f"Ray ended a process, for the machine's memory is nearly full; {MEMORY}",
    ),
    (r"worker processes have been started", ""),  # as many workers as replicas: intended
    (r"Task ServeController\.\w+ failed", ""),  # repeated while it hangs, which we report
    (
        r"worker died or was killed(.* Worker IP address: (?P<ip>\S+).* Worker PID: (?P<pid>\d+))?",
        "a process died unasked; Serve starts another, and its last words are in its log (-v)",
    ),
    (
        r"is over \d+(\.\d+)?% full",
        "the disk with Ray's files is nearly full: free some of it, or set RAY_TMPDIR",
    ),
    (
        r"missed too many heartbeats|failed to be health checked|marked dead",
        "a node of Ray does not answer any more: it is overloaded, or its machine is gone",
    ),
    (
        r"cannot be scheduled|insufficient resources",
        "Ray has no room for an actor: ask for fewer replicas, or give the cluster more nodes",
    ),
    (
        LATE,
        "Ray did not come up in time: the machine is overloaded, or /tmp or /dev/shm is full; "
        "start again when it is quieter",
    ),
    (
        r"does not match the client|[Vv]ersion mismatch",
        "the cluster runs another version of Ray or of Python: install the same here",
    ),
    (
        r"Failed to connect to GCS|Could not find any running Ray|ConnectionError",
        "no cluster of Ray answers at ray.address: is it running, and is its port open?",
    ),
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(r"^\((raylet|autoscaler)[^)]*\)\s*")


def came_late(error: Exception) -> bool:
    """Whether Ray gave up because one of its own processes started too late."""
    return re.search(LATE, " ".join(str(error).split())) is not None


def in_one_line(text: str, names: Mapping[Process, str] = MappingProxyType({})) -> str:
    """The message in one line; empty if it is irrelevant. `names`: of processes, in our log."""
    plain = _PREFIX.sub("", " ".join(_COLOUR.sub("", text).split()))
    for phrase, line in SAYINGS:
        if match := re.search(phrase, plain):
            if (pid := match.groupdict().get("pid")) is None:
                return line
            name = names.get((match["ip"], pid))
            return line.replace("a process", f"process {pid}" + (f" ({name})" if name else ""))
    first, _, _ = plain.partition(". ")
    return f"Ray says: {first}; {ALL_OF_IT}" if first else ""
