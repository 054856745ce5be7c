"""What an output must be: grammars, their matchers and their limits."""
