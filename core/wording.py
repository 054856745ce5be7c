"""Counts in sentences for people: `1 request`, `2 requests`."""

from __future__ import annotations


def count_of(number: float, noun: str, plural: str = "", *, form: str = "") -> str:
    """`form`: a format of the number, such as `,`. `plural`: where it is not `noun` and an s."""
    return f"{number:{form}} {noun if number == 1 else plural or noun + 's'}"
