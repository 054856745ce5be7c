"""Communication between the ranks that compute one model together.

    rank      one process, one device, one share of the model
    lead      the first of an engine's ranks: it schedules, samples and serves; the others follow

    all_reduce_   x becomes the sum of all ranks' x      after attention, after the feed-forward
    all_gather    the x of each, in the order of ranks   of logits
    broadcast_    x becomes that of the first rank       of the lead's orders
    send          x to one rank, which `receive_`s it    of activations, from stage to stage
    all_to_all    rows to each rank, rows from each      of tokens, to and from their experts

A group is a value that is passed down, without global state, so a process can have several. Every
rank sums in the same order, so all have the same bits. A rank is in one group per axis of the mesh,
and in the group of all ranks.
"""

from __future__ import annotations

import socket
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed
from torch import Tensor

from baton.engine.mesh.mesh import Axis, Mesh, Place

c10d: Any = torch.distributed  # its stubs lack most of what is used here

JOIN_S = 120.0
"""Seconds for all ranks to join: each starts a process, and finds its device."""
ORDER_TIMEOUT = timedelta(seconds=30)
"""The longest time of sending an order. Gloo's send ends when it is received, so a rank that does
not `receive_order` in time makes the lead raise. Without the limit Gloo would sometimes wait for
ever for a rank that has just ended."""
UNLIMITED = timedelta(days=365)
"""The wait for the next pass is unlimited; a dead rank is noticed by its connection."""
FOR_EVER = timedelta(0)
"""c10d's value for an unlimited wait; on a device the stream waits."""


class Ranks(Protocol):
    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce_(self, x: Tensor) -> Tensor:
        """Sum `x` over all ranks in place; it is contiguous, and returned."""

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """`x` has the same shape on all ranks."""

    def broadcast_(self, x: Tensor) -> Tensor: ...


