"""The serving engines without Ray or ports."""
