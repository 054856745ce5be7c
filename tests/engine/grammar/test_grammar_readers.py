"""Readers of grammars: deep enough, and never waited for too long."""

from __future__ import annotations

import threading

import pytest

from baton.core.errors import Overloaded
from baton.engine.grammar.grammar_readers import STACK_BYTES, GrammarReaders


def test_what_was_read_is_returned_and_what_went_wrong_is_raised() -> None:
    def broken() -> int:
        raise ValueError("a slip")

    assert GrammarReaders().read(lambda: 7) == 7
    with pytest.raises(ValueError, match="a slip"):
        GrammarReaders().read(broken)


def test_threads_started_later_have_the_usual_stack() -> None:
    GrammarReaders().read(lambda: None)

    assert threading.stack_size() < STACK_BYTES


def test_a_grammar_that_takes_too_long_is_given_up_and_its_reader_comes_back_at_the_end() -> None:
    readers, is_done = GrammarReaders(max_read_s=0.01, max_readers=1), threading.Event()

    with pytest.raises(Overloaded, match="took over"):
        readers.read(is_done.wait)
    with pytest.raises(Overloaded, match="being read"):
        readers.read(lambda: 1)
    is_done.set()

    readers._max_read_s = 60.0  # a busy machine takes its time
    assert readers.read(lambda: 2) == 2
