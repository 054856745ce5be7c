"""Whose prompt goes first."""
