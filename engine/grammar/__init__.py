"""Constraints on outputs: grammars, their matchers and their limits."""
