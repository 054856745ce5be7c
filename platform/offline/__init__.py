"""The same engines without Ray or ports."""
