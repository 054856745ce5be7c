"""Suffix matching (as in SuffixDecoding, Oliaro et al. 2024, https://arxiv.org/abs/2411.04975):
drafts the tokens that followed the request's last tokens earlier, in the request itself and in
recently finished outputs, as far as most matches agree.

    last tokens of the request        ... a b c
    after a b c, here and there       d e f  |  d e g  |  d x
    draft                             d  (3 of 3)   e  (2 of 3)   f  (1 of 2)

Longer matches count for more. Outputs are used only for requests of the same tenant and cache salt:
the speed of a request must not reveal another tenant's outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.engine.request.request import Request
from baton.engine.speculation.drafter import NO_DRAFT, Draft
from baton.engine.speculation.request_texts import RequestTexts
from baton.kernels.drafting.look_up import LookUp
from baton.kernels.drafting.token_text import GAP, TokenText, kind_of_texts

LOOK_UP = LookUp(max_match=32, max_places=4, min_share=0.3, sure_length=8)
MAX_RECENT, MAX_RECENT_IN_ALL = 32_768, 1 << 20
"""Most tokens of finished outputs kept for one tenant and salt, and for all together, at about 20
bytes each. Beyond the first limit the older half is dropped; beyond the second the least recently
used tenant and salt."""

Salt = tuple[str, bytes]


class SuffixDrafter:
    """A `Drafter` that looks up suffixes in the request and in finished outputs."""

    name = "suffix"
    is_costly = False

    def __init__(self) -> None:
        self._new_text = kind_of_texts()
        self._texts = RequestTexts(self._new_text)
        self._recent: dict[Salt, TokenText] = {}
        """Finished outputs by tenant and salt, the least recently used first."""
        self._num_recent = 0
        """Tokens of all of them."""

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        texts = self._texts.follow(requests)
        return [
            self._propose(request, text, max_tokens)
            for request, text in zip(requests, texts, strict=True)
        ]

    def forget(self, request: Request) -> None:
        """Forget the request, but keep its output, whether it was drafted for or not."""
        self._texts.forget(request)
        if not request.output:
            return
        salt = request.tenant, request.salt
        recent = self._recent.pop(salt, None) or self._new_text()
        self._num_recent -= len(recent)
        if len(recent) + len(request.output) > MAX_RECENT:
            younger = recent.last(MAX_RECENT // 2)
            recent = self._new_text()
            recent.extend(younger)
        recent.extend([*request.output[-MAX_RECENT // 2 :], GAP])
        self._recent[salt] = recent
        self._num_recent += len(recent)
        while self._num_recent > MAX_RECENT_IN_ALL:
            oldest = self._recent.pop(next(iter(self._recent)))
            self._num_recent -= len(oldest)

    def _propose(self, request: Request, text: TokenText, max_tokens: int) -> Draft:
        recent = self._recent.get((request.tenant, request.salt))
        tokens, confidences = text.agreed(request.tokens, LOOK_UP, max_tokens, recent)
        return Draft(tokens, confidences) if tokens else NO_DRAFT
