"""Pieces that P sends when D asks for them: each to the holder of its secret, once.

    lend --> [waiting] --claim--> [being sent] --sent--> [with D] --give_back--> over
                 `--------- give_back --------> over

A piece that is given back while its bytes are being sent, or copied to be sent, is kept until that
is over: nothing else is put into its blocks before. So no byte of another request can leave. One
that is given up as well is not sent to its end.
"""

from __future__ import annotations

import hmac
import itertools
import secrets
import threading
from dataclasses import dataclass, field, replace
from functools import partial

from baton.kernels.paging.piece_stream import GivingUp
from baton.kv_transfer.handoff.transport import LentPiece

SECRET_BYTES = 16


@dataclass(slots=True, eq=False)
class Loan:
    number: int
    secret: bytes
    piece: LentPiece
    giving_up: GivingUp = field(default_factory=GivingUp)
    is_being_sent: bool = False
    is_wanted_back: bool = False


class Loans:
    """Pieces lent to D until it asks for them. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Loan] = {}

    def __len__(self) -> int:
        """Pieces that nobody has asked for yet."""
        return len(self._waiting)

    def lend(self, piece: LentPiece) -> tuple[Loan, LentPiece]:
        """What it is asked for by, and the piece as its lender is to give it back."""
        loan = Loan(next(self._numbers), secrets.token_bytes(SECRET_BYTES), piece)
        with self._lock:
            self._waiting[loan.number] = loan
        give_back = partial(self._give_back, loan)
        return loan, replace(piece, give_back=give_back, give_up=loan.giving_up.set)

    def claim(self, number: int, secret: bytes) -> Loan | None:
        """Claim a piece to send it now; None if it is not lent, or if the secret is wrong.

        Call `sent` when it is over, however it went.
        """
        with self._lock:
            loan = self._waiting.get(number)
            if loan is None or not hmac.compare_digest(loan.secret, secret):
                return None
            del self._waiting[number]
            loan.is_being_sent = True
            return loan

    def sent(self, loan: Loan) -> None:
        with self._lock:
            loan.is_being_sent = False
            is_over = loan.is_wanted_back
        if is_over:
            loan.piece.give_back()

    def _give_back(self, loan: Loan) -> None:
        with self._lock:
            self._waiting.pop(loan.number, None)
            loan.is_wanted_back = True
            if loan.is_being_sent:
                return
        loan.piece.give_back()