class SingleRank:
    """A single rank, without communication."""

    rank: ClassVar[int] = 0
    size: ClassVar[int] = 1

    def all_reduce_(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> list[Tensor]:
        return [x]

    def broadcast_(self, x: Tensor) -> Tensor:
        return x


ALONE = SingleRank()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """The rendezvous of a replica's ranks."""

    host: str
    """The lead's address."""
    port: int
    mesh: Mesh
    backend: str
    """gloo, of CPUs, or nccl."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message being sent."""

    work: Any
    x: Tensor
    """The tensor, which must stay alive until `wait` returns."""

    def wait(self) -> None:
        """Wait until it was received. Raises RuntimeError if the connection broke."""
        self.work.wait()


class RankGroup:
    """A group of torch.distributed ranks. Every call raises RuntimeError once a rank is gone."""

    def __init__(self, group: Any, control: Any, store: Any, members: tuple[int, ...]) -> None:
        """`group`: for device tensors; `control`: for host data."""
        self.members = members
        """Mesh ranks of the members; within the group they are counted from 0."""
        self._group = group
        self._control = control
        self._store = store  # the store ends with the lead's, which all groups need
        self.rank: int = group.rank()
        self.size: int = group.size()

    def all_reduce_(self, x: Tensor) -> Tensor:
        if x.numel():  # a prompt's pass may have no outputs, on any rank
            self._group.allreduce([x]).wait()
        return x

    def all_gather(self, x: Tensor) -> list[Tensor]:
        found = [torch.empty_like(x) for _ in range(self.size)]
        self._group.allgather([found], [x.contiguous()]).wait()
        return found

    def broadcast_(self, x: Tensor, within: timedelta = FOR_EVER) -> Tensor:
        """Raises RuntimeError if the first rank's `x` was not sent within that time."""
        options = c10d.BroadcastOptions()
        options.rootRank = 0
        self._mover(x).broadcast([x], options).wait(within)
        return x

    def send(self, x: Tensor, to: int) -> Sent:
        """Send `x` to one rank, which receives in the order in which it is sent; returns at once.

        `x` is contiguous, and to be left alone until `wait` of what is returned is over.
        """
        return Sent(self._mover(x).send([x], to, 0), x)

    def receive_(self, x: Tensor, source: int) -> Tensor:
        """Receive into `x`, which has the shape and dtype of the sent tensor."""
        self._mover(x).recv([x], source, 0).wait()
        return x

    def _mover(self, x: Tensor) -> Any:
        return self._group if x.is_cuda else self._control

    def all_to_all(self, x: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """x [R, ...]: `sent[r]` rows of it go to rank r, in order, and `received[r]` come of it."""
        found = x.new_empty(sum(received), *x.shape[1:])
        self._group.alltoall_base(found, x.contiguous(), list(received), list(sent)).wait()
        return found

    def leave_word(self, name: str, word: bytes) -> None:
        """Publish a value for other ranks."""
        self._store.set(f"{name} {self.rank}", word)

    def word_of(self, name: str, rank: int) -> bytes:
        """The value published by a rank; blocks. Raises RuntimeError if it does not come."""
        word: bytes = self._store.get(f"{name} {rank}")
        return word

    def gather(self, words: array[int], within: timedelta = FOR_EVER) -> list[list[int]]:
        """The numbers of all ranks, equally many each. Raises RuntimeError if a rank is not heard
        within that time."""
        own = torch.frombuffer(words, dtype=torch.int64)
        found = [torch.empty_like(own) for _ in range(self.size)]
        self._control.allgather([found], [own]).wait(within)
        return [each.tolist() for each in found]

    def send_order(self, words: array[int]) -> None:
        """Send an order to all other ranks; only called by the lead."""
        self.broadcast_(torch.tensor([len(words)]), ORDER_TIMEOUT)
        self.broadcast_(torch.frombuffer(words, dtype=torch.int64), ORDER_TIMEOUT)

    def receive_order(self) -> Sequence[int]:
        """The lead's next order; blocks."""
        (count,) = self.broadcast_(torch.zeros(1, dtype=torch.int64)).tolist()
        words: list[int] = self.broadcast_(torch.empty(count, dtype=torch.int64)).tolist()
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshGroups:
    """The groups that one rank of a mesh is in."""

    mesh: Mesh
    everyone: Ranks
    tensor: Ranks
    context: Ranks
    data: Ranks
    pipeline: Ranks
    expert: Ranks
    engine: Ranks
    """All ranks of this rank's engine, its lead first."""

    @property
    def place(self) -> Place:
        return self.mesh.place(self.everyone.rank)


ONE_RANK = MeshGroups(
    mesh=Mesh(),
    everyone=ALONE,
    tensor=ALONE,
    context=ALONE,
    data=ALONE,
    pipeline=ALONE,
    expert=ALONE,
    engine=ALONE,
)


def listen(host: str) -> socket.socket:
    """The lead's listening socket. Raises OSError if `host` is not an address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family)


def join(meeting: Rendezvous, rank: int, listener: socket.socket | None = None) -> MeshGroups:
    """Join the groups; blocks until all ranks have. Raises RuntimeError if one does not.

    The lead brings the socket that it listens on, at the meeting's port.
    """
    patience = timedelta(seconds=JOIN_S)
    handle = {} if listener is None else {"master_listen_fd": listener.detach()}
    store = c10d.TCPStore(
        meeting.host, meeting.port, None, listener is not None, patience, False, **handle
    )
    mesh = meeting.mesh
    everyone = _group(store, meeting, tuple(range(mesh.size)), rank)
    own: dict[tuple[int, ...], Ranks] = {(rank,): ALONE, everyone.members: everyone}
    of_axes = {axis.value: mesh.members(axis, rank) for axis in Axis}
    wanted = {**of_axes, "engine": mesh.engine_members(rank)}
    for members in wanted.values():  # all ranks make their groups in the same order
        if members not in own:
            own[members] = _group(store, meeting, members, rank)
    groups = {name: own[members] for name, members in wanted.items()}
    return MeshGroups(mesh=mesh, everyone=everyone, **groups)


def _group(store: Any, meeting: Rendezvous, members: tuple[int, ...], rank: int) -> RankGroup:
    """The group of some ranks, including this one."""
    name = " ".join(map(str, members))
    own, size = members.index(rank), len(members)
    meet = c10d.PrefixStore(name, store.clone())
    control = _gloo(c10d.PrefixStore("control", meet), meeting, own, size, is_lead=rank == 0)
    group = control
    if meeting.backend == "nccl":
        options = c10d.ProcessGroupNCCL.Options()
        group = c10d.ProcessGroupNCCL(c10d.PrefixStore("nccl", meet), own, size, options)
        group.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
    return RankGroup(group, control, c10d.PrefixStore(name, store), members)


def _gloo(store: Any, meeting: Rendezvous, rank: int, size: int, *, is_lead: bool) -> Any:
    options = c10d.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=JOIN_S)
    options._threads = 1
    own_host = meeting.host if is_lead else _own_host(meeting)
    options._devices = [c10d.ProcessGroupGloo.create_device(hostname=own_host)]
    group = c10d.ProcessGroupGloo(store, rank, size, options)
    group.set_timeout(UNLIMITED)
    return group


def _own_host(meeting: Rendezvous) -> str:
    """This machine's address on the way to the lead's."""
    with socket.socket(
        socket.AF_INET6 if ":" in meeting.host else socket.AF_INET, socket.SOCK_DGRAM
    ) as probe:
        probe.connect((meeting.host, meeting.port))  # a UDP socket: nothing is sent
        return str(probe.getsockname()[0])
