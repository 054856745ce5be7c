"""Reads grammars with llguidance, within limits, for one model's tokens.

    Grammar --start--> LLMatcher      the state before the first token, or InvalidRequest and why

The gateway refuses a bad grammar with this before anything runs; the engine continues from the
state (`engine/grammar/structured_output.py`). Does not import torch, which a gateway does not load.

A grammar comes from a client and may be hostile. llguidance counts its own work, so a state that is
too costly to compute is an error of that request alone. Its default limits are meant for trusted
grammars: they allow seconds per token and hundreds of megabytes.

llguidance does not count the length of repetitions, the depth of references and the time that
intersections take. These are bounded by `engine/grammar/grammar_size.py` and
`engine/grammar/grammar_readers.py`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from baton.core.errors import InvalidRequest
from baton.core.sampling import Grammar, GrammarKind
from baton.engine.grammar.grammar_readers import GrammarReaders
from baton.engine.grammar.grammar_size import check_size

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer
    from llguidance._lib import JsonCompileOptions

MAX_SOURCE_BYTES = 64 * 1024
MAX_GRAMMAR_SYMBOLS = 20_000
"""Reading a grammar takes time quadratic in its symbols: a second at the limit, which is an object
of 2000 properties."""
MAX_ROW_ITEMS = 640
"""Most parse items per token, the ways to parse the output so far. The next token of an ambiguous
grammar takes time quadratic in them, a tenth of a second at the limit. An optional property that
may still follow takes four of them."""
MAX_STEP_ITEMS = 20_000
"""Most parse items of a step, over all tokens that may come next."""
MAX_LEXER_STATES = 20_000
"""Most states of the lexer; each takes one to two kilobytes."""
MAX_LEXER_FUEL = 200_000
"""Most steps to build the automata of regular expressions."""
MAX_INTERSECTED = 16
"""Most expressions that must match at once. Each doubles the work that llguidance does between two
checks of its limits."""
MAX_REASON_LEN = 400
MAX_READ = 32
"""Number of recent grammars whose state before the first token is cached: reading a grammar of 20
tools takes tens of milliseconds."""

JSON_LAYOUT: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
}
"""At most one space after a separator, and no other whitespace outside strings: models are trained
to write that space, and with free whitespace a weak model may write blanks up to its token
limit."""


class GrammarChecker:
    """Reads and checks grammars for one model's tokens. Safe to use from several threads.

    `read_tokenizer` returns the text of `tokenizer.json`; it is called once, for the first grammar.
    """

    def __init__(
        self, read_tokenizer: Callable[[], str], eos_token_ids: Collection[int] = ()
    ) -> None:
        self._read_tokenizer = read_tokenizer
        self._eos_token_ids = sorted(eos_token_ids)
        self._readers = GrammarReaders()
        self._read: dict[Grammar, LLMatcher] = {}
        self._lock = threading.Lock()
        self._tokens: LLTokenizer | None = None

    def check(self, grammar: Grammar, *, field: str | None = None) -> None:
        """Raise InvalidRequest, naming `field`, for a grammar that cannot be followed.

        May take a second: call it off the event loop.
        """
        try:
            next_tokens(self.start(grammar))
        except InvalidRequest as error:
            raise InvalidRequest(error.message, field=field) from None

    def start(self, grammar: Grammar) -> LLMatcher:
        """The state of a grammar before its first token; a copy of the cached one if the grammar
        was read before, as requests with the same tools have the same grammar.

        Raises InvalidRequest if the grammar is malformed or exceeds the limits, and Overloaded if
        reading it takes too long.
        """
        with self._lock:
            if (known := self._read.get(grammar)) is not None:
                return known.deep_copy()
        if len(grammar.source.encode()) > MAX_SOURCE_BYTES:
            raise InvalidRequest(f"a grammar may have at most {MAX_SOURCE_BYTES} bytes")
        check_size(grammar)
        _refuse_intersections(grammar)
        tokens = self._known_tokens()
        # Imported here because only deployments that use grammars need the package.
        from llguidance import LLMatcher

        notation, limits = _notation(grammar), _limits()
        matcher = self._readers.read(
            lambda: LLMatcher(tokens, notation, log_level=0, limits=limits)
        )
        raise_if_failed(matcher)
        with self._lock:
            while len(self._read) >= MAX_READ:
                del self._read[next(iter(self._read))]
            self._read[grammar] = matcher.deep_copy()
        return matcher

    def _known_tokens(self) -> LLTokenizer:
        with self._lock:
            if self._tokens is None:
                self._tokens = _read_tokens(self._read_tokenizer(), self._eos_token_ids)
            return self._tokens


def next_tokens(matcher: LLMatcher) -> bytes:
    """The mask of allowed next tokens: one bit per token of the tokenizer, lowest first, padded to
    whole 32-bit words. Raises InvalidRequest if no token is allowed or the matcher has failed."""
    mask = matcher.compute_bitmask()
    raise_if_failed(matcher)
    if not any(mask):
        raise InvalidRequest("no token of this model can continue the grammar")
    return mask


def raise_if_failed(matcher: LLMatcher) -> None:
    """Raise InvalidRequest if the matcher is in an error state."""
    if matcher.is_error():
        raise InvalidRequest(f"the grammar cannot be followed: {_reason(matcher.get_error())}")


def _read_tokens(tokenizer_json: str, eos_token_ids: list[int]) -> LLTokenizer:
    """Build llguidance's tokenizer; takes a second for a large vocabulary. Raises InvalidRequest
    if the package is missing or the tokenizer is not supported."""
    try:
        from llguidance import LLTokenizer
    except ImportError:
        raise InvalidRequest(
            "structured output needs a package that is not installed here: pip install llguidance"
        ) from None
    try:
        return LLTokenizer(tokenizer_json, eos_token=eos_token_ids or None)
    except ValueError as error:
        raise InvalidRequest(
            f"structured output does not work with this model's tokenizer: {error}"
        ) from error


def _refuse_intersections(grammar: Grammar) -> None:
    """Raise InvalidRequest if the source has too many expressions that may have to match at once:
    `&` in Lark, and patterns of a schema that can be combined by allOf or $ref. A Lark grammar may
    embed JSON schemas, so these are counted in both."""
    is_json, plain = grammar.kind is GrammarKind.JSON_SCHEMA, grammar.source
    if grammar.kind is GrammarKind.LARK and plain.count("&") >= MAX_INTERSECTED:
        raise InvalidRequest(f"a grammar may have at most {MAX_INTERSECTED - 1} '&'")
    if is_json and "\\u" in plain:
        plain = _without_escapes(grammar)
    can_combine = '"allOf"' in plain or '"$ref"' in plain
    if can_combine and plain.count('"pattern"') > MAX_INTERSECTED:
        raise InvalidRequest(
            f"a schema with allOf or $ref may have at most {MAX_INTERSECTED} patterns"
        )


def _without_escapes(grammar: Grammar) -> str:
    try:
        return json.dumps(json.loads(grammar.source), ensure_ascii=False)
    except (ValueError, RecursionError):
        raise InvalidRequest("not a JSON schema") from None


def _notation(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    match grammar.kind:
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(grammar.source)
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(grammar.source)
        case GrammarKind.JSON_SCHEMA:
            try:
                return LLMatcher.grammar_from_json_schema(grammar.source, overrides=JSON_LAYOUT)
            except ValueError as error:
                raise InvalidRequest(f"not a JSON schema: {_reason(str(error))}") from None


def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=MAX_ROW_ITEMS,
        step_max_items=MAX_STEP_ITEMS,
        initial_lexer_fuel=MAX_LEXER_FUEL,
        max_lexer_states=MAX_LEXER_STATES,
        precompute_large_lexemes=False,
        max_grammar_size=MAX_GRAMMAR_SYMBOLS,
        verbose_errors=False,
    )


def _reason(message: str) -> str:
    """The reason in an error message of llguidance, without the grammar or internal state that it
    quotes."""
    if message.startswith("NoExtension"):
        return "it has no sentence that this model's tokens can write"
    first, *others = message.strip().splitlines() or ["unknown"]
    reasons = [first, *(line for line in others if line.startswith("error: "))]
    return " ".join(
        line if len(line) <= MAX_REASON_LEN else line[:MAX_REASON_LEN] + " ..." for line in reasons
    )
