"""What a request has used, added up over its attempts.

attempt 1, lost or moved ----.
attempt 2, the same ---------+--> spent      after its last receipt, an attempt's use is
attempt 3, under way --> current             counted by its tokens: one was computed for each
"""

from __future__ import annotations

from dataclasses import replace

from baton.core.messages import Receipt


class Accounts:
    def __init__(self, num_prompt_tokens: int) -> None:
        self.num_output = 0
        """Tokens taken so far, over all attempts."""
        self.num_before = 0
        """Tokens of these that came from earlier attempts than the current one."""
        self.number = 0
        """The number of the current attempt; 0 before the first."""
        self._num_prompt_tokens = num_prompt_tokens
        self._spent = Receipt()
        self._current = Receipt()
        self._placement = ""
        self._queue_ms = 0.0

    @property
    def num_of_attempt(self) -> int:
        """Output tokens of the current attempt."""
        return self.num_output - self.num_before

    @property
    def receipt(self) -> Receipt:
        spent, current = self._spent, self._current
        prompt = spent if self.num_before else current
        """The attempt that gave the first token has accounted for the prompt."""
        return replace(
            current,
            placement=self._placement,
            prefill_replica=current.prefill_replica or spent.prefill_replica,
            adapter=current.adapter or spent.adapter,
            attempts=max(self.number, 1),
            prompt_tokens=self._num_prompt_tokens,
            cached_tokens=prompt.cached_tokens,
            cache_write_tokens=prompt.cache_write_tokens,
            pulled_tokens=spent.pulled_tokens + current.pulled_tokens,
            computed_tokens=spent.computed_tokens + current.computed_tokens + self._num_unreported,
            drafted_tokens=spent.drafted_tokens + current.drafted_tokens,
            accepted_tokens=spent.accepted_tokens + current.accepted_tokens,
            output_tokens=self.num_output,
            kv_bytes=spent.kv_bytes + current.kv_bytes,
            transport=current.transport or spent.transport,
            queue_ms=_to_us(self._queue_ms + spent.queue_ms + current.queue_ms),
            prefill_ms=_to_us(spent.prefill_ms + current.prefill_ms),
            transfer_ms=_to_us(spent.transfer_ms + current.transfer_ms),
            decode_ms=_to_us(spent.decode_ms + current.decode_ms),
            notes=spent.notes + current.notes,
        )

    def begin_attempt(self, number: int, placement: str) -> None:
        self.number = number
        self.num_before = self.num_output
        self._placement = placement

    def waited(self, queue_ms: float) -> None:
        """Add the milliseconds that the request waited for a place."""
        self._queue_ms += queue_ms

    def observe(self, receipt: Receipt | None, num_tokens: int) -> None:
        """Take in the current attempt's latest receipt, and the tokens that came with it."""
        if receipt is not None:
            self._current = receipt
        self.num_output += num_tokens

    def end_attempt(self, note: str) -> None:
        """The current attempt is over, or moved away; another follows."""
        receipt = self.receipt
        self._spent = replace(receipt, notes=(*receipt.notes, note))
        self._current = Receipt()
        self._queue_ms = 0.0

    @property
    def _num_unreported(self) -> int:
        """Output tokens of this attempt since its last receipt: each took one computed token."""
        return max(0, self.num_of_attempt - self._current.output_tokens)


def _to_us(milliseconds: float) -> float:
    """Rounded to microseconds: people read receipts, and further digits are noise."""
    return round(milliseconds, 3)
