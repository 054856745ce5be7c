"""Everything Baton raises on purpose.

    BatonError
    ├── InvalidRequest        the caller's mistake; names the field and the remedy   400
    │   ├── ModelNotFound     no such model is served here                           404
    │   ├── StreamNotFound    no such resumable stream is held by this gateway       404
    │   ├── RequestNotFound   this gateway does not know of such a request any more  404
    │   ├── NotKept           nothing of that id is kept, or not for this caller     404
    │   ├── Forbidden         not with this API key                                  403
    │   │   └── ModelForbidden    not this model with this API key                   403
    │   ├── RequestTooLarge   the body is larger than this server reads              413
    │   ├── RequestTooSlow    what was begun, or announced, does not come            408
    │   └── ContextExceeded   prompt and output do not fit the model's context       400
    ├── Unauthenticated       no API key, or not one of ours                         401
    ├── Overloaded            refused before any work was done; try again later      429
    │   ├── RateLimited       more than the API key's tenant may ask for             429
    │   └── StorageFull       no room is left for what clients let Baton keep        429
    ├── Unavailable           no replica could finish this; safe to try again        503
    │   ├── StreamMoved       it goes on at another gateway, which was asked for it  503
    │   └── StorageUnavailable    what is kept cannot be read or written now         503
    ├── DeadlineExceeded      the caller's own time limit passed                     504
    ├── Cancelled             the caller went away or took the request back          499
    ├── InvalidConfig         a setting that cannot work; names its path
    ├── CheckpointError       the model folder is missing, broken or unsupported
    │   └── ModelUnreachable  it does not come here now; what has come is kept: try again
    ├── EngineFailed          the engine's thread died; the replica must be replaced
    └── TransferError         a handoff that did not happen
        ├── LayoutMismatch    the two sides do not store KV alike
        ├── StaleEpoch        a message for, or from, an earlier incarnation
        ├── CorruptPiece      bytes that do not match their checksum
        ├── TransferCut       the peer cannot be reached; the transfer may be opened again
        │   └── TransportFailed   this way does not work between the two; another one may
        ├── NoTransport       none of the ways that are allowed leads to the peer
        ├── UnknownTransfer   the peer holds nothing for it
        └── TransferAborted   one side gave up: cancel, expiry, crash or pressure
            └── NoRoom        the receiving side is full, as it may be under load

The numbers are HTTP; each edge translates in exactly one place
(`gateway/http/translations.py`, `gateway/grpc/errors.py`).
"""

from __future__ import annotations

ITEM = "\n- "
"""Before each of several mistakes that one error reports: a terminal gives each a line."""


class BatonError(Exception):
    """The root of the tree drawn above."""


class InvalidRequest(BatonError):
    """The caller's mistake.

    `field` is the path of the offending field, as the caller wrote it (`messages[0].content`), or
    None when the request as a whole is at fault.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class ModelNotFound(InvalidRequest):
    """No model of that name is served here."""


class StreamNotFound(InvalidRequest):
    """No resumable stream of that id is held by this gateway, or not for this caller."""


class RequestNotFound(InvalidRequest):
    """No request of that id is known to this gateway any more, or not to this caller."""


class NotKept(InvalidRequest):
    """Nothing of that id is kept: never, not any more, or not for this caller."""


class Forbidden(InvalidRequest):
    """The API key is one of ours, but does not allow this."""


class ModelForbidden(Forbidden):
    """The model is served here, but the API key is not for it."""


class RequestTooLarge(InvalidRequest):
    """The body is larger than this server is willing to read."""


class RequestTooSlow(InvalidRequest):
    """A client that holds a connection without sending what it began, or announced."""


class ContextExceeded(InvalidRequest):
    """Prompt and output together are longer than the model's context."""


class Unauthenticated(BatonError):
    """No API key, or not one of ours."""


class Overloaded(BatonError):
    """Refused at once, before any work was done."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(Overloaded):
    """A tenant has used what it may use; others are served."""


class StorageFull(Overloaded):
    """Data stored for clients takes all of the permitted space."""


class Unavailable(BatonError):
    """No replica could finish the request. Repeating it is safe."""


class StreamMoved(Unavailable):
    """The stream goes on at another gateway, which was asked for it."""


class StorageUnavailable(Unavailable):
    """Stored data cannot be read or written now."""


class DeadlineExceeded(BatonError):
    """The time the caller allowed has passed."""


class Cancelled(BatonError):
    """The caller went away or took the request back."""


class InvalidConfig(BatonError):
    """A setting that cannot work."""


class CheckpointError(BatonError):
    """The model folder is missing, broken or of an architecture Baton does not know."""


class ModelUnreachable(CheckpointError):
    """The model cannot be fetched now; what has come is kept, and asking again may bring more."""


class EngineFailed(BatonError):
    """The engine's thread died. Its pool is not to be trusted: the replica must be replaced."""


class TransferError(BatonError):
    """A handoff that did not happen. The request can still be answered by computing again."""


class LayoutMismatch(TransferError):
    """The two sides store KV differently; see `baton.kv_transfer.layouts.plan`."""


class StaleEpoch(TransferError):
    """A message for, or from, an earlier incarnation of a process."""


class CorruptPiece(TransferError):
    """Bytes that do not match the checksum their sender computed.

    `blocks`, of `num_planes` from `plane` on, is what may be asked for again; where it is empty
    that is of no use.
    """

    def __init__(
        self, message: str, *, plane: int = 0, num_planes: int = 1, blocks: range = range(0)
    ) -> None:
        super().__init__(message)
        self.plane = plane
        self.num_planes = num_planes
        self.blocks = blocks


class TransferCut(TransferError):
    """The stream broke or its peer cannot be reached. The transfer may be opened again."""


class TransportFailed(TransferCut):
    """This way of carrying bytes does not work between the two replicas; another one may."""


class NoTransport(TransferError):
    """None of the transports that are allowed leads to the peer."""


class UnknownTransfer(TransferError):
    """The peer holds nothing for this transfer: never offered, or settled long ago."""


class TransferAborted(TransferError):
    """One side gave the handoff up: cancel, expiry, crash or memory pressure."""


class NoRoom(TransferAborted):
    """The receiving side had no room for the handoff, as may happen under load."""
