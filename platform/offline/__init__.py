"""Engines and gateway in one process, without Ray or ports."""
