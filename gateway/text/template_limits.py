"""Limits on what a chat template may compute, checked before each operation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

MAX_STEPS = 500_000
MAX_CPU_S = 2.0
MAX_SIZE = 1 << 25
"""Characters of one value, and of all output together."""
MAX_ITEMS = 1 << 19
"""Elements of one value, at all depths; a list that is contained twice counts twice."""
MAX_ARGUMENT = 10_000
"""The largest number handed to filters and methods of strings, such as a width."""
MAX_INT_BITS = 4096

MAX_SEPARATOR = 16
"""Characters that `tojson` may put between elements."""

WIDE_FORMAT = re.compile(r"\d{5,}|\*")
FORBIDDEN_METHODS = frozenset({"encode", "to_bytes", "translate"})
"""No real template needs them, and bytes would be one more type to weigh."""
TEXT_FILTERS = frozenset({"format", "replace", "urlize"})
"""Filters that convert any value to text first."""


class LimitExceeded(SecurityError):
    """The template exceeds the limits of time or memory."""


def weigh(value: object) -> int:
    """About how many characters `value` prints as. Raises LimitExceeded beyond the limits."""
    size = num_items = 0
    stack = [value]
    while stack:
        item = stack.pop()
        num_items += 1
        if isinstance(item, str | bytes):
            size += len(item)
        elif isinstance(item, Mapping):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            stack.extend(item)
        elif isinstance(item, Namespace):
            stack.append(item._Namespace__attrs)
        if num_items + len(stack) > MAX_ITEMS or size > MAX_SIZE:
            raise LimitExceeded("the chat template makes values that are too large")
    return size + num_items


def check_arguments(values: Sequence[Any]) -> None:
    if any(isinstance(value, int) and abs(value) > MAX_ARGUMENT for value in values):
        raise LimitExceeded(f"the chat template passes a number above {MAX_ARGUMENT}")


def check_method(name: str) -> None:
    if name in FORBIDDEN_METHODS:
        raise LimitExceeded(f"chat templates cannot use the method {name}")


def check_string_method(text: str, name: str, values: Sequence[Any]) -> None:
    """Check a call of a method of `text`, or of a filter that does the same; `values` are the
    arguments."""
    check_arguments(values)
    if name in ("format", "format_map"):
        _check_format(text, "{%", values)
    elif name == "replace" and len(values) > 1:
        check_size(len(text) + text.count(str(values[0])) * weigh(values[1]))
    elif name == "join" and values:
        check_size(weigh(values[0]) * (1 + len(text)))
    elif name in ("indent", "expandtabs", "wordwrap"):
        widths = [value if isinstance(value, int) else weigh(value) for value in values]
        check_size(len(text) * max(widths, default=1))
    elif name == "urlize":
        check_size(len(text) * weigh(values))  # arguments go into every link


def check_sum(items: object, start: Sequence[Any]) -> None:
    """Check a sum. Adding up lists copies the partial result each time."""
    if any(isinstance(value, list | tuple | str) for value in start):
        num_items = len(items) if isinstance(items, list | tuple) else 1
        check_size(num_items * weigh(items))


def check_separators(separators: Sequence[str]) -> None:
    if any(len(separator) > MAX_SEPARATOR for separator in separators):
        raise LimitExceeded(f"tojson separates by at most {MAX_SEPARATOR} characters")


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Check a use of the operators + * ** %."""
    check_size(weigh(left) + weigh(right))
    if operator == "%" and isinstance(left, str):
        _check_format(left, "%", right)
    if operator not in ("*", "**"):
        return
    if isinstance(left, int) and isinstance(right, int):
        times = abs(right) if operator == "**" else 1
        if left.bit_length() * times + right.bit_length() > MAX_INT_BITS:
            raise LimitExceeded("the chat template computes with numbers that are too large")
    elif isinstance(left, int):
        _check_repeat(right, left)
    elif isinstance(right, int):
        _check_repeat(left, right)


def _check_format(text: str, signs: str, values: Any) -> None:
    """Check a format operation, in which each place may show all of the values."""
    if WIDE_FORMAT.search(text):
        raise LimitExceeded("the chat template formats with too large a width")
    num_places = sum(text.count(sign) for sign in signs)
    check_size(len(text) + num_places * weigh(values))


def _check_repeat(value: Any, times: int) -> None:
    if isinstance(value, str):
        check_size(len(value) * times)
    elif isinstance(value, list | tuple) and weigh(value) * times > MAX_ITEMS:
        raise LimitExceeded("the chat template makes values that are too large")


def check_size(size: int) -> None:
    """`size` as `weigh` counts it."""
    if size > MAX_SIZE:
        raise LimitExceeded("the chat template makes values that are too large")
