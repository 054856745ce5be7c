"""Compiles grammars of requests, and refuses bad ones before anything runs."""

from __future__ import annotations

import asyncio

from baton.core.errors import InvalidRequest
from baton.core.sampling import Grammar
from baton.engine.grammar.grammar_check import GrammarChecker
from baton.gateway.grammars.answer_grammar import answer_grammar, free_grammar
from baton.gateway.grammars.structured_output import OutputRule
from baton.gateway.output import harmony
from baton.gateway.output.reasoning import THINK_BEGIN, THINK_END, ReasoningStart
from baton.gateway.text.served_model import ServedModel

MAX_KNOWN = 128


class OutputGrammars:
    """Caches which grammars are valid: clients mostly send the same few."""

    def __init__(self, model: ServedModel) -> None:
        self.has_end = bool(model.eos_token_ids)
        """Whether an output can end; else no grammar is accepted."""
        self._checker = GrammarChecker(model.tokenizer.to_json, model.eos_token_ids)
        self._special_by_mark = model.tokenizer.special_tokens(
            (THINK_BEGIN, THINK_END, *harmony.MARKERS)
        )
        self._known: dict[Grammar, InvalidRequest | None] = {}
        """The error of each grammar; None if it is valid."""

    async def accept(
        self,
        rule: OutputRule | None,
        *,
        reasoning: ReasoningStart = ReasoningStart.NOWHERE,
        calls: str | None = None,
    ) -> Grammar | None:
        """The grammar of the output; `calls` as in `answer_grammar`.

        Raises InvalidRequest, naming the field.
        """
        if rule is None:
            return None
        if not self.has_end:
            raise InvalidRequest(
                f"{rule.field}: this model has no end-of-sequence token, so an output that must "
                "end at some point cannot; leave it out",
                field=rule.field,
            )
        grammar = answer_grammar(rule, reasoning, calls, special_by_mark=self._special_by_mark)
        await self._check(grammar, rule.field)
        return grammar

    async def accept_free(
        self, calls: str, field: str, *, reasoning: ReasoningStart
    ) -> Grammar | None:
        """The grammar of an output that may hold calls, as in `free_grammar`; None where an output
        could never end. Raises InvalidRequest, naming the field."""
        if not self.has_end:
            return None
        grammar = free_grammar(calls, reasoning, special_by_mark=self._special_by_mark)
        await self._check(grammar, field)
        return grammar

    async def _check(self, grammar: Grammar, field: str) -> None:
        if grammar not in self._known:
            fault: InvalidRequest | None = None
            try:
                await asyncio.to_thread(self._checker.check, grammar)
            except InvalidRequest as error:
                fault = error
            while len(self._known) >= MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[grammar] = fault
        if (known := self._known[grammar]) is not None:
            raise InvalidRequest(f"{field}: {known.message}", field=field)
