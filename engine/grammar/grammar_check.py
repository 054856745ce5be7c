"""Grammars as llguidance understands them: bounded, and tied to one model's tokens.

    Grammar --start--> LLMatcher      the state before the first token, or InvalidRequest: why not

The gateway refuses a bad grammar here before anything runs; the engine goes on from the state
(`engine/grammar/structured_output.py`). Free of torch, which a gateway does not load.

A grammar comes from a client and may be hostile. llguidance counts what it does, so a state too
costly to compute is an error of that request alone. Its own limits are for who trusts the grammar:
they allow seconds a token and hundreds of megabytes.

What it does not count, the length of repetitions, the depth of references and the time that
intersections take, is bounded by `engine/grammar/grammar_size.py` and
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
"""Reading takes time quadratic in them, a second at the limit: an object of 2000 properties."""
MAX_ROW_ITEMS = 640
"""Ways to read the output so far. An ambiguous grammar's next token takes time quadratic in them, a
tenth of a second at the limit. Each optional property still to come is four of them."""
MAX_STEP_ITEMS = 20_000
"""Most parse items of a step, over all tokens that may come next."""
MAX_LEXER_STATES = 20_000
"""One to two kilobytes each."""
MAX_LEXER_FUEL = 200_000
"""Steps to build the automata of regular expressions."""
MAX_INTERSECTED = 16
"""Expressions that must hold at once: every one doubles what llguidance does between two counts."""
MAX_REASON_LEN = 400
MAX_READ = 32
"""Grammars that are kept as they were before their first token: reading one that has 20 tools takes
tens of milliseconds."""

JSON_LAYOUT: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
}
"""One space or none behind a separator, and no other whitespace outside strings: models were taught
to write the space, and a weak one given more freedom would write blanks until its limit."""


class GrammarChecker:
    """Knows one model's tokens. Safe to use from several threads.

    `read_tokenizer` returns the text of `tokenizer.json`; it is called once, by the first grammar.
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
        """Raises InvalidRequest for what is no grammar, or one beyond the limits.

        A copy, where it was read before: requests with the same tools have the same grammar.
        """
        with self._lock:
            if (known := self._read.get(grammar)) is not None:
                return known.deep_copy()
        if len(grammar.source.encode()) > MAX_SOURCE_BYTES:
            raise InvalidRequest(f"a grammar may have at most {MAX_SOURCE_BYTES} bytes")
        check_size(grammar)
        _refuse_intersections(grammar)
        tokens = self._known_tokens()
        # Imported here, as the tokens were: only who uses grammars needs the package.
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
    """One bit a token of the tokenizer, lowest first, in whole 32-bit words."""
    mask = matcher.compute_bitmask()
    raise_if_failed(matcher)
    if not any(mask):
        raise InvalidRequest("no token of this model can continue the grammar")
    return mask


def raise_if_failed(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise InvalidRequest(f"the grammar cannot be followed: {_reason(matcher.get_error())}")


def _read_tokens(tokenizer_json: str, eos_token_ids: list[int]) -> LLTokenizer:
    """Takes a second for a large vocabulary."""
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
    """Refuse grammars with too much that may intersect, counted in the source; patterns without any
    are free. Lark may embed JSON."""
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
    """What is wrong, without the grammar, or llguidance's own state, that is quoted around it."""
    if message.startswith("NoExtension"):
        return "it has no sentence that this model's tokens can write"
    first, *others = message.strip().splitlines() or ["unknown"]
    reasons = [first, *(line for line in others if line.startswith("error: "))]
    return " ".join(
        line if len(line) <= MAX_REASON_LEN else line[:MAX_REASON_LEN] + " ..." for line in reasons
    )
