"""Grammars of structured output."""
